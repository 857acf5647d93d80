"""Values whose files vanish are made again, once for all who need them."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from live_session import DEADLINE_S, start_ready, wait_until
from rayshim import exceptions
from rayshim._core import session as sessions

pytestmark = pytest.mark.slow

SIZE = 1 << 18


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[sessions.Session]:
    """One session of 3 CPUs for the tests that leave it as it was."""
    yield start_ready(3, pending_warn_s=5.0)
    ray.shutdown()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder in which each run of a call leaves a file."""
    return tmp_path


def ran(runs: Path, name: str) -> int:
    return sum(1 for path in runs.iterdir() if path.name.startswith(f"{name}-"))


def peer() -> Any:
    assert sessions.session is not None and sessions.session.peer is not None
    return sessions.session.peer


def lose(*refs: Any) -> None:
    """Remove the files of values: as if the node's memory had gone."""
    assert sessions.session is not None
    for ref in refs:
        segment = peer().objects.entries[ref._bytes].value.segment
        (Path(sessions.session.store_dir) / segment.name).unlink()
        peer().store.drop_mapping(segment.name)


def lose_everywhere(*refs: Any) -> None:
    """As if the node of the values had died: the owner knows, and no file is left."""
    lose(*refs)
    with peer().lock:
        for ref in refs:
            entry = peer().objects.entries[ref._bytes]
            segment = entry.value.segment
            peer().objects.recovering.lose(entry, segment, "as if its node had died")


@ray.remote(max_retries=2)
def make(runs: Path, name: str, *needs: Any) -> Any:
    """A large array: one more than the sum of the first elements of its arguments."""
    (runs / f"{name}-{time.monotonic_ns()}").touch()
    return np.full(SIZE // 8, 1.0 + sum(float(need[0]) for need in needs))


@ray.remote(max_retries=2, max_calls=1)
def make_and_leave(runs: Path, name: str) -> Any:
    (runs / f"{name}-{time.monotonic_ns()}").touch()
    return np.ones(SIZE // 8)


@ray.remote(max_retries=2, num_returns=2)
def make_two(runs: Path, name: str) -> Any:
    (runs / f"{name}-{time.monotonic_ns()}").touch()
    return np.ones(SIZE // 8), np.zeros(SIZE // 8)


@ray.remote
def first_of(value: Any) -> float:
    return float(value[0])


@ray.remote
def read_first(refs: list[Any]) -> float:
    return float(ray.get(refs[0])[0])


def known(*refs: Any) -> None:
    ray.wait(list(refs), num_returns=len(refs), timeout=DEADLINE_S)


def test_a_lost_result_is_made_again(runs: Path) -> None:
    ref = make.remote(runs, "a")
    known(ref)
    lose(ref)
    assert ray.get(ref, timeout=DEADLINE_S)[0] == 1.0
    assert ran(runs, "a") == 2


def test_a_value_that_nobody_asks_for_is_not_made_again(runs: Path) -> None:
    ref = make.remote(runs, "a")
    known(ref)
    lose(ref)
    assert ray.get(first_of.remote(np.ones(3)), timeout=DEADLINE_S) == 1.0
    assert ran(runs, "a") == 1
    del ref


def test_a_chain_of_five_is_made_again_from_its_beginning(runs: Path) -> None:
    refs = [make.remote(runs, "0")]
    for position in range(1, 5):
        refs.append(make.remote(runs, str(position), refs[-1]))
    known(*refs)
    lose_everywhere(*refs)
    assert ray.get(refs[-1], timeout=DEADLINE_S)[0] == 5.0
    assert [ran(runs, str(position)) for position in range(5)] == [2] * 5


def test_dropped_intermediates_are_made_again_and_go_again(runs: Path) -> None:
    refs = [make.remote(runs, "0")]
    for position in range(1, 5):
        refs.append(make.remote(runs, str(position), refs[-1]))
    known(*refs)
    last = refs.pop()
    del refs
    gc.collect()
    wait_until(lambda: len(stored()) == 1, deadline_s=2.0)
    lose(last)
    assert ray.get(last, timeout=DEADLINE_S)[0] == 5.0
    assert [ran(runs, str(position)) for position in range(5)] == [2] * 5
    wait_until(lambda: len(stored()) == 1, deadline_s=2.0)
    del last
    gc.collect()
    wait_until(lambda: not peer().objects.recovering.calls, deadline_s=2.0)
    assert peer().objects.recovering.machine.total_bytes == 0


def stored() -> list[Any]:
    entries = list(peer().objects.entries.values())
    return [e for e in entries if e.value is not None and e.value.segment is not None]


def test_each_call_of_a_diamond_runs_once_more(runs: Path) -> None:
    top = make.remote(runs, "top")
    left, right = make.remote(runs, "left", top), make.remote(runs, "right", top)
    bottom = make.remote(runs, "bottom", left, right)
    known(top, left, right, bottom)
    lose_everywhere(top, left, right, bottom)
    assert ray.get(bottom, timeout=DEADLINE_S)[0] == 5.0
    assert [ran(runs, n) for n in ("top", "left", "right", "bottom")] == [2] * 4


def test_both_values_of_a_call_come_from_one_more_run(runs: Path) -> None:
    one, zero = make_two.remote(runs, "two")
    known(one, zero)
    lose(one, zero)
    assert ray.get(one, timeout=DEADLINE_S)[0] == 1.0
    assert ray.get(zero, timeout=DEADLINE_S)[0] == 0.0
    assert ran(runs, "two") == 2


def test_two_processes_that_need_a_value_share_one_run(runs: Path) -> None:
    ref = make.remote(runs, "a")
    known(ref)
    lose(ref)
    readers = [read_first.remote([ref]) for _ in range(2)]
    assert ray.get(readers, timeout=DEADLINE_S) == [1.0, 1.0]
    assert ran(runs, "a") == 2


def test_a_call_whose_argument_is_lost_waits_for_it(runs: Path) -> None:
    ref = make_and_leave.remote(runs, "a")  # nobody else has it mapped
    known(ref)
    lose(ref)
    assert ray.get(first_of.remote(ref), timeout=DEADLINE_S) == 1.0
    assert ran(runs, "a") == 2


def test_a_large_implicit_argument_is_kept_for_another_run(runs: Path) -> None:
    ref = make.remote(runs, "a", np.full(SIZE // 8, 6.0))
    known(ref)
    lose(ref)
    assert ray.get(ref, timeout=DEADLINE_S)[0] == 7.0


def test_a_put_argument_is_kept_for_another_run(runs: Path) -> None:
    argument = ray.put(np.full(SIZE // 8, 6.0))
    ref = make.remote(runs, "a", argument)
    known(ref)
    del argument
    lose(ref)
    assert ray.get(ref, timeout=DEADLINE_S)[0] == 7.0


def test_rebuilding_ends_with_the_retries(runs: Path) -> None:
    ref = make.options(max_retries=1).remote(runs, "a")
    known(ref)
    lose(ref)
    assert ray.get(ref, timeout=DEADLINE_S)[0] == 1.0
    gc.collect()
    lose(ref)
    with pytest.raises(exceptions.ObjectReconstructionFailedError) as caught:
        ray.get(ref, timeout=DEADLINE_S)
    assert caught.value.reason == 12
    assert "MAX_ATTEMPTS_EXCEEDED" in str(caught.value)
    assert ran(runs, "a") == 2


def test_a_call_without_retries_is_not_rebuilt(runs: Path) -> None:
    ref = make.options(max_retries=0).remote(runs, "a")
    known(ref)
    lose(ref)
    with pytest.raises(exceptions.ObjectReconstructionFailedError) as caught:
        ray.get(ref, timeout=DEADLINE_S)
    assert caught.value.reason == 28
    with pytest.raises(exceptions.RayTaskError) as wrapped:
        ray.get(first_of.remote(ref), timeout=DEADLINE_S)
    assert isinstance(wrapped.value, exceptions.ObjectReconstructionFailedError)


def test_the_loss_of_a_put_value_says_whose_it_was() -> None:
    ref = ray.put(np.ones(SIZE // 8))
    lose(ref)
    with pytest.raises(exceptions.ObjectReconstructionFailedError) as caught:
        ray.get(ref, timeout=DEADLINE_S)
    text = str(caught.value)
    assert caught.value.reason == 27
    assert "test_recovery.py:" in text
    assert f"driver {peer().pid}" in text and peer().node_id[:8] in text
    assert "lost at" in text and "is not in the store" in text


def test_futures_and_loops_get_what_was_made_again(runs: Path) -> None:
    ref = make.remote(runs, "a")
    known(ref)
    lose(ref)
    assert ref.future().result(DEADLINE_S)[0] == 1.0
    gc.collect()
    lose(ref)

    async def wait() -> Any:
        return await asyncio.wait_for(ref.as_future(), DEADLINE_S)

    assert asyncio.run(wait())[0] == 1.0
    assert ran(runs, "a") == 3


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.kept: list[Any] = []

    def make(self, name: str) -> Any:
        (self.runs / f"{name}-{time.monotonic_ns()}").touch()
        return np.ones(SIZE // 8)

    def read(self, value: Any) -> float:
        return float(value[0])

    def keep(self, refs: list[Any]) -> None:
        self.kept = refs

    def read_kept(self) -> float:
        return float(ray.get(self.kept[0])[0])

    def put(self) -> list[Any]:
        return [ray.put(np.ones(SIZE // 8))]


def test_results_of_actors_are_made_again_if_calls_may_be_repeated(runs: Path) -> None:
    actor = Worker.remote(runs)
    once = actor.make.remote("once")
    often = actor.make.options(max_task_retries=2).remote("often")
    known(once, often)
    lose(once, often)
    assert ray.get(often, timeout=DEADLINE_S)[0] == 1.0
    with pytest.raises(exceptions.ObjectReconstructionFailedError) as caught:
        ray.get(once, timeout=DEADLINE_S)
    assert caught.value.reason == 28
    assert (ran(runs, "once"), ran(runs, "often")) == (1, 2)


def test_results_of_dead_actors_are_lost_with_them(runs: Path) -> None:
    actor = Worker.remote(runs)
    ref = actor.make.options(max_task_retries=2).remote("a")
    known(ref)
    ray.kill(actor)
    with pytest.raises(exceptions.ActorDiedError):
        wait_until(lambda: ray.get(actor.read.remote([1]), timeout=DEADLINE_S) is None)
    lose(ref)
    with pytest.raises(exceptions.ActorDiedError):
        ray.get(ref, timeout=DEADLINE_S)


def test_an_actor_waits_for_its_lost_argument(runs: Path) -> None:
    actor = Worker.remote(runs)
    ref = make.remote(runs, "a")
    known(ref)
    lose(ref)
    assert ray.get(actor.read.remote(ref), timeout=DEADLINE_S) == 1.0


def test_an_actor_is_made_although_its_argument_is_lost(runs: Path) -> None:
    ref = make_and_leave.remote(runs, "a")
    known(ref)
    lose(ref)
    actor = Holder.remote(ref)
    assert ray.get(actor.read.remote(), timeout=DEADLINE_S) == 1.0
    assert ran(runs, "a") == 2


@ray.remote(num_cpus=0)
class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value

    def read(self) -> float:
        return float(self.value[0])


def test_a_queued_call_waits_for_what_was_lost_meanwhile(runs: Path) -> None:
    ref = make.remote(runs, "a")
    known(ref)
    busy = [nap.remote() for _ in range(3)]
    queued = [first_of.remote(ref) for _ in range(20)]
    lose_everywhere(ref)
    assert ray.get(queued, timeout=DEADLINE_S) == [1.0] * 20
    assert ran(runs, "a") == 2
    ray.get(busy, timeout=DEADLINE_S)


@ray.remote
def nap() -> None:
    time.sleep(0.3)


def test_calls_of_an_actor_stay_in_order_behind_a_lost_argument(runs: Path) -> None:
    ref = make.remote(runs, "a")
    known(ref)
    actor = Recorder.remote()
    calls = [actor.add.remote(0, None), actor.add.remote(1, ref)]
    lose_everywhere(ref)
    calls += [actor.add.remote(2, ref), actor.add.remote(3, None)]
    seen = ray.get(calls[-1], timeout=DEADLINE_S)
    assert sorted(seen) == [0, 1, 2, 3]
    assert seen.index(0) == 0 and seen.index(2) < seen.index(3)


@ray.remote(num_cpus=0)
class Recorder:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def add(self, number: int, value: Any) -> list[int]:
        self.seen.append(number)
        return self.seen


def test_a_borrower_reads_what_was_lost(runs: Path) -> None:
    actor = Worker.remote(runs)
    ref = make.remote(runs, "a")
    ray.get(actor.keep.remote([ref]), timeout=DEADLINE_S)
    known(ref)
    lose(ref)
    assert ray.get(actor.read_kept.remote(), timeout=DEADLINE_S) == 1.0
    assert ran(runs, "a") == 2


def test_the_error_of_a_dead_owner_says_where_it_was(runs: Path) -> None:
    actor = Worker.remote(runs)
    (ref,) = ray.get(actor.put.remote(), timeout=DEADLINE_S)
    ray.kill(actor)
    with pytest.raises(exceptions.ActorDiedError):
        wait_until(lambda: ray.get(actor.read.remote([1]), timeout=DEADLINE_S) is None)
    with pytest.raises(exceptions.OwnerDiedError) as caught:
        ray.get(ref, timeout=DEADLINE_S)
    assert "The owner was" in str(caught.value)
    assert "noticed at" in str(caught.value)


@ray.remote(max_retries=2, num_returns="streaming")
def stream(runs: Path, name: str) -> Iterator[Any]:
    (runs / f"{name}-{time.monotonic_ns()}").touch()
    for number in range(3):
        yield np.full(SIZE // 8, float(number))


def test_items_of_a_generator_are_made_again(runs: Path) -> None:
    items = list(stream.remote(runs, "s"))
    known(*items)
    lose(items[0], items[2])
    assert [ray.get(item, timeout=DEADLINE_S)[0] for item in items] == [0.0, 1.0, 2.0]
    assert ran(runs, "s") == 2


def test_the_oldest_lineage_goes_first(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = peer().objects.recovering.machine
    before = machine.total_bytes
    old = make.remote(runs, "old")
    known(old)
    # Room for one and a half of them.
    limit_bytes = (machine.total_bytes - before) * 3 // 2
    monkeypatch.setattr(machine, "limit_bytes", limit_bytes)
    new = make.remote(runs, "new")
    known(new)
    lose(old, new)
    assert ray.get(new, timeout=DEADLINE_S)[0] == 1.0
    with pytest.raises(exceptions.ObjectReconstructionFailedError) as caught:
        ray.get(old, timeout=DEADLINE_S)
    assert caught.value.reason == 13


def test_the_error_of_another_run_is_the_value(runs: Path) -> None:
    ref = fail_later.remote(runs)
    known(ref)
    lose(ref)
    with pytest.raises(ZeroDivisionError):
        ray.get(ref, timeout=DEADLINE_S)


@ray.remote(max_retries=3)
def fail_later(runs: Path) -> Any:
    if any(runs.iterdir()):
        raise ZeroDivisionError("the second time")
    (runs / "first").touch()
    return np.ones(SIZE // 8)


@ray.remote
def number_when_told(folder: Path) -> int:
    """Waits for a file."""
    while not (folder / "told").exists():
        time.sleep(0.01)
    return 5


@ray.remote(max_retries=2)
def make_slowly_again(runs: Path) -> Any:
    """As ``make``, but a second run waits for a file."""
    first = not any(runs.glob("again-*"))
    (runs / f"again-{time.monotonic_ns()}").touch()
    while not first and not (runs / "go").exists():
        time.sleep(0.01)
    return np.ones(SIZE // 8)


@ray.remote
def add(array: Any, number: int) -> float:
    """Its arguments together."""
    return float(array[0]) + number


def test_an_argument_may_be_lost_while_another_is_waited_for(runs: Path) -> None:
    large = make_slowly_again.remote(runs)
    ray.wait([large])
    number = number_when_told.remote(runs)
    answer = add.remote(large, number)
    lose_everywhere(large)
    other = add.remote(large, 6)  # has it made again
    wait_until(lambda: ran(runs, "again") == 2)
    (runs / "told").touch()
    assert ray.get(number, timeout=DEADLINE_S) == 5
    (runs / "go").touch()

    assert ray.get([answer, other], timeout=DEADLINE_S) == [6.0, 7.0]
