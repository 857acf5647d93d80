"""Values travel between processes over Flight, whatever happens to the senders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from flight_process import (
    NODE,
    PullingNode,
    pulling,
    segment_of,
    sender,
    write_value,
)
from rayshim.adapters.raylet import pull_service
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.messages import Segment

X = b"x" * 28
COPY = f"o-{X.hex()}"
MIB = 1 << 20


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


def run(
    case: Callable[[PullingNode], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def main() -> None:
        async with pulling(**options) as node:
            await case(node)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    "size_bytes",
    [
        200_001,
        4 * MIB,
        pytest.param(33 * MIB + 7, marks=pytest.mark.slow),
        pytest.param(200_000_000, marks=pytest.mark.slow),
    ],
)
def test_a_value_arrives_as_it_was(here: Path, there: Path, size_bytes: int) -> None:
    async def case(node: PullingNode) -> None:
        node.table(source.info())
        segment = segment_of(source, "a1-1", size_bytes)
        node.take("p", nodes.PullObject(X, segment))

        ((asker, answer),) = await node.answers(1)

        assert asker == "p" and answer.segment is not None, answer
        expected = Segment(COPY, segment.capacity, NODE, "", segment.layout)
        assert answer.segment == expected
        assert node.read(answer.segment) == data
        assert node.store.copies.pins == {X: {"p"}}

    data = write_value(there, "a1-1", size_bytes)
    with sender(there) as source:
        run(case, folder=here)


def test_two_askers_share_one_pull_and_pin_the_copy_each(
    here: Path, there: Path
) -> None:
    async def case(node: PullingNode) -> None:
        node.table(source.info())
        segment = segment_of(source, "a1-1", MIB)
        for asker in "pq":
            node.take(asker, nodes.PullObject(X, segment))
        await node.answers(2)
        assert [asker for asker, _ in node.sent] == ["p", "q"]
        # The sender opened the value once: a second pull would hang.
        node.take("p", nodes.UnpinCopies([X]))
        node.take("r", nodes.PullObject(X, segment))
        await node.answers(3)
        assert node.store.copies.pins == {X: {"q", "r"}}

        node.take("q", nodes.FreeCopies([X]))
        assert (here / COPY).exists()
        node.take("q", nodes.UnpinCopies([X]))
        node.take("r", nodes.UnpinCopies([X]))
        assert not (here / COPY).exists()

    write_value(there, "a1-1", MIB)
    with sender(there, block_after=1) as source:
        run(case, folder=here)


@pytest.mark.slow
def test_a_killed_sender_is_replaced_by_another(here: Path, there: Path) -> None:
    size_bytes = 48 * MIB

    async def case(node: PullingNode) -> None:
        node.table(first.info(), second.info())
        segment = segment_of(first, "a1-1", size_bytes)
        node.take("p", nodes.PullObject(X, segment, [second.node_id]))
        pull = node.service.pulls.pulls[X]
        await until(lambda: pull.arrived_bytes > 0)
        assert not node.sent
        first.kill()

        ((_, answer),) = await node.answers(1)

        assert answer.segment is not None, answer
        assert node.read(answer.segment) == data

    data = write_value(there, "a1-1", size_bytes)
    (there / COPY).write_bytes(data)
    # The first one sends nothing: it hangs when it opens the value.
    with (
        sender(there, 1, block_after=0) as first,
        sender(there, 2) as second,
    ):
        run(case, folder=here)


@pytest.mark.slow
def test_without_another_source_the_pull_fails_with_the_reason(
    here: Path, there: Path
) -> None:
    async def case(node: PullingNode) -> None:
        node.table(source.info())
        segment = segment_of(source, "a1-1", 32 * MIB)
        node.take("p", nodes.PullObject(X, segment))
        pull = node.service.pulls.pulls[X]
        await until(lambda: pull.arrived_bytes > 0)
        source.kill()

        ((_, answer),) = await node.answers(1)

        assert answer.segment is None and not answer.is_gone
        assert answer.error.startswith("node 01010101: Flight returned unavailable")
        await until(lambda: not node.service.pulls.pulls)
        assert not list(here.iterdir())
        assert node.store.free_bytes == 1 << 40

    write_value(there, "a1-1", 32 * MIB)
    # It sends one range and hangs at the next.
    with sender(there, block_after=1) as source:
        run(case, folder=here)


@pytest.mark.slow
def test_a_node_that_the_head_gives_up_ends_the_pull_at_once(
    here: Path, there: Path
) -> None:
    async def case(node: PullingNode) -> None:
        node.table(source.info())
        segment = segment_of(source, "a1-1", MIB)
        node.take("p", nodes.PullObject(X, segment))
        await until(lambda: bool(node.service.pulls.pulls[X].running))

        node.table(source.info(alive=False, death="its host lost power"))
        ((_, answer),) = await node.answers(1)
        assert answer.error == "node 01010101: its host lost power"
        assert answer.is_gone
        source.kill()  # Nothing less ends a call that it has not begun to answer.
        await until(lambda: not node.service.pulls.pulls)

        node.take("p", nodes.PullObject(X, segment))
        assert node.sent[1][1] == answer

    write_value(there, "a1-1", MIB)
    with sender(there, block_after=0) as source:
        run(case, folder=here)


def test_a_value_that_the_source_does_not_have_is_gone(here: Path, there: Path) -> None:
    async def case(node: PullingNode) -> None:
        node.table(source.info())
        segment = segment_of(source, "a1-1", MIB)
        node.take("p", nodes.PullObject(X, segment))
        ((_, answer),) = await node.answers(1)
        assert answer.is_gone
        assert answer.error == "node 01010101: the node has no value a1-1"

    with sender(there) as source:
        run(case, folder=here)


def test_a_full_store_refuses_before_anything_is_received(
    here: Path, there: Path
) -> None:
    async def case(node: PullingNode) -> None:
        node.table(source.info())
        segment = segment_of(source, "a1-1", MIB)
        node.take("p", nodes.PullObject(X, segment))
        ((_, answer),) = await node.answers(1)
        assert answer.segment is None and not answer.is_gone
        assert answer.error == ("the store here is full: 1048576 wanted, 1000 free")
        assert not list(here.iterdir())

    # It would hang if it were asked.
    with sender(there, block_after=0) as source:
        run(case, folder=here, limit_bytes=1000)


@pytest.mark.slow
def test_the_end_of_an_asker_stops_its_pull(here: Path, there: Path) -> None:
    async def case(node: PullingNode) -> None:
        node.table(source.info())
        segment = segment_of(source, "a1-1", MIB)
        node.take("p", nodes.PullObject(X, segment))
        await until(lambda: bool(node.service.pulls.pulls[X].running))

        node.service.peer_gone("p")
        source.kill()  # Nothing less ends a call that it has not begun to answer.

        await until(lambda: not node.service.pulls.pulls)
        assert not node.sent and not list(here.iterdir())

    write_value(there, "a1-1", MIB)
    with sender(there, block_after=0) as source:
        run(case, folder=here)


def test_a_wrong_description_is_refused(here: Path) -> None:
    async def case(node: PullingNode) -> None:
        wrong = Segment("a1-1", 4096, "ff" * 28, "", [0, 5000])
        node.take("p", nodes.PullObject(X, wrong))
        ((_, answer),) = await node.answers(1)
        assert answer.error.startswith("its description is wrong")

    run(case, folder=here)


def test_an_unknown_node_is_refused_after_a_while(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(node: PullingNode) -> None:
        unknown = Segment("a1-1", 4096, "ff" * 28, "", [0, 10])
        node.take("p", nodes.PullObject(X, unknown))
        assert not node.sent
        ((_, answer),) = await node.answers(1)
        assert answer.error == "node ffffffff is not known here"
        assert not answer.is_gone

    monkeypatch.setattr(pull_service, "JOIN_S", 0.01)
    run(case, folder=here)


def test_a_pull_waits_for_a_node_that_has_just_joined(here: Path, there: Path) -> None:
    async def case(node: PullingNode) -> None:
        joined = source.info()
        joined.flight_address = ""
        node.table(joined)
        node.take("p", nodes.PullObject(X, segment_of(source, "a1-1", MIB)))
        assert not node.sent

        node.table(source.info())
        ((_, answer),) = await node.answers(1)
        assert answer.segment is not None, answer

    write_value(there, "a1-1", MIB)
    with sender(there) as source:
        run(case, folder=here)


def test_the_node_hears_where_its_server_listens(here: Path) -> None:
    async def case(node: PullingNode) -> None:
        await until(lambda: bool(node.flight_address))
        host, _, port = node.flight_address.partition(":")
        assert host == "127.0.0.1" and int(port) > 0

    run(case, folder=here)


def test_a_value_of_this_node_needs_no_pull(here: Path) -> None:
    async def case(node: PullingNode) -> None:
        own = Segment("a1-1", 4096, NODE, "", [0, 10])
        node.take("p", nodes.PullObject(X, own))
        assert node.sent == [("p", nodes.ObjectPulled(X, own))]

    run(case, folder=here)


def test_a_node_that_ends_while_flight_starts_listens_no_more(here: Path) -> None:
    async def case(node: PullingNode) -> None:
        await node.service.stop()

    before = listening()
    run(case, folder=here)
    # The thread that starts it is joined at the end of the loop.
    assert listening() == before


def listening() -> int:
    connections = psutil.Process().net_connections("tcp")
    return sum(one.status == psutil.CONN_LISTEN for one in connections)
