"""Waits that look like deadlocks and end all the same: none may be reported.

Each shape stands for longer than a report takes (``deadlock_report_s`` is short here),
and gives its value in the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayshim as ray
from rayshim.exceptions import DeadlockError, GetTimeoutError

pytestmark = pytest.mark.slow

#: A wait is looked at after this long, ...
REPORT_S = 0.2
#: ... and a deadlock is reported well within this time.
LONG_S = 1.2


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.init(
        num_cpus=2,
        num_gpus=1,
        resources={"slot": 2},
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"dask": "off", "deadlock_report_s": REPORT_S},
    )
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
def slow(seconds: float = LONG_S) -> int:
    time.sleep(seconds)
    return 1


@ray.remote(num_cpus=0)
class Link:
    def __init__(self) -> None:
        self.next: Any = None

    def join(self, other: Any) -> None:
        self.next = other

    def ask(self) -> Any:
        return ray.get(self.next.ask.remote())

    def ask_for(self, seconds: float) -> str:
        try:
            ray.get(self.next.ask_for.remote(60), timeout=seconds)
        except DeadlockError:
            return "deadlock"
        except GetTimeoutError:
            return "timeout"
        return "value"

    def ask_any(self) -> int:
        refs = [self.next.ask_any_back.remote(), slow.remote()]
        return len(ray.wait(refs, num_returns=1)[0])

    def ask_any_back(self) -> int:
        return ray.get(self.next.one.remote())

    def ask_back(self) -> int:
        return ray.get(self.next.ask_slow.remote())

    def ask_slow(self) -> int:
        return ray.get(slow.remote())

    def ask_myself(self) -> int:
        time.sleep(0.5)
        return ray.get(ray.get_runtime_context().current_actor.ask_slow.remote())

    def one(self) -> int:
        return 1

    def in_thread(self) -> int:
        """Another thread waits for this very actor; the call itself goes on."""
        me = ray.get_runtime_context().current_actor
        got: list[int] = []
        thread = threading.Thread(target=lambda: got.append(ray.get(me.one.remote())))
        thread.start()
        self.thread, self.got = thread, got
        time.sleep(LONG_S)
        return 1

    def join_thread(self) -> int:
        self.thread.join()
        return self.got[0]


def pair(**options: Any) -> list[Any]:
    links = [Link.options(**options).remote() for _ in range(2)]
    ray.get([links[0].join.remote(links[1]), links[1].join.remote(links[0])])
    return links


def test_slow_task(session: None) -> None:
    assert ray.get(slow.remote()) == 1


def test_chain_of_waits(session: None) -> None:
    assert ray.get(pair()[0].ask_back.remote()) == 1


def test_cycle_of_waits_with_a_timeout(session: None) -> None:
    first, second = pair()
    assert ray.get(first.ask_for.remote(LONG_S)) == "timeout"
    ray.kill(second)


def test_wait_for_any_of_two_of_which_one_comes(session: None) -> None:
    assert ray.get(pair()[0].ask_any.remote()) == 1


def test_actor_with_another_thread(session: None) -> None:
    link = Link.options(max_concurrency=2).remote()
    assert ray.get(link.ask_myself.remote()) == 1


def test_threads_that_are_taken_for_a_while(session: None) -> None:
    """All threads but one wait for calls of the actor; that one ends later."""
    link = Link.options(max_concurrency=2).remote()
    busy = link.ask_slow.remote()
    assert ray.get(link.ask_myself.remote()) == 1
    assert ray.get(busy) == 1


def test_thread_of_an_actor_that_waits_for_the_actor(session: None) -> None:
    link = Link.remote()
    assert ray.get(link.in_thread.remote()) == 1
    assert ray.get(link.join_thread.remote()) == 1


def test_other_holder_of_the_resource_gives_it_back(session: None) -> None:
    """The outer task holds one slot; a slow task holds the other, for a while."""

    @ray.remote(num_cpus=0, resources={"slot": 1})
    def holder(started: float) -> int:
        time.sleep(2 * LONG_S)
        return 1

    @ray.remote(num_cpus=0, resources={"slot": 1})
    def inner() -> int:
        return 1

    @ray.remote(num_cpus=0, resources={"slot": 1})
    def outer() -> int:
        return ray.get(inner.remote())

    busy = holder.remote(0.0)
    assert ray.get(outer.remote()) == 1
    assert ray.get(busy) == 1


def test_idle_actor_that_holds_the_resource(session: None) -> None:
    """The actor is free to end, and does."""

    @ray.remote(num_cpus=0, num_gpus=1)
    class Idle:
        def one(self) -> int:
            return 1

    @ray.remote(num_cpus=0, num_gpus=1)
    def needs_gpu() -> int:
        return 1

    idle = Idle.remote()
    assert ray.get(idle.one.remote()) == 1
    ref = needs_gpu.remote()
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(ray.get(ref)))
    thread.start()
    time.sleep(LONG_S)
    del idle
    thread.join(10)
    assert got == [1]


def test_nested_tasks_that_give_their_cpus_back(session: None) -> None:
    @ray.remote(num_cpus=2)
    def down(depth: int) -> int:
        if not depth:
            time.sleep(LONG_S)
            return 1
        return ray.get(down.remote(depth - 1))

    assert ray.get(down.remote(4)) == 1


def test_program_that_kills_one_of_the_circle(session: None) -> None:
    """The program runs code of its own, and ends the circle itself."""
    first, second = pair()
    ref = first.ask.remote()
    time.sleep(2 * LONG_S)
    ray.kill(second)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(ref)
    del first


def test_async_actor_with_a_slot_left(session: None) -> None:
    @ray.remote(num_cpus=0)
    class Signal:
        def __init__(self) -> None:
            self.event = asyncio.Event()

        async def wait(self) -> int:
            await self.event.wait()
            return 1

        async def send(self) -> None:
            self.event.set()

        async def wait_and_send(self) -> int:
            me = ray.get_runtime_context().current_actor
            asyncio.get_running_loop().call_later(LONG_S, self.event.set)
            return await me.wait.remote()

    assert ray.get(Signal.options(max_concurrency=2).remote().wait_and_send.remote())
    signal = Signal.remote()
    ref = signal.wait.remote()
    ray.wait([ref], timeout=LONG_S)
    signal.send.remote()
    assert ray.get(ref) == 1


def test_async_wait_with_a_timeout(session: None) -> None:
    @ray.remote(num_cpus=0)
    class Loop:
        async def work(self) -> str:
            me = ray.get_runtime_context().current_actor
            try:
                async with asyncio.timeout(LONG_S):
                    await me.one.remote()
            except TimeoutError as error:
                return type(error).__name__
            return "value"

        async def one(self) -> int:
            return 1

    loop = Loop.options(max_concurrency=1).remote()
    assert ray.get(loop.work.remote()) == "TimeoutError"


def test_death_of_a_waiting_process(session: None, tmp_path: Path) -> None:
    """The process whose wait was told of is killed; the task runs again and ends."""

    @ray.remote(num_cpus=0, max_retries=1)
    def waits(path: str, refs: list[Any]) -> int:
        if not os.path.exists(path):
            open(path, "w").close()
            threading.Timer(LONG_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return ray.get(refs[0])

    value = slow.remote(2 * LONG_S)
    refs = [waits.remote(str(tmp_path / str(n)), [value]) for n in range(2)]
    assert ray.get(refs) == [1, 1]


def test_generator_that_is_slow(session: None) -> None:
    @ray.remote(num_cpus=0, num_returns="streaming")
    def items() -> Iterator[int]:
        for number in range(2):
            time.sleep(LONG_S)
            yield number

    assert [ray.get(ref) for ref in items.remote()] == [0, 1]


def test_generator_that_waits_for_its_consumer(session: None) -> None:
    @ray.remote(
        num_cpus=0, num_returns="streaming", _generator_backpressure_num_objects=1
    )
    def items() -> Iterator[int]:
        yield from range(3)

    @ray.remote(num_cpus=0)
    def consume() -> list[int]:
        got = []
        for ref in items.remote():
            time.sleep(LONG_S / 2)
            got.append(ray.get(ref))
        return got

    assert ray.get(consume.remote()) == [0, 1, 2]
