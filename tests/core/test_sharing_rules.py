"""Rules that hold between concurrent calls: what stays alive, and what waits."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rayshim as ray
from live_session import LARGE, Keeper, large, start, wait_until, work
from rayshim import exceptions
from rayshim._core import session as sessions

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    ray.shutdown()


@ray.remote(concurrency_groups={"slow": 1, "quick": 1}, num_cpus=0)
class Groups:
    """Keeps what a call of one group brings while another group looks at it."""

    @ray.method(concurrency_group="slow")
    def block(self, seconds: float) -> None:
        time.sleep(seconds)

    @ray.method(concurrency_group="slow")
    def keep(self, refs: list[Any]) -> None:
        self.refs = refs

    @ray.method(concurrency_group="quick")
    def look(self, refs: Any) -> int:
        return 1

    def read(self) -> int:
        return int(ray.get(self.refs[0]).nbytes)


@ray.remote
def child(refs: list[Any], seconds: float) -> int:
    time.sleep(seconds)
    return int(ray.get(refs[0]).nbytes)


@ray.remote
def parent(refs: Any, seconds: float) -> Any:
    if not seconds:
        return None
    ref = child.remote(refs, 2 * seconds)
    ray.get(work.remote(seconds))
    return [ref]


def test_a_later_call_that_ends_first_keeps_what_an_earlier_one_brought() -> None:
    start(1)
    groups = Groups.remote()
    ray.get(groups.look.remote(0))
    ref = ray.put(large())
    blocked, kept = groups.block.remote(0.4), groups.keep.remote([ref])
    ray.get(groups.look.remote([ref]))
    ray.get([blocked, kept])
    del ref
    gc.collect()
    time.sleep(0.8)  # long enough for a release that must not come
    assert ray.get(groups.read.remote(), timeout=10) == LARGE


def test_calls_given_back_keep_what_the_running_one_lent_on() -> None:
    start(4, prestart_executors=-1)
    for _ in range(3):
        ray.get([parent.remote(None, 0) for _ in range(100)])
        ref = ray.put(large())
        refs = [parent.remote([ref], 0.2)] + [
            parent.remote([ref], 0) for _ in range(20)
        ]
        (inner,) = ray.get(refs)[0]
        del ref, refs
        gc.collect()
        assert ray.get(inner, timeout=10) == LARGE


def test_two_actors_that_handed_a_reference_to_each_other_let_it_go() -> None:
    start(1)
    first, second = Keeper.remote(), Keeper.remote()
    ref = ray.put(large())
    ray.get([first.keep.remote([ref]), second.keep.remote([ref])])
    del ref
    ray.get(first.hand_to.remote(second))
    ray.get(second.hand_to.remote(first))
    ray.get([first.keep.remote(None), second.keep.remote(None)])

    def is_freed() -> bool:
        gc.collect()
        assert sessions.session is not None and sessions.session.peer is not None
        entries = list(sessions.session.peer.objects.entries.values())
        return not any(
            not e.owner and e.value is not None and e.value.segment for e in entries
        )

    wait_until(is_freed)


def test_a_get_in_a_thread_ends_with_the_session() -> None:
    start(1)
    ref = work.remote(60)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            ray.get(ref)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.2)
    ray.shutdown()
    thread.join(5)
    assert not thread.is_alive()
    assert isinstance(errors[0], exceptions.RayError)


def test_short_calls_do_not_wait_behind_a_long_one_on_a_warm_lease() -> None:
    start(3, prestart_executors=-1)
    for _ in range(3):
        ray.get([work.remote(0) for _ in range(100)])  # calls are cheap, so far
        longs = [work.remote(2.0) for _ in range(2)]
        begun = time.monotonic()
        shorts = [work.remote(0.001) for _ in range(40)]
        # work() tells when it ended.
        last = max(ray.get(shorts)) - begun
        ray.get(longs)
        assert last < 1.5, "a short call waited for a long one"
