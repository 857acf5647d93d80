"""References are counted wherever they go: the bytes go within a second of the last.

What counts is what lies in the store folder, whoever owns it.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from live_session import (
    DEADLINE_S,
    LARGE,
    Keeper,
    echo,
    is_running,
    large,
    make_large,
    start_ready,
    wait_until,
)
from rayshim import exceptions
from rayshim._core import session as sessions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[sessions.Session]:
    """One session of 3 CPUs for the tests that leave it as it was."""
    yield start_ready(3, pending_warn_s=5.0)
    ray.shutdown()


#: Files that an earlier test left for good.
before: set[str] = set()


def values() -> list[str]:
    """Names of the files that hold a value; free ones wait for the next."""
    assert sessions.session is not None
    names = os.listdir(sessions.session.store_dir)
    return [name for name in names if "." not in name and name not in before]


def is_gone() -> None:
    gc.collect()
    wait_until(lambda: not values(), deadline_s=2.0)


def is_kept(count: int = 1, seconds: float = 0.3) -> None:
    gc.collect()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        assert len(values()) == count
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before.clear()
    before.update(values())
    yield
    is_gone()


@ray.remote
def read(value: Any) -> int:
    """Size of the value inside any number of lists and references."""
    while not hasattr(value, "nbytes"):
        value = ray.get(value) if isinstance(value, ray.ObjectRef) else value[0]
    return int(value.nbytes)


@ray.remote
def wrap(ref: Any, depth: int) -> Any:
    """References of references, each made here."""
    inner = ref[0]
    for _ in range(depth):
        inner = ray.put([inner])
    return [inner]


@ray.remote
def start_reader(refs: list[Any]) -> Any:
    """A call that outlives the one that made it."""
    return [read_later.remote(refs)]


@ray.remote
def read_later(refs: list[Any]) -> int:
    time.sleep(0.3)
    return int(ray.get(refs[0]).nbytes)


@ray.remote(num_returns="streaming")
def stream(count: int) -> Iterator[Any]:
    for _ in range(count):
        yield np.ones(LARGE // 8)


@ray.remote(num_returns="streaming")
def stream_references(count: int) -> Iterator[Any]:
    for _ in range(count):
        yield [ray.put(np.ones(LARGE // 8))]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_reference_inside_objects_of_others(depth: int) -> None:
    ref = ray.put(large())
    outer = ray.get(wrap.remote([ref], depth), timeout=DEADLINE_S)
    del ref
    is_kept()
    assert ray.get(read.remote(outer), timeout=DEADLINE_S) == LARGE
    is_kept()
    del outer


def test_a_reference_that_outlives_the_task_that_had_it() -> None:
    ref = ray.put(large())
    (later,) = ray.get(start_reader.remote([ref]), timeout=DEADLINE_S)
    del ref
    assert ray.get(later, timeout=DEADLINE_S) == LARGE


def test_a_reference_that_outlives_the_task_that_made_it() -> None:
    (ref,) = ray.get(make_put.remote(), timeout=DEADLINE_S)
    is_kept()
    assert ray.get(ref, timeout=DEADLINE_S).nbytes == LARGE
    del ref


@ray.remote
def make_put() -> list[Any]:
    return [ray.put(large())]


def test_a_reference_in_a_closure_lives_with_the_function() -> None:
    # Executors know the function as long as they live, as in Ray.
    captured = capturing(ray.put(large()))
    assert ray.get(captured.remote(), timeout=DEADLINE_S) == LARGE
    is_kept()
    assert ray.get(captured.remote(), timeout=DEADLINE_S) == LARGE
    before.update(values())


def capturing(ref: Any) -> Any:
    @ray.remote
    def captured() -> int:
        return int(ray.get(ref).nbytes)

    return captured


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_items_of_a_generator_go_with_it(taken: int) -> None:
    generator = stream.remote(3)
    items = [next(generator) for _ in range(taken)]
    ray.wait([generator.completed()], timeout=DEADLINE_S)
    is_kept(3)
    del items
    del generator


def test_references_in_items_of_a_generator() -> None:
    items = list(stream_references.remote(2))
    is_kept(2)
    inner = [ray.get(item, timeout=DEADLINE_S)[0] for item in items]
    del items
    is_kept(2)
    assert [ray.get(read.remote(ref), timeout=DEADLINE_S) for ref in inner] == [
        LARGE
    ] * 2
    del inner


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_holders_may_go_in_any_order(order: tuple[int, ...]) -> None:
    """The driver, an actor, an object around it, and the result of a call."""
    ref = ray.put(large())
    keeper = Keeper.remote()
    ray.get(keeper.keep.remote([ref]), timeout=DEADLINE_S)
    holders: dict[int, Any] = {
        0: ref,
        1: keeper,
        2: ray.put([ref]),
        3: echo.remote([ref]),
    }
    ray.wait([holders[3]], timeout=DEADLINE_S)
    del ref, keeper
    for position, number in enumerate(order):
        gc.collect()
        assert len(values()) == 1, f"gone before {order[position:]} went"
        del holders[number]


def test_an_actor_passes_a_reference_to_another_one() -> None:
    first, second = Keeper.remote(), Keeper.remote()
    ref = ray.put(large())
    ray.get(first.keep.remote([ref]), timeout=DEADLINE_S)
    del ref
    ray.get(first.hand_to.remote(second), timeout=DEADLINE_S)
    del first
    is_kept(seconds=0.6)
    assert ray.get(second.read.remote(), timeout=DEADLINE_S) == LARGE
    del second


def test_a_result_that_is_never_looked_at() -> None:
    make_large.remote()
    refs = [make_large.remote() for _ in range(3)]
    ray.wait(refs, num_returns=3, timeout=DEADLINE_S)
    del refs


def test_a_value_that_came_back_from_where_it_went() -> None:
    ref = ray.put(large())
    (back,) = ray.get(echo.remote([ref]), timeout=DEADLINE_S)
    assert back == ref
    del ref
    is_kept()
    del back


@ray.remote(num_cpus=0)
class Pid:
    def pid(self) -> int:
        return os.getpid()


@ray.remote(num_cpus=0)
class AsyncKeeper:
    async def read(self, refs: list[Any]) -> int:
        value = await refs[0]
        return int(value.nbytes)


def test_an_asyncio_actor_lets_go_by_itself() -> None:
    actor = AsyncKeeper.remote()
    ref = ray.put(large())
    assert ray.get(actor.read.remote([ref]), timeout=DEADLINE_S) == LARGE
    del ref
    is_gone()
    del actor


@pytest.mark.parametrize(
    "give",
    [
        lambda actor: ray.put([actor]),
        lambda actor: ray.put([ray.put([actor])]),
        lambda actor: echo.remote([actor]),
        lambda actor: ray.get(echo.remote([actor])),
        lambda actor: kept_by(actor),
    ],
    ids=["object", "object in an object", "result", "returned", "actor"],
)
def test_handles_are_counted_like_references(give: Callable[[Any], Any]) -> None:
    actor = Pid.remote()
    pid = ray.get(actor.pid.remote(), timeout=DEADLINE_S)
    holder = give(actor)
    if isinstance(holder, ray.ObjectRef):
        ray.wait([holder], timeout=DEADLINE_S)
    del actor
    gc.collect()
    time.sleep(0.6)
    assert is_running(pid)
    del holder
    gc.collect()
    wait_until(lambda: not is_running(pid), deadline_s=3.0)


def kept_by(actor: Any) -> Any:
    keeper = Keeper.remote()
    ray.get(keeper.keep.remote([actor]), timeout=DEADLINE_S)
    return keeper


def test_a_method_call_keeps_its_actor() -> None:
    pid = ray.get(Pid.remote().pid.remote(), timeout=DEADLINE_S)
    wait_until(lambda: not is_running(pid), deadline_s=3.0)


def test_a_reference_pickled_elsewhere_is_kept_and_said_so(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert sessions.session is not None and sessions.session.peer is not None
    objects = sessions.session.peer.objects
    objects._has_warned = False
    ref = ray.put(large())
    object_id = ref._bytes
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            (tmp_path / "ref").write_bytes(pickle.dumps(ref))
    assert caplog.text.count("is kept until the job ends") == 1
    assert "test_lifetimes_everywhere.py:" in caplog.text
    del ref
    is_kept(seconds=0.6)
    again = pickle.loads((tmp_path / "ref").read_bytes())
    assert ray.get(again, timeout=DEADLINE_S).nbytes == LARGE
    del again
    is_kept()
    for _ in range(2):  # what pickling counted
        objects.table.drop(object_id)
    objects.settle()


def test_pickling_elsewhere_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_allow_out_of_band_object_ref_serialization", "0")
    with pytest.raises(exceptions.OufOfBandObjectRefSerializationException):
        pickle.dumps(ray.put(1))
