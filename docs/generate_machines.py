"""Writes ``state-machines.md`` from the machines themselves.

    python docs/generate_machines.py           write the page
    python docs/generate_machines.py --check   fail if the page is not up to date

The grids come from the transition tables. A table names a method, not the state that
follows, so the arrows are found by trying: every event is given to the real machine
in every state that a small world can reach, and what changed is written down.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine_tours import MACHINES, Found, Table, tour

from rayshim.lineage import actor_calls, actors, dispatch, executors, raylet, tasks
from rayshim.lineage import actor_events as aev
from rayshim.lineage import lease_events as lev
from rayshim.lineage import placement_groups as pg
from rayshim.lineage.actors import ActorManager, ActorState
from rayshim.lineage.leases import REMEMBERED as REMEMBERED_LEASES
from rayshim.lineage.leases import ExecutorState, LeaseState
from rayshim.lineage.placement import View
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import CPU, UNITS, ResourceSet

PAGE = Path(__file__).with_name("state-machines.md")
TEMPLATE = Path(__file__).with_name("state-machines.in.md")

# -- actors ------------------------------------------------------------------------


def tour_actors() -> Found:
    """One actor with one restart."""
    found = Found()
    spec = aev.ActorSpec(b"a", b"j", "owner", "C", "", "", False, 1, {}, {})

    def state(machine: ActorManager) -> ActorState:
        actor = machine.actors.get(b"a")
        return actor.state if actor else ActorState.UNKNOWN

    def events(machine: ActorManager) -> list[Any]:
        actor = machine.actors.get(b"a")
        life = actor.incarnation if actor else 0
        offered = [
            aev.Registered(b"a", spec),
            aev.Started(b"a"),
            aev.Unstartable(b"a"),
            aev.Placed(b"a", life, b"w", "unix:w", 1),
            aev.PlacementFailed(b"a", life, "no", "removed"),
            aev.Created(b"a", life),
            aev.ConstructorFailed(b"a", life),
            aev.Exiting(b"a", "exit_actor"),
            aev.ExecutorLost(b"a", life, "crash"),
            aev.Killed(b"a", True),
            aev.Killed(b"a", False),
            aev.OutOfScope(b"a"),
            aev.OwnerGone("owner"),
        ]
        now = state(machine)
        free = (aev.OwnerGone, aev.Registered)
        return [
            event
            for event in offered
            if isinstance(event, free) or (now, type(event)) in actors._TABLE
        ]

    def take(machine: ActorManager, event: Any) -> None:
        before = state(machine)
        if machine.handle(event, 0.0):
            found.acted.add((before, type(event)))
        machine.validate()
        found.move(before, state(machine), event)
        found.outcome(before, event, state(machine))

    def key(machine: ActorManager) -> Hashable:
        actor = machine.actors.get(b"a")
        if actor is None:
            return None
        return (
            actor.state,
            actor.restarts_left,
            actor.ending,
            actor.is_out_of_scope,
            actor.is_created,
        )

    tour(ActorManager(), events, take, key, depth=10)
    return found


# -- leases and executors ----------------------------------------------------------


class Ids:
    """Fresh worker ids, in order."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bytes:
        """The next id."""
        self.count += 1
        return bytes([self.count])


def tour_raylet() -> tuple[Found, Found]:
    """Two leases that want the one CPU of a node."""
    leases, workers = Found(), Found()
    need = {CPU: UNITS}
    requests = [
        lev.LeaseRequested(b"l", "h", b"j", "f", need),
        lev.LeaseRequested(b"o", "g", b"j", "f", need),
        lev.LeaseRequested(b"l", "h", b"j", "f", need, is_away=True, hops=1),
    ]

    def events(machine: Raylet) -> list[Any]:
        offered: list[Any] = [
            *requests,
            lev.LeaseReturned(b"o"),
            lev.LeaseSpilled(b"l", "tcp:other"),
            lev.LeaseAdmitted(b"l"),
            lev.LeaseRefused(b"l", "no node has so much"),
            lev.LeaseCancelled(b"l"),
            lev.LeaseReturned(b"l"),
            lev.LeaseReturned(b"l", dispose=True),
            lev.LeaseShrunk(b"l", {}),
            lev.LeaseKilled(b"l"),
            lev.BacklogTold(b"l", 1),
            lev.HolderGone("h"),
            lev.JobEnded(b"j"),
        ]
        now = machine._lease_state(b"l")
        for number in range(1, 4):
            worker_id = bytes([number])
            offered += [
                lev.ExecutorReady(worker_id, f"unix:{number}", number),
                lev.ExecutorExited(worker_id, "killed", -9),
                lev.ExecutorBlocked(worker_id, True),
            ]
        return [event for event in offered if _fits(machine, event, now, raylet._TABLE)]

    def take(machine: Raylet, event: Any) -> None:
        before = _raylet_states(machine)
        machine.handle(event, 0.0)
        machine.validate()
        after = _raylet_states(machine)
        leases.move(before[b"l"], after[b"l"], event)
        for worker_id in (b"\x01", b"\x02", b"\x03"):
            workers.move(before[worker_id], after[worker_id], event)
        subject = getattr(event, "worker_id", b"")
        if subject:
            workers.outcome(before[subject], event, after[subject])
        elif getattr(event, "lease_id", b"") == b"l":
            leases.outcome(before[b"l"], event, after[b"l"])

    def key(machine: Raylet) -> Hashable:
        workers_now = sorted(
            (one.state.value, one.is_blocked, one.lease and one.lease.request.lease_id)
            for one in machine.executors
        )
        return (
            machine._lease_state(b"l"),
            machine._lease_state(b"o"),
            repr(workers_now),
        )

    start = Raylet(ResourceSet({CPU: UNITS}), Ids(), max_starting=1, is_clustered=True)
    tour(start, events, take, key, depth=7)
    # Rare: an executor beyond the kept ones that idles too long.
    surplus = Raylet(ResourceSet({}), Ids(), prestart=1)
    surplus.handle(lev.TimePassed(), 0.0)
    surplus.handle(lev.ExecutorReady(b"\x01", "unix:1", 1), 0.0)
    surplus.executors.prestart = 0
    before = _raylet_states(surplus)[b"\x01"]
    event = lev.TimePassed()
    surplus.handle(event, executors.IDLE_LIMIT_S)
    workers.move(before, _raylet_states(surplus)[b"\x01"], event)
    return leases, workers


def _fits(machine: Raylet, event: Any, lease: LeaseState, table: Table) -> bool:
    worker_id = getattr(event, "worker_id", b"")
    if worker_id:
        executor = machine.executors.by_id.get(worker_id)
        state: Enum = executor.state if executor else ExecutorState.ABSENT
        return (state, type(event)) in table
    if getattr(event, "lease_id", b"") == b"l":
        return (lease, type(event)) in table
    return True


def _raylet_states(machine: Raylet) -> dict[bytes, Enum]:
    states: dict[bytes, Enum] = {b"l": machine._lease_state(b"l")}
    for number in range(1, 4):
        worker_id = bytes([number])
        executor = machine.executors.by_id.get(worker_id)
        states[worker_id] = executor.state if executor else ExecutorState.ABSENT
    return states


# -- placement groups, calls on an actor -------------------------------------------


class Named:
    """An event of a machine whose events are method calls."""


def tour_groups() -> Found:
    """A group of two bundles that are spread over two nodes."""
    found = Found()
    names = (
        "requested",
        "tried",
        "answered",
        "refused",
        "node_died",
        "removed",
        "job_ended",
    )
    kinds = {name: type(name, (Named,), {}) for name in names}
    bundle = {CPU: UNITS}

    def fresh() -> pg.Group:
        return pg.Group(
            b"g",
            (bundle, bundle),
            strategy="STRICT_SPREAD",
            name="",
            job_id=b"j",
            is_detached=False,
            now=0.0,
        )

    def state(machine: pg.PlacementGroups) -> Enum | None:
        group = machine.groups.get(b"g")
        return group.state if group else None

    def answer(machine: pg.PlacementGroups, *, is_reserved: bool) -> None:
        group = machine.groups.get(b"g")
        for node_id in list(group.asked)[:1] if group else ():
            machine.answered(
                b"g",
                node_id,
                attempt=group.attempt if group else 0,
                is_reserved=is_reserved,
                now=1.0,
            )

    def take(machine: pg.PlacementGroups, event: Any) -> None:
        before = state(machine)
        name = type(event).__name__
        if name == "requested":
            machine.requested(fresh())
        elif name == "tried" and before is not None:
            views = [View(one, bundle, bundle) for one in "ab"]
            machine.tried(b"g", views)
        elif name in ("answered", "refused"):
            answer(machine, is_reserved=name == "answered")
        elif name == "node_died":
            machine.node_died("a", 1.0)
        elif name == "removed":
            machine.removed(b"g")
        elif name == "job_ended":
            machine.job_ended(b"j")
        machine.validate()
        after = state(machine)
        if before is not None and after is not None:
            found.move(before, after, event)

    def key(machine: pg.PlacementGroups) -> Hashable:
        group = machine.groups.get(b"g")
        if group is None:
            return None
        return (
            group.state,
            tuple(group.asked),
            tuple(group.reserved),
            tuple(group.places.items()),
        )

    tour(
        pg.PlacementGroups(),
        lambda machine: [kind() for kind in kinds.values()],
        take,
        key,
        depth=6,
    )
    return found


def tour_calls() -> Found:
    """What a caller knows of one actor."""
    found = Found()
    kinds = {name: type(name, (Named,), {}) for name in ("alive", "life_ended", "dead")}

    def take(queue: actor_calls.ActorQueue, event: Any) -> None:
        before = queue.state
        name = type(event).__name__
        if name == "alive":
            queue.alive(queue.incarnation + 1)
        else:
            queue.life_ended(dead=name == "dead")
        queue.validate()
        found.move(before, queue.state, event)

    tour(
        actor_calls.ActorQueue(b"a"),
        # Nothing is reported of an actor after its death.
        lambda queue: (
            []
            if queue.state is actor_calls.ActorState.DEAD
            else [kind() for kind in kinds.values()]
        ),
        take,
        lambda queue: queue.state,
        depth=6,
    )
    return found


def read_tasks() -> Found:
    """The calls: their table names the next states itself."""
    found = Found()
    for (before, event), after in tasks.TRANSITIONS.items():
        found.moves.setdefault((before, after), set()).add(event.name)
    return found


# -- text --------------------------------------------------------------------------


def diagram(found: Found, first: Enum, last: Sequence[Enum] = ()) -> str:
    """A mermaid state diagram of the moves."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name}"]
    ordered = sorted(
        found.moves.items(),
        key=lambda item: [
            list(type(one).__members__).index(one.name) for one in item[0]
        ],
    )
    for (before, after), names in ordered:
        lines.append(f"    {before.name} --> {after.name}: {', '.join(sorted(names))}")
    lines += [f"    {one.name} --> [*]" for one in last]
    return "\n".join([*lines, "```"])


def grid(
    table: Table, found: Found, states: Sequence[Enum], outside: Sequence[type] = ()
) -> str:
    """A row for each event, a column for each state."""
    kinds: list[type] = []
    for state, kind in table:
        if state in states and kind not in kinds:
            kinds.append(kind)
    lines = [
        "| event | " + " | ".join(state.name for state in states) + " |",
        "|---" * (len(states) + 1) + "|",
    ]
    for kind in [*kinds, *outside]:
        row = [_cell(table, found, state, kind, kind in outside) for state in states]
        lines.append(f"| `{kind.__name__}` | " + " | ".join(row) + " |")
    return "\n".join(lines)


def task_grid() -> str:
    """The same for calls, whose events are members of an enum."""
    states = list(tasks.TaskState)
    lines = [
        "| event | " + " | ".join(state.name for state in states) + " |",
        "|---" * (len(states) + 1) + "|",
    ]
    for event in tasks.TaskEvent:
        after = [tasks.TRANSITIONS.get((state, event)) for state in states]
        row = " | ".join(f"→ {one.name}" if one else "refused" for one in after)
        lines.append(f"| `{event.name}` ({event.value}) | {row} |")
    return "\n".join(lines)


def _cell(table: Table, found: Found, state: Enum, kind: type, is_outside: bool) -> str:
    if not is_outside:
        method = table.get((state, kind))
        if method is None:
            return "refused"
        if method.__name__ in ("_ignore", "_nothing"):
            return "-"
    after = found.after.get((state, kind), set())
    names = [one.name for one in type(state) if one in after]
    if names in ([], [state.name]):
        is_idle = is_outside and (state, kind) not in found.acted
        return "-" if is_idle else "stays"
    return "→ " + " or ".join(names)


def describe(kinds: Iterable[type]) -> str:
    """A list of events and what they say."""
    lines = []
    for kind in kinds:
        text = " ".join((kind.__doc__ or "").replace("``", "`").split())
        text = re.sub(r":\w+:`[~.]*(?:\w+\.)*(\w+)`", r"`\1`", text)
        lines.append(f"- `{kind.__name__}`: {text}")
    return "\n".join(lines)


def _kinds(table: Table, states: Iterable[Any]) -> list[type]:
    wanted = set(states)
    return list(dict.fromkeys(kind for state, kind in table if state in wanted))


def page() -> str:
    """The whole page."""
    actor = tour_actors()
    lease, worker = tour_raylet()
    actor_states = [one for one in ActorState if one is not ActorState.UNKNOWN]
    lease_states = list(LeaseState)
    worker_states = list(ExecutorState)
    values = {
        "actor_diagram": diagram(actor, ActorState.UNKNOWN, [ActorState.DEAD]),
        "actor_grid": grid(actors._TABLE, actor, actor_states, [aev.OwnerGone]),
        "actor_events": describe([*_kinds(actors._TABLE, actor_states), aev.OwnerGone]),
        "lease_diagram": diagram(lease, LeaseState.UNKNOWN, [LeaseState.FINISHED]),
        "lease_grid": grid(raylet._TABLE, lease, lease_states),
        "lease_events": describe(_kinds(raylet._TABLE, lease_states)),
        "executor_diagram": diagram(worker, ExecutorState.ABSENT),
        "executor_grid": grid(raylet._TABLE, worker, worker_states),
        "executor_events": describe(_kinds(raylet._TABLE, worker_states)),
        "node_events": describe(_kinds(raylet._TABLE, [None])),
        "group_diagram": diagram(
            tour_groups(), pg.GroupState.PENDING, [pg.GroupState.REMOVED]
        ),
        "calls_diagram": diagram(
            tour_calls(), actor_calls.ActorState.PENDING, [actor_calls.ActorState.DEAD]
        ),
        "task_diagram": diagram(
            read_tasks(),
            tasks.TaskState.WAITING,
            [tasks.TaskState.DONE, tasks.TaskState.FAILED],
        ),
        "task_grid": task_grid(),
        "strategies": ", ".join(f"`{name}`" for name in pg.STRATEGIES),
        "remembered_actors": f"{actors.REMEMBERED:,}",
        "remembered_leases": f"{REMEMBERED_LEASES:,}",
        "remembered_groups": f"{pg.REMEMBERED:,}",
        "start_attempts": str(raylet.START_ATTEMPTS),
        "idle_limit_s": f"{executors.IDLE_LIMIT_S:g}",
        "leave_limit_s": f"{executors.LEAVE_LIMIT_S:g}",
        "pipeline_ms": f"{dispatch.PIPELINE_S * 1000:g}",
        "max_depth": str(dispatch.MAX_DEPTH),
        "batch": str(dispatch.BATCH),
        "idle_s": f"{dispatch.IDLE_S:g}",
        "quantum_ms": f"{dispatch.QUANTUM_S * 1000:g}",
        "steal_ms": f"{dispatch.STEAL_AFTER_S * 1000:g}",
        "max_requests": str(dispatch.MAX_REQUESTS),
    }
    for name, machine in MACHINES.items():
        found = machine.walk()
        states = list(type(machine.first))
        kinds = [*_kinds(machine.table, states), *machine.outside]
        values[f"{name}_diagram"] = diagram(found, machine.first, machine.last)
        values[f"{name}_grid"] = grid(machine.table, found, states, machine.outside)
        values[f"{name}_events"] = describe(kinds)
    text = TEMPLATE.read_text()
    for name, value in values.items():
        marker = "{{" + name + "}}"
        if marker not in text:
            raise ValueError(f"{TEMPLATE.name} has no {marker}")
        text = text.replace(marker, value)
    if "{{" in text:
        raise ValueError(f"{TEMPLATE.name} has a marker that nothing fills")
    return text


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() == text:
            return 0
        print(f"{PAGE} is out of date: run python docs/generate_machines.py")
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
