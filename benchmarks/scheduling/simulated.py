"""How the head's work grows with nodes: 1 to 1,000 simulated ones.

    python benchmarks/scheduling/simulated.py --nodes 1 10 100 1000

What runs and what is a model is said in ``simulated_world.py``. Owners at each node
submit classes of 1 to 16 calls at a time that live 10 s, so that seven tenths of all
CPUs are busy. The head's work is CPU time of its code, measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cases
from cases import Line, case
from first_calls import quantile

if TYPE_CHECKING:
    from simulated_world import Work

#: Simulated seconds before anything is counted, and that are counted.
WARM_UP_S, COUNTED_S = 3.0, 2.0
#: The sizes of the table.
SIZES = (1, 10, 100, 1000)


@dataclass(frozen=True, slots=True)
class Growth:
    """What one size of a cluster gave."""

    nodes: int
    #: CPU seconds of the head in a second: all, and of it for heartbeats alone.
    head_load: float
    beat_load: float
    #: Milliseconds of the head's CPU for 1,000 calls, and for 1,000 leases.
    ms_per_1000_calls: float
    ms_per_1000_leases: float
    #: Leases in a second, and the share of them that another node granted.
    leases_per_s: float
    spilled_share: float
    #: Questions to the head for each lease that another node granted.
    questions_per_spill: float
    #: Milliseconds from request to grant.
    local_p50_ms: float
    local_p99_ms: float
    spilled_p50_ms: float
    spilled_p99_ms: float
    #: Longest that a message waited for the head, in milliseconds.
    head_wait_ms: float
    beats_per_s: float
    beat_bytes_per_s: float
    #: Bytes that the head sent while the nodes joined.
    join_bytes: int


def measure(nodes: int, *, work: Work | None = None, **options: Any) -> Growth:
    """Run a cluster of a size.

    Args:
        nodes: how many.
        work: what owners do.
        **options: of `World`, and ``with_dask`` (True): leases that the head places are
            tasks of Dask's scheduler, as in real clusters.
    """
    return asyncio.run(_measure(nodes, work, **options))


async def _measure(
    nodes: int, work: Work | None, *, with_dask: bool = True, **options: Any
) -> Growth:
    # Late: the other back ends do not have rayshim.
    from simulated_world import Work, World

    world = World(nodes, work=work or Work(), **options)
    scheduler = await world.head.start_dask() if with_dask else None
    gc.collect()
    # Else the head would pay for collecting what the model made.
    gc.freeze()
    gc.disable()
    try:
        world.start()
        await world.wait_registered()
        join_bytes = sum(world.head.sent_bytes.values())
        world.begin_work()
        world.run(WARM_UP_S)
        world.reset()
        world.run(COUNTED_S)
    finally:
        gc.enable()
        gc.unfreeze()
        if scheduler is not None:
            await scheduler.close()
    head = world.head
    cpu_s = sum(head.cpu_s.values())
    spilled, local = len(world.spilled_s), len(world.local_s)
    leases = max(1, spilled + local)
    return Growth(
        nodes=nodes,
        head_load=cpu_s / COUNTED_S,
        beat_load=head.cpu_s["NodeLoad"] / COUNTED_S,
        ms_per_1000_calls=1e6 * cpu_s / max(1, world.calls_done),
        ms_per_1000_leases=1e6 * cpu_s / leases,
        leases_per_s=leases / COUNTED_S,
        spilled_share=spilled / leases,
        questions_per_spill=world.asked_elsewhere / max(1, spilled),
        local_p50_ms=1e3 * quantile(world.local_s, 0.5),
        local_p99_ms=1e3 * quantile(world.local_s, 0.99),
        spilled_p50_ms=1e3 * quantile(world.spilled_s, 0.5),
        spilled_p99_ms=1e3 * quantile(world.spilled_s, 0.99),
        head_wait_ms=1e3 * head.longest_wait_s,
        beats_per_s=head.received["NodeLoad"] / COUNTED_S,
        beat_bytes_per_s=head.received_bytes["NodeLoad"] / COUNTED_S,
        join_bytes=join_bytes,
    )


def head_memory(nodes: int, pending: int) -> tuple[int, int]:
    """Bytes that the head holds for its nodes, and for requests that wait.

    Args:
        nodes: how many joined.
        pending: requests that no node can grant, of 100 classes.
    """
    from rayshim.adapters.wire import messages as wire
    from simulated_world import World

    gc.collect()
    tracemalloc.start()
    world = World(nodes, cost_s=1e-5)
    before, _ = tracemalloc.get_traced_memory()
    for number in range(nodes):
        # Only its channel: the machines of the nodes are not the head's.
        world.join_alone(number)
    world.run(1.0)
    gc.collect()
    joined, _ = tracemalloc.get_traced_memory()
    for number in range(pending):
        need = {"CPU": 1.0, "none": 1.0}
        name = f"class-{number % 100}"
        request = wire.RequestLease(world.new_id(), b"job!", name, need, {}, 0)
        world.ask_head(number % nodes, request)
    world.run(1.0)
    gc.collect()
    full, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return joined - before, full - joined


COLUMNS = (
    ("nodes", "nodes", "{:,}"),
    ("head's CPU for 1,000 calls, ms", "ms_per_1000_calls", "{:.1f}"),
    ("for 1,000 leases, ms", "ms_per_1000_leases", "{:.0f}"),
    ("CPUs of the head", "head_load", "{:.3f}"),
    ("of it heartbeats", "beat_load", "{:.3f}"),
    ("leases/s", "leases_per_s", "{:,.0f}"),
    ("spilled", "spilled_share", "{:.1%}"),
    ("questions for each", "questions_per_spill", "{:.1f}"),
    ("local p50, ms", "local_p50_ms", "{:.2f}"),
    ("p99", "local_p99_ms", "{:.0f}"),
    ("spilled p50, ms", "spilled_p50_ms", "{:.2f}"),
    ("p99", "spilled_p99_ms", "{:.0f}"),
    ("longest wait at the head, ms", "head_wait_ms", "{:.1f}"),
    ("heartbeats/s", "beats_per_s", "{:,.0f}"),
    ("kB/s", "beat_bytes_per_s", "{:,.0f}"),
    ("MB sent at joining", "join_bytes", "{:,.1f}"),
)
#: What a column's number is divided by.
SCALES = {"beat_bytes_per_s": 1e3, "join_bytes": 1e6}


def to_markdown(rows: list[Growth]) -> str:
    """A table with one column a size."""
    table = []
    for title, name, form in COLUMNS:
        values = (getattr(row, name) / SCALES.get(name, 1) for row in rows)
        if name == "nodes":
            values = (row.nodes for row in rows)
        table.append(f"| {title} | {' | '.join(form.format(one) for one in values)} |")
    table.insert(1, "|---|" + "---:|" * len(rows))
    return "\n".join(table) + "\n"


@case(
    "simulated",
    Line("head's CPU for 1,000 calls, 100 nodes", "ms"),
    Line("the same, 1,000 nodes", "ms"),
    Line("spilled lease p50, 1,000 simulated nodes", "ms", threshold=15.0),
    Line("CPUs of the head, 1,000 simulated nodes", "CPUs", threshold=1.0),
    limit_s=180.0,
    backends=("rayshim",),
)
def simulated(ray: Any) -> dict[str, float]:
    """The head at 100 and at 1,000 nodes."""
    some, many = measure(100), measure(1000)
    names = [line.name for line in cases.CASES["simulated"].lines]
    values = (
        some.ms_per_1000_calls,
        many.ms_per_1000_calls,
        many.spilled_p50_ms,
        many.head_load,
    )
    return dict(zip(names, values, strict=True))


def main() -> int:
    """Print the table."""
    from simulated_world import Work

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--load", type=float, default=Work.load, help="busy share")
    parser.add_argument("--without-dask", action="store_true", help="placer alone")
    parser.add_argument("--spread", action="store_true", help="all through the head")
    options = parser.parse_args()
    rows = []
    for nodes in options.nodes:
        started = time.monotonic()
        strategy = "SPREAD" if options.spread else ""
        work = Work(load=options.load, strategy=strategy)
        rows.append(measure(nodes, work=work, with_dask=not options.without_dask))
        took_s = time.monotonic() - started
        print(f"{nodes} nodes: {took_s:.1f} s", file=sys.stderr)
    print(to_markdown(rows))
    held, waiting = head_memory(100, 10_000)
    print(
        f"memory of the head: {held / 100 / 1e3:.1f} kB for each node, "
        f"{waiting / 10_000 / 1e3:.2f} kB for each request that waits"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
