"""Leases as tasks of Dask's scheduler: their states, their moves, and other tasks.

The head and the scheduler are real, the nodes are fake. What is true with Dask has to
be true without, so that most tests run both ways.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lease_world import World, wait_for
from rayshim.adapters.raylet.head_leases import ARRIVAL_S
from rayshim.adapters.wire import messages as wire

Story = Callable[[World], Awaitable[None]]


@pytest.fixture(params=["dask", "plain"])
def play(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Runs a story with Dask's scheduler and without."""

    async def run(story: Story) -> None:
        world = World()
        if request.param == "dask":
            await world.start_dask()
        try:
            await story(world)
        finally:
            await world.close()

    return lambda story: asyncio.run(run(story))


def with_dask(story: Story) -> None:
    async def run() -> None:
        world = World()
        try:
            await story(world)
        finally:
            await world.close()

    asyncio.run(run())


def actor(name: bytes, **options: Any) -> wire.RequestLease:
    return wire.RequestLease(
        name,
        b"job",
        name.decode(),
        {"CPU": 1.0},
        {},
        0,
        fixed=True,
        holder="actor:1",
        **options,
    )


def test_the_life_of_a_lease(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        a, b = await world.add("a"), await world.add("b")
        a.load(0)
        b.load(0)
        a.ask(b"one")
        assert world.states() == {"one": ("no-worker", "")}
        b.load(1)
        assert a.placed() == [(b"one", b.address)]
        assert world.states() == {"one": ("processing", "b")}
        b.load(1, arrived=[b"one"])
        b.load(0, granted=[b"one"])
        assert world.states() == {"one": ("long-running", "b")}
        b.load(1, ended=[b"one"])
        assert world.states() == {}

    play(story)


def test_waiting_leases_get_room_in_the_order_of_asking(
    play: Callable[[Story], None],
) -> None:
    async def story(world: World) -> None:
        a, b = await world.add("a", 2), await world.add("b", 4)
        a.load(0)
        b.load(0)
        for name, cpus in ((b"one", 1.0), (b"two", 2.0), (b"three", 1.0)):
            a.ask(name, resources={"CPU": cpus})
        b.load(1)
        assert a.placed() == [(b"one", b.address)]
        b.load(0, arrived=[b"one"], granted=[b"one"])
        b.load(2)
        assert a.placed() == [(b"two", b.address)]
        b.load(0, arrived=[b"two"], granted=[b"two"])
        b.load(1)
        assert a.placed() == [(b"three", b.address)]

    play(story)


def test_a_lease_granted_by_its_asker_is_forgotten(
    play: Callable[[Story], None],
) -> None:
    async def story(world: World) -> None:
        a = await world.add("a")
        a.load(0)
        a.ask(b"one")
        world.placer.cancel(a.node_id, b"one")
        assert world.states() == {}

    play(story)


def test_a_node_that_cannot_grant_is_relieved(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        a, b = await world.add("a"), await world.add("b")
        a.load(0)
        a.ask(b"one")
        assert a.placed() == [(b"one", b.address)]
        # Somebody else was faster.
        b.load(0, arrived=[b"one"])
        b.ask(b"one", hops=1)
        assert world.states() == {"one": ("processing", "b")}
        # Nobody has room; what a told before it was left counts no more.
        assert b.placed() == []
        c = await world.add("c")
        assert b.placed() == [(b"one", c.address)]
        assert world.states() == {"one": ("processing", "c")}
        assert world.placer.task_rows()[0]["hops"] == 2
        c.load(0, arrived=[b"one"], granted=[b"one"])
        b.load(0, ended=[b"one"])  # It left b, which is no news.
        assert world.states() == {"one": ("long-running", "c")}

    play(story)


def test_a_lease_goes_home_when_home_has_room_again(
    play: Callable[[Story], None],
) -> None:
    async def story(world: World) -> None:
        a, b = await world.add("a"), await world.add("b")
        a.load(0)
        a.ask(b"one")
        b.load(0, arrived=[b"one"])
        b.ask(b"one", hops=1)
        assert b.placed() == []
        a.load(1)
        assert b.placed() == [(b"one", a.address)]

    play(story)


def test_a_node_that_grants_while_its_lease_is_moved_keeps_it(
    play: Callable[[Story], None],
) -> None:
    async def story(world: World) -> None:
        a, b, c = await world.add("a"), await world.add("b"), await world.add("c")
        a.load(0)
        c.load(0)
        a.ask(b"one")
        b.load(0, arrived=[b"one"])
        b.ask(b"one", hops=1)
        c.load(1)
        assert b.placed() == [(b"one", c.address)]
        world.placer.cancel(b.node_id, b"one")  # b had room meanwhile.
        b.load(0, granted=[b"one"])
        assert world.states() == {"one": ("long-running", "b")}

    play(story)


def test_a_request_that_never_comes_is_given_up(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        a, b = await world.add("a"), await world.add("b")
        a.load(0)
        a.ask(b"one")
        assert world.states() == {"one": ("processing", "b")}
        world.server.ahead_s = ARRIVAL_S + 0.1
        b.load(1)
        assert world.states() == {}

    play(story)


def test_a_lease_whose_node_died_is_asked_for_anew_by_its_owner(
    play: Callable[[Story], None],
) -> None:
    async def story(world: World) -> None:
        a, b = await world.add("a"), await world.add("b")
        a.load(0)
        a.ask(b"one")
        a.ask(b"two")
        assert world.states() == {"one": ("processing", "b"), "two": ("no-worker", "")}
        b.die()
        assert world.states() == {"two": ("no-worker", "")}
        c = await world.add("c")
        assert a.placed() == [(b"one", b.address), (b"two", c.address)]

    play(story)


def test_an_actor_whose_node_died_before_it_ran_goes_elsewhere(
    play: Callable[[Story], None],
) -> None:
    async def story(world: World) -> None:
        a, b = await world.add("a"), await world.add("b")
        world.placer.place(actor(b"one"), a.node_id)
        assert [m.lease_id for m in a.inbox if isinstance(m, wire.RequestLease)]
        assert world.states() == {"one": ("processing", "a")}
        a.die()
        assert world.states() == {"one": ("processing", "b")}
        world.placer.granted(b.node_id, b"one")
        assert world.states() == {"one": ("long-running", "b")}
        assert not world.placer.knows(b"one")
        b.die()
        assert world.states() == {}

    play(story)


def test_an_actor_that_waits_is_taken_back_before_it_goes_elsewhere(
    play: Callable[[Story], None],
) -> None:
    async def story(world: World) -> None:
        a = await world.add("a")
        a.load(0)
        world.placer.place(actor(b"one"), "")
        a.load(0, arrived=[b"one"], waiting=[b"one"])
        assert world.states() == {"one": ("processing", "a")}
        await world.add("b")
        assert [m.lease_id for m in a.inbox if isinstance(m, wire.CancelLease)] == [
            b"one"
        ]
        assert world.states() == {"one": ("processing", "a")}
        assert world.placer.rejected(a.node_id, b"one", "cancelled")
        assert world.states() == {"one": ("processing", "b")}

    play(story)


def test_a_restarted_head_hears_of_leases_that_run(
    play: Callable[[Story], None],
) -> None:
    async def story(world: World) -> None:
        a = await world.add("a")
        a.load(0, granted=[b"one"])
        assert list(world.states().values()) == [("long-running", "a")]
        a.load(1, ended=[b"one"])
        assert world.states() == {}

    play(story)


def test_a_suspect_node_gets_nothing(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        a, b = await world.add("a"), await world.add("b")
        a.load(0)
        world.server.ahead_s = world.nodes.machine.timeout_s * 0.4
        world.nodes.look()
        a.load(0)
        world.server.ahead_s = world.nodes.machine.timeout_s * 0.6
        world.nodes.look()
        if world.scheduler:
            ws = world.scheduler.workers["rayshim-node://" + b.node_id]
            assert ws.status.name == "paused"
        a.ask(b"one")
        assert world.states() == {"one": ("no-worker", "")}
        b.load(1)
        assert world.states() == {"one": ("processing", "b")}

    play(story)


def test_leases_become_tasks_when_dask_is_there() -> None:
    async def story(world: World) -> None:
        a, b = await world.add("a"), await world.add("b", 2)
        a.load(0)
        for name in (b"one", b"two", b"three"):
            a.ask(name)
        b.load(0, arrived=[b"one", b"two"], granted=[b"one"])
        expected = {
            "one": ("long-running", "b"),
            "two": ("processing", "b"),
            "three": ("no-worker", ""),
        }
        assert world.states() == expected
        a.inbox.clear()
        await world.start_dask()
        assert world.states() == expected
        assert a.placed() == [], "what was sent is not sent again"
        b.load(0, granted=[b"two"])
        assert world.states()["two"] == ("long-running", "b")
        node = world.scheduler.workers["rayshim-node://" + b.node_id]
        assert node.used_resources["CPU"] == 20_000

    with_dask(story)


def test_stealing_is_what_moves_them() -> None:
    async def story(world: World) -> None:
        await world.start_dask()
        a, b = await world.add("a"), await world.add("b")
        a.load(0)
        a.ask(b"one")
        b.load(0, arrived=[b"one"])
        b.ask(b"one", hops=1)
        stealing = world.scheduler.extensions["stealing"]
        assert [ts.state for ts in stealing.stealable] == ["processing"]
        c = await world.add("c")
        assert stealing.count == 1 and not stealing.stealable
        assert b.placed() == [(b"one", c.address)]

    with_dask(story)


def test_tasks_of_dask_and_leases_do_not_meet() -> None:
    async def story(world: World) -> None:
        from distributed import Client, Worker

        await world.start_dask()
        a = await world.add("a", 4)
        b = await world.add("b", 4)
        async with Client(world.scheduler.address, asynchronous=True) as client:
            future = client.submit(abs, -1)
            many = client.map(abs, range(50))
            waiting = (world.scheduler.unrunnable, world.scheduler.queued)
            await wait_for(lambda: sum(map(len, waiting)) == 51)
            a.load(0)
            b.load(0)
            a.ask(b"one")
            worker = await Worker(world.scheduler.address, nthreads=1, dashboard=False)
            try:
                assert await future == 1
                assert await client.gather(many) == list(range(50))
                named = client.submit(
                    abs, -2, workers=["10.0.0.1"], allow_other_workers=True
                )
                assert await named == 2
                assert world.states() == {"one": ("no-worker", "")}
                assert world.scheduler.adaptive_target() <= 1
                b.load(4)
                assert world.states() == {"one": ("processing", "b")}
                for node in (a, b):
                    state = world.scheduler.workers["rayshim-node://" + node.node_id]
                    assert not state.has_what
            finally:
                await worker.close()

    with_dask(story)


def test_leases_outlive_a_restart_of_dask_by_a_user() -> None:
    async def story(world: World) -> None:
        from distributed import Client

        await world.start_dask()
        a, b = await world.add("a"), await world.add("b")
        a.load(0)
        a.ask(b"one")
        b.load(0, arrived=[b"one"], granted=[b"one"])
        a.ask(b"two")
        async with Client(world.scheduler.address, asynchronous=True) as client:
            await client.restart(wait_for_workers=False)
        tasks: Any = world.placer.engine.tasks
        await wait_for(lambda: tasks.has(b"one") and tasks.has(b"two"))
        assert world.states() == {
            "one": ("long-running", "b"),
            "two": ("no-worker", ""),
        }

    with_dask(story)


def test_many_nodes_that_dask_drops_are_entered_anew_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        for name in "abc":
            await world.add(name)
        await world.start_dask()
        attached = []
        attach = world.placer.attach
        monkeypatch.setattr(
            world.placer,
            "attach",
            lambda tasks: attached.append(tasks) or attach(tasks),
        )
        tasks: Any = world.placer.engine.tasks
        for name in "abc":
            tasks.nodes._comms["rayshim-node://" + name * 56].abort()
        await wait_for(lambda: attached)
        assert len(attached) == 1

    with_dask(story)


def test_leases_go_on_without_dask_when_it_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        await world.start_dask()
        a, b = await world.add("a"), await world.add("b")
        a.load(0)

        def fail(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("out of order")

        monkeypatch.setattr(world.scheduler, "new_task", fail)
        with caplog.at_level(logging.ERROR):
            a.ask(b"one")
        assert "leases are placed without it from now on" in caplog.text
        assert a.placed() == [(b"one", b.address)]
        assert world.placer.engine.tasks is None

    with_dask(story)


def test_a_node_that_joins_is_not_compared_with_all_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        await world.start_dask()
        a = await world.add("a")
        a.load(0)
        for number in range(50):
            a.ask(b"%d" % number)
        looked = []
        valid_workers = world.scheduler.valid_workers
        monkeypatch.setattr(
            world.scheduler,
            "valid_workers",
            lambda ts: looked.append(ts) or valid_workers(ts),
        )
        await world.add("b", 2)
        assert len(a.placed()) == 2
        assert len(looked) <= 4

    with_dask(story)


def test_nothing_waits_too_long_or_fails_too_often() -> None:
    async def story(world: World) -> None:
        await world.start_dask()
        assert world.scheduler.no_workers_timeout is None
        nodes = [await world.add("a")]
        world.placer.place(actor(b"one"), "")
        for name in "bcdefghij":
            nodes.append(await world.add(name))
            nodes[-2].die()
            assert world.states() == {"one": ("processing", name)}
        assert world.scheduler.allowed_failures < len(nodes)

    with_dask(story)
