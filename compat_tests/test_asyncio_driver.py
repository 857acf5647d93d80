"""Refs in the driver's asyncio code."""

from __future__ import annotations

import asyncio
import time

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def nap(seconds, value=None):
    time.sleep(seconds)
    return value


@ray.remote
def fail():
    raise ValueError("boom")


def test_await_a_ref():
    async def main():
        return await ray.put(1), await nap.remote(0, "x")

    assert asyncio.run(main()) == (1, "x")


def test_await_twice():
    async def main():
        ref = nap.remote(0, "x")
        return await ref, await ref

    assert asyncio.run(main()) == ("x", "x")


def test_await_raises_the_error():
    async def main():
        with pytest.raises(ValueError, match="boom"):
            await fail.remote()

    asyncio.run(main())


def test_gather():
    async def main():
        return await asyncio.gather(*[nap.remote(0, i) for i in range(10)])

    assert asyncio.run(main()) == list(range(10))


def test_gather_returns_exceptions():
    async def main():
        return await asyncio.gather(fail.remote(), ray.put(1), return_exceptions=True)

    error, value = asyncio.run(main())
    assert isinstance(error, ValueError)
    assert value == 1


def test_gather_raises_the_first_error():
    async def main():
        await asyncio.gather(fail.remote(), ray.put(1))

    with pytest.raises(ValueError):
        asyncio.run(main())


def test_wait_for_times_out():
    async def main():
        ref = nap.remote(0.5, "late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ref, 0.02)
        return await ref

    assert asyncio.run(main()) == "late"


def test_wait_on_wrapped_futures():
    async def main():
        slow = nap.remote(5)
        futures = [asyncio.wrap_future(r.future()) for r in (nap.remote(0), slow)]
        done, pending = await asyncio.wait(
            futures, return_when=asyncio.FIRST_COMPLETED, timeout=20
        )
        ray.cancel(slow, force=True)
        return len(done), len(pending)

    assert asyncio.run(main()) == (1, 1)


def test_wait_on_ensure_future():
    async def main():
        futures = [asyncio.ensure_future(nap.remote(0, i)) for i in range(3)]
        done, _ = await asyncio.wait(futures)
        return sorted(future.result() for future in done)

    assert asyncio.run(main()) == [0, 1, 2]


def test_as_completed():
    async def main():
        refs = [nap.remote(0, i) for i in range(4)]
        return sorted([await item for item in asyncio.as_completed(refs)])

    assert asyncio.run(main()) == [0, 1, 2, 3]


def test_task_group():
    async def fetch(i):
        return await nap.remote(0, i)

    async def main():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetch(i)) for i in range(3)]
        return [task.result() for task in tasks]

    assert asyncio.run(main()) == [0, 1, 2]


def test_asyncio_timeout_context():
    async def main():
        async with asyncio.timeout(20):
            return await nap.remote(0, "x")

    assert asyncio.run(main()) == "x"


def test_waiting_does_not_block_the_loop():
    async def main():
        ticks = 0
        future = asyncio.ensure_future(nap.remote(0.3, "x"))
        while not future.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(main()) > 5


def test_cancelling_the_asyncio_future():
    async def main():
        ref = nap.remote(0.3, "x")
        future = asyncio.ensure_future(ref)
        await asyncio.sleep(0.01)
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        return await ref

    assert asyncio.run(main()) == "x"


def test_get_still_works_inside_a_coroutine():
    async def main():
        return ray.get(nap.remote(0, "x"))

    assert asyncio.run(main()) == "x"


def test_remote_calls_from_a_coroutine():
    async def main():
        ref = ray.put(1)
        for _ in range(5):
            ref = nap.remote(0, ref)
        return await ref

    # A nested ref result is not flattened, an argument is resolved.
    assert asyncio.run(main()) == 1


def test_second_loop_in_the_same_process():
    async def main():
        return await nap.remote(0, "x")

    assert [asyncio.run(main()) for _ in range(3)] == ["x"] * 3


def test_loop_in_another_thread():
    import threading

    got = []

    async def main():
        got.append(await nap.remote(0, "x"))

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(30)
    assert got == ["x"]


def test_many_awaits_at_once():
    async def main():
        return await asyncio.gather(*[nap.remote(0, i) for i in range(200)])

    assert asyncio.run(main()) == list(range(200))


def test_to_thread_get():
    async def main():
        return await asyncio.to_thread(ray.get, nap.remote(0, "x"))

    assert asyncio.run(main()) == "x"
