"""What a head must not forget: written to the journal, and taken up after a restart.

Written before an answer or an order goes out: actors (their registration once, their
state at each change), placement groups, key-value pairs, jobs and nodes. A restarted
head loads them and is *recovering* until its grace time is over:

- Nodes that it knew are expected (``Membership``: JOINING). What they report decides:
  actors that they run go on, actors that they lost are restarted or dead, bundles and
  processes that no record knows are ended. Those that were declared dead stay dead.
- Actors that waited for a place get one when the grace time is over, unless their node
  says that it runs them.
- Owners and drivers connect again. Those that do not died meanwhile: their actors,
  groups and jobs end as if they had been seen to leave.

Demand (unplaced leases) is not written: nodes ask again.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec import Struct

from rayshim.adapters.journal.journal import Journal, JournalError
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.lineage import actors as act
from rayshim.lineage import placement_groups as pg
from rayshim.lineage.membership import REMEMBERED
from rayshim.lineage.resources import to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.control import ControlService
    from rayshim.adapters.raylet.head_nodes import KnownNode

logger = logging.getLogger(__name__)

_ACTORS, _LIVES, _GROUPS = "actors", "lives", "groups"
_VALUES, _JOBS, _NODES = "kv", "jobs", "nodes"
_META, _DEAD = "meta", "dead"


class ActorLife(Struct, array_like=True):
    """What changes of an actor."""

    state: int
    incarnation: int
    restarts_left: int
    worker_id: bytes
    address: str
    pid: int
    is_created: bool
    repr_name: str
    cause: str
    kind: str
    ending: tuple[str, str, bool] | None
    is_out_of_scope: bool
    node_id: str
    gpu_ids: list[int]
    error: wire.Payload | None


class GroupRecord(Struct, array_like=True):
    """A placement group."""

    bundles: list[dict[str, float]]
    strategy: str
    name: str
    job_id: bytes
    is_detached: bool
    is_created: bool
    #: Index -> node of the bundles that are placed.
    places: dict[int, str]
    attempt: int
    namespace: str = ""
    selectors: list[dict[str, str]] = []
    topology: str = ""
    domain: str = ""
    target: str = ""
    creator: bytes = b""
    is_creator_over: bool = True


class JobRecord(Struct, array_like=True):
    """A driver that is there."""

    address: str


class HeadState:
    """The journal of a control service.

    Args:
        control: The control service.
        journal: Where to write.
        grace_s: Seconds in which nodes, owners and drivers may come back.
    """

    def __init__(
        self, control: ControlService, journal: Journal, grace_s: float
    ) -> None:
        self._control = control
        self._journal = journal
        self.grace_s = grace_s
        #: Actor ids whose registration, and whose start, is written.
        self._registered: set[bytes] = set()
        self._started: set[bytes] = set()
        #: Owners of actors, by address, that have to connect again.
        self._owners: set[str] = set()
        #: Job id -> driver's address, that has to connect again.
        self._drivers: dict[bytes, str] = {}
        #: Ids of dead nodes that are written, oldest first.
        self._dead: dict[str, None] = {}

    # -- writing -----------------------------------------------------------------

    def actors_changed(self, actor_ids: Iterable[bytes]) -> None:
        """Write actors as they are now, before their news goes out."""
        service = self._control.actors
        for actor_id in dict.fromkeys(actor_ids):
            actor = service.machine.actors.get(actor_id)
            cargo = service.cargo.get(actor_id)
            if actor is None or cargo is None:
                continue
            if actor_id not in self._registered:
                self._registered.add(actor_id)
                self._put(_ACTORS, actor_id + b"r", cargo.registration)
            if cargo.start is not None and actor_id not in self._started:
                self._started.add(actor_id)
                self._put(_ACTORS, actor_id + b"s", cargo.start)
            self._put(_LIVES, actor_id, _life_of(actor, cargo))

    def actor_forgotten(self, actor_id: bytes) -> None:
        """The oldest dead actor is remembered no more."""
        for key in (actor_id + b"r", actor_id + b"s"):
            self._delete(_ACTORS, key)
        self._delete(_LIVES, actor_id)
        self._registered.discard(actor_id)
        self._started.discard(actor_id)

    def group_changed(self, group: pg.Group) -> None:
        """Write a placement group as it is now; a removed one goes."""
        if group.state is pg.GroupState.REMOVED:
            self._delete(_GROUPS, group.group_id)
            return
        record = GroupRecord(
            [dict(bundle) for bundle in group.amounts],
            group.strategy,
            group.name,
            group.job_id,
            group.is_detached,
            group.state is pg.GroupState.CREATED,
            dict(group.places),
            group.attempt,
            group.namespace,
            [dict(selector) for selector in group.selectors],
            group.topology,
            group.domain,
            group.target,
            group.creator,
            group.is_creator_over,
        )
        self._put(_GROUPS, group.group_id, record)

    def value_changed(self, space: str, key: bytes, value: bytes | None) -> None:
        """Write a key-value pair; None removes it."""
        name = msgspec.msgpack.encode((space, key))
        if value is None:
            self._delete(_VALUES, name)
        else:
            self._write(_VALUES, name, value)

    def jobs_counted(self, count: int) -> None:
        """Write how many jobs there were."""
        self._put(_META, b"job_count", count)

    def driver_came(self, job_id: bytes, address: str) -> None:
        """A driver connected."""
        self._drivers.pop(job_id, None)
        self._put(_JOBS, job_id, JobRecord(address))

    def driver_left(self, job_id: bytes) -> None:
        """A driver is gone, and everybody was told."""
        self._delete(_JOBS, job_id)

    def node_joined(self, join: nodes.JoinNode) -> None:
        """Write who a node is."""
        facts = msgspec.structs.replace(join, actors=[], bundles=[])
        self._put(_NODES, join.info.node_id.encode(), facts)

    def node_died(self, node: KnownNode) -> None:
        """A dead node is not expected any more, and does not come back.

        Whoever was not told yet, or knows it as dead, would wait for it in vain.
        """
        info = self._control.nodes.info(node)
        facts = msgspec.structs.replace(node.join, info=info, actors=[], bundles=[])
        self._put(_DEAD, node.node_id.encode(), facts)
        self._delete(_NODES, node.node_id.encode())
        self._dead[node.node_id] = None
        while len(self._dead) > REMEMBERED:
            oldest = next(iter(self._dead))
            del self._dead[oldest]
            self._delete(_DEAD, oldest.encode())

    def owner_came(self, address: str) -> None:
        """A peer connected (again)."""
        self._owners.discard(address)

    def _put(self, table: str, key: bytes, value: Any) -> None:
        self._write(table, key, msgspec.msgpack.encode(value))

    def _write(self, table: str, key: bytes, value: bytes) -> None:
        try:
            self._journal.put(table, key, value)
        except JournalError as error:
            self._give_up(error)

    def _delete(self, table: str, key: bytes) -> None:
        try:
            self._journal.delete(table, key)
        except JournalError as error:
            self._give_up(error)

    @staticmethod
    def _give_up(error: JournalError) -> NoReturn:
        """End the head: what it says from now on would not survive it.

        Its folder stays, so that it can be started again once the cause is mended.
        """
        logger.critical("the head ends, since it cannot keep its promises: %s", error)
        logging.shutdown()
        print(f"the head ends: {error}", file=sys.stderr, flush=True)
        os._exit(os.EX_IOERR)

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()

    # -- after a restart -----------------------------------------------------------

    def restore(self) -> bool:
        """Take up what an earlier life of this head wrote.

        Returns:
            Whether there was any: then :meth:`finish` has to follow after
            ``grace_s``.
        """
        control = self._control
        dead = [
            msgspec.msgpack.decode(data, type=nodes.JoinNode)
            for data in self._journal.load(_DEAD).values()
        ]
        for join in sorted(dead, key=lambda one: one.info.died_s):
            self._dead[join.info.node_id] = None
            control.nodes.mourned(join)
        known = self._journal.load(_NODES)
        lives = self._journal.load(_LIVES)
        groups = self._journal.load(_GROUPS)
        values = self._journal.load(_VALUES)
        jobs = self._journal.load(_JOBS)
        meta = self._journal.load(_META)
        count = meta.get(b"job_count")
        control.placer.lives = int(meta.get(b"restarts", b"0"))
        restarts = str(control.placer.lives + 1).encode()
        self._journal.put(_META, b"restarts", restarts)
        if not (known or lives or groups or values or jobs or count):
            return False
        for name, value in values.items():
            space, key = msgspec.msgpack.decode(name, type=tuple[str, bytes])
            control.values.restore(space, key, value)
        if count is not None:
            control.job_count = msgspec.msgpack.decode(count, type=int)
        for data in known.values():
            control.nodes.expect(msgspec.msgpack.decode(data, type=nodes.JoinNode))
        for job_id, data in jobs.items():
            record = msgspec.msgpack.decode(data, type=JobRecord)
            self._drivers[job_id] = record.address
        for group_id, data in groups.items():
            self._restore_group(group_id, data)
        facts = self._journal.load(_ACTORS)
        for actor_id, data in lives.items():
            self._restore_actor(actor_id, data, facts)
        logger.warning(
            "the head is back: %d nodes, %d actors, %d placement groups and %d jobs "
            "have %g s to report",
            len(known),
            len(lives),
            len(groups),
            len(jobs),
            self.grace_s,
        )
        return True

    def _restore_group(self, group_id: bytes, data: bytes) -> None:
        record = msgspec.msgpack.decode(data, type=GroupRecord)
        group = pg.Group(
            group_id,
            tuple(to_units(bundle) for bundle in record.bundles),
            strategy=record.strategy,
            name=record.name,
            job_id=record.job_id,
            is_detached=record.is_detached,
            now=self._control.now(),
            namespace=record.namespace,
            amounts=record.bundles,
            selectors=record.selectors,
            topology=record.topology,
            target=record.target,
            creator=record.creator,
        )
        group.domain = record.domain
        group.is_creator_over = record.is_creator_over
        # Drivers that left took their groups along, but for those of actors.
        group.is_job_over = record.job_id not in self._drivers
        group.places = dict(record.places)
        # Answers to attempts of the earlier life must not count.
        group.attempt = record.attempt + 1
        if record.is_created and not group.missing:
            group.state = pg.GroupState.CREATED
        elif record.places:
            group.state = pg.GroupState.RESCHEDULING
        self._control.groups.machine.restore(group)

    def _restore_actor(
        self, actor_id: bytes, data: bytes, facts: dict[bytes, bytes]
    ) -> None:
        life = msgspec.msgpack.decode(data, type=ActorLife)
        registered = facts.get(actor_id + b"r")
        if registered is None:
            logger.error("the journal does not know actor %s", actor_id.hex())
            return
        self._registered.add(actor_id)
        service = self._control.actors
        registration = msgspec.msgpack.decode(registered, type=wire.RegisterActor)
        start = None
        if actor_id + b"s" in facts:
            self._started.add(actor_id)
            start = msgspec.msgpack.decode(facts[actor_id + b"s"], type=wire.StartActor)
        actor = service.restore(registration, start, life)
        is_owned = not registration.detached and registration.owner
        if is_owned and actor.state is not act.ActorState.DEAD:
            self._owners.add(registration.owner)

    def is_complete(self) -> bool:
        """Whether everybody is back that the earlier life knew."""
        return not (self._owners or self._drivers or self._control.nodes.is_expecting())

    def finish(self) -> None:
        """The grace time is over: who has not come back is gone."""
        control = self._control
        for job_id, address in list(self._drivers.items()):
            logger.warning("job %s: its driver did not come back", job_id.hex())
            self._owners.discard(address)
            control.actors.peer_gone(address)
            control.job_gone(job_id)
        self._drivers.clear()
        for address in list(self._owners):
            control.actors.peer_gone(address)
        self._owners.clear()
        control.actors.recovered()
        control.groups.recovered()
        control.groups.retry()


def _life_of(actor: act.Actor, cargo: Any) -> ActorLife:
    return ActorLife(
        actor.state.value,
        actor.incarnation,
        actor.restarts_left,
        actor.worker_id,
        actor.address,
        actor.pid,
        actor.is_created,
        actor.repr_name,
        actor.cause,
        actor.kind,
        actor.ending,
        actor.is_out_of_scope,
        cargo.node_id,
        cargo.gpu_ids,
        cargo.error,
    )
