"""Large values go within a second after their last use, and not before."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rayshim as ray
from live_session import (
    DEADLINE_S,
    LARGE,
    Keeper,
    echo,
    large,
    make_large,
    start_ready,
    wait_until,
)
from rayshim import exceptions
from rayshim._core import session as sessions

# Nearly every test waits for a sweep.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[sessions.Session]:
    """One session of 3 CPUs for the tests that leave it as it was."""
    yield start_ready(3, pending_warn_s=0.1)
    ray.shutdown()


def large_owned() -> list[Any]:
    """Entries of values in the store that this process owns."""
    assert sessions.session is not None and sessions.session.peer is not None
    entries = list(sessions.session.peer.objects.entries.values())
    return [e for e in entries if not e.owner and e.value and e.value.segment]


def wait_until_freed() -> None:
    """Large values are gone a second after the last use."""
    gc.collect()
    wait_until(lambda: not large_owned(), deadline_s=1.0)


def assert_kept(seconds: float = 0.15) -> None:
    gc.collect()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        assert large_owned(), "a value that is in use was freed"
        time.sleep(0.02)


@ray.remote
def size_of(value: Any) -> int:
    return int(value.nbytes)


@ray.remote
def read_first(refs: list[Any]) -> int:
    """Size of the value of the first reference, through any number of lists."""
    value = ray.get(refs[0])
    while isinstance(value, list):
        value = ray.get(value[0])
    return int(value.nbytes)


@ray.remote
def make_reference() -> list[Any]:
    return [ray.put(large())]


@pytest.fixture
def keepers(shared: sessions.Session) -> Iterator[list[Any]]:
    made = [Keeper.remote() for _ in range(2)]
    ray.get([one.give.remote() for one in made])
    yield made
    for one in made:
        ray.kill(one)


@pytest.fixture(autouse=True)
def _nothing_large_is_left(shared: sessions.Session) -> Iterator[None]:
    yield
    wait_until_freed()


@pytest.mark.parametrize(
    "use",
    [
        lambda ref: None,
        lambda ref: ray.get(ref).sum(),
        lambda ref: ray.get(size_of.remote(ref)),
        lambda ref: ray.get(read_first.remote([ref])),
        lambda ref: ray.get(read_first.remote([ray.put([ref])])),
        lambda ref: ray.get(echo.remote(ref)).sum(),
        lambda ref: ray.get(ray.get(echo.remote([ref]))[0]).sum(),
        lambda ref: ray.wait([ref]),
        lambda ref: ref.future().result(),
        lambda ref: ray.put([ray.put([ref])]),
        lambda ref: size_of.remote(ref),
    ],
    ids=[
        "unused",
        "get",
        "argument",
        "nested",
        "nested twice",
        "returned value",
        "returned reference",
        "wait",
        "future",
        "contained twice",
        "argument of a call nobody waits for",
    ],
)
def test_a_value_is_freed_after_its_last_use(
    shared: sessions.Session, use: Callable[[Any], Any]
) -> None:
    ref = ray.put(large())
    use(ref)
    del ref
    wait_until_freed()


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_large.remote(),
        lambda: ray.get(make_large.remote()).sum(),
        lambda: ray.get(make_reference.remote()),
        lambda: ray.get(ray.get(make_reference.remote())[0]).sum(),
        lambda: ray.get(size_of.remote(make_large.remote())),
        lambda: ray.get(read_first.remote([make_large.remote()])),
    ],
    ids=["return", "got", "reference", "its value", "argument", "nested"],
)
def test_a_returned_value_is_freed_after_its_last_use(
    shared: sessions.Session, make: Callable[[], Any]
) -> None:
    value = make()
    del value
    wait_until_freed()


def test_a_view_keeps_its_value(shared: sessions.Session) -> None:
    value = ray.get(ray.put(large()))
    part = value[:10]
    del value
    assert_kept()
    assert part.sum() == 10
    del part
    wait_until_freed()


def test_an_outer_value_keeps_the_inner_one(shared: sessions.Session) -> None:
    outer = ray.put([ray.put(large())])
    assert_kept()
    inner = ray.get(outer)
    del outer
    assert_kept()
    assert ray.get(inner[0]).nbytes == LARGE
    del inner
    wait_until_freed()


def test_an_actor_keeps_what_it_borrows(
    shared: sessions.Session, keepers: list[Any]
) -> None:
    first, _ = keepers
    ref = ray.put(large())
    ray.get(first.keep.remote([ref]))
    del ref
    assert_kept()
    assert ray.get(first.read.remote()) == LARGE
    ray.get(first.keep.remote(None))
    wait_until_freed()


def test_an_actor_passes_on_what_it_borrows(
    shared: sessions.Session, keepers: list[Any]
) -> None:
    first, second = keepers
    ref = ray.put(large())
    ray.get(first.keep.remote([ref]))
    del ref
    ray.get(first.hand_to.remote(second))
    ray.get(first.keep.remote(None))
    assert_kept()
    assert ray.get(second.read.remote()) == LARGE
    ray.get(second.keep.remote(None))
    wait_until_freed()


def test_what_an_actor_gives_back_is_kept(
    shared: sessions.Session, keepers: list[Any]
) -> None:
    first, _ = keepers
    ref = ray.put(large())
    ray.get(first.keep.remote([ref]))
    del ref
    back = ray.get(first.give.remote())
    ray.get(first.keep.remote(None))
    assert_kept()
    assert ray.get(back[0]).nbytes == LARGE
    del back
    wait_until_freed()


@pytest.mark.parametrize("no_restart", [True, False])
def test_the_death_of_an_actor_frees_what_it_borrowed(
    shared: sessions.Session, no_restart: bool
) -> None:
    actor = Keeper.options(max_restarts=1).remote()
    ref = ray.put(large())
    ray.get(actor.keep.remote([ref]))
    del ref
    assert_kept()
    ray.kill(actor, no_restart=no_restart)
    wait_until_freed()


def test_the_value_of_a_dead_owner_is_lost_with_a_reason(
    shared: sessions.Session,
) -> None:
    actor = Maker.remote()
    (ref,) = ray.get(actor.make.remote())
    assert ray.get(ref).nbytes == LARGE
    (other,) = ray.get(actor.make.remote())
    ray.kill(actor)
    with pytest.raises(exceptions.ActorDiedError):
        # A kill is on its way for a moment, in which the actor may answer.
        wait_until(lambda: ray.get(actor.make.remote(), timeout=DEADLINE_S) is None)
    with pytest.raises(exceptions.OwnerDiedError):
        ray.get(other, timeout=DEADLINE_S)


@ray.remote(num_cpus=0)
class Maker:
    def make(self) -> list[Any]:
        return [ray.put(large())]


def test_a_killed_executor_frees_its_lends(shared: sessions.Session) -> None:
    ref = ray.put(large())
    with pytest.raises(exceptions.WorkerCrashedError):
        ray.get(hold_and_die.remote([ref]), timeout=DEADLINE_S)
    del ref
    wait_until_freed()


@ray.remote(max_retries=0)
def hold_and_die(refs: list[Any]) -> None:
    ray.get(refs)
    os.kill(os.getpid(), signal.SIGKILL)
