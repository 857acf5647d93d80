"""Objects that a dead process owned, and everybody who still wants them."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent import futures

import numpy as np
import pytest

import ray
from failures.witness import DEADLINE_S, is_running, note_run, runs_in, wait_for_file
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    OwnerDiedError,
    RayTaskError,
)

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


@ray.remote
def never(path):
    wait_for_file(path)
    return "made"


@ray.remote
class Owner:
    """Owns what it puts and what the tasks that it starts return."""

    def put(self, value):
        return [ray.put(value)]

    def task(self, value):
        ref = echo.remote(value)
        ray.wait([ref])
        return [ref]

    def pending(self, path):
        return [never.remote(path)]

    def call(self, actor):
        ref = actor.ask_much.remote()
        ray.wait([ref])
        return {"deep": ([ref],)}

    def nested(self):
        inner = ray.put(b"x" * 500_000)
        return [ray.put([inner])]

    def pid(self):
        return os.getpid()

    def leave(self):
        ray.actor.exit_actor()


@ray.remote
class Holder:
    """Borrows references and keeps them in its state."""

    def __init__(self, refs=None):
        self.refs = refs

    def hold(self, refs):
        self.refs = refs

    def read(self):
        return ray.get(self.refs[0], timeout=DEADLINE_S)

    def tell(self):
        try:
            return ray.get(self.refs[0], timeout=DEADLINE_S)
        except OwnerDiedError as error:
            return type(error).__name__

    def refs_back(self):
        return self.refs

    def ask(self):
        return "answer"

    def ask_much(self):
        return b"x" * 500_000

    def pid(self):
        return os.getpid()


@pytest.fixture
def owner():
    return Owner.remote()


@pytest.fixture
def kill(wait_until):
    """Return a function that ends an actor; its process is gone afterwards."""

    def end(actor):
        pid = ray.get(actor.pid.remote())
        ray.kill(actor)
        wait_until(lambda: not is_running(pid))

    return end


@pytest.fixture
def lost(wait_until):
    """Return a function that waits until the loss of a reference is known.

    A copy on the node may be read for a moment after its owner died.
    """

    def wait(ref):
        def known():
            try:
                ray.get(ref, timeout=DEADLINE_S)
            except OwnerDiedError:
                return True
            return False

        wait_until(known)
        return ref

    return wait


@pytest.fixture
def lost_ref(owner, kill, lost):
    """A reference to 4 MB whose owner is dead."""
    (ref,) = ray.get(owner.put.remote(np.ones(500_000)))
    kill(owner)
    return lost(ref)


def test_result_of_a_task_is_lost_with_the_caller(owner, kill, lost):
    (ref,) = ray.get(owner.task.remote(b"x" * 1_000_000))
    kill(owner)
    lost(ref)
    with pytest.raises(OwnerDiedError):
        ray.get(ref, timeout=DEADLINE_S)


def test_result_of_an_actor_is_lost_with_the_caller(owner, kill, lost):
    other = Holder.remote()
    ref = ray.get(owner.call.remote(other))["deep"][0][0]
    kill(owner)
    lost(ref)
    assert ray.get(other.ask.remote(), timeout=DEADLINE_S) == "answer"


def test_pending_result_is_lost_with_the_caller(tmp_path, owner, kill):
    (ref,) = ray.get(owner.pending.remote(tmp_path / "go"))
    kill(owner)
    with pytest.raises(OwnerDiedError):
        ray.get(ref, timeout=DEADLINE_S)


def test_blocked_get_ends_when_the_owner_dies(tmp_path, owner, kill):
    (ref,) = ray.get(owner.pending.remote(tmp_path / "go"))
    with futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ray.get, ref)
        kill(owner)
        with pytest.raises(OwnerDiedError):
            waiting.result(DEADLINE_S)


def test_blocked_wait_ends_when_the_owner_dies(tmp_path, owner, kill):
    (ref,) = ray.get(owner.pending.remote(tmp_path / "go"))
    with futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ray.wait, [ref], timeout=DEADLINE_S)
        kill(owner)
        assert waiting.result(DEADLINE_S) == ([ref], [])


def test_awaiting_ends_when_the_owner_dies(tmp_path, owner, kill):
    (ref,) = ray.get(owner.pending.remote(tmp_path / "go"))

    async def main():
        waiting = asyncio.ensure_future(asyncio.wait_for(ref, DEADLINE_S))
        await asyncio.sleep(0)
        await asyncio.to_thread(kill, owner)
        with pytest.raises(OwnerDiedError):
            await waiting

    asyncio.run(main())


def test_future_of_a_lost_ref(lost_ref):
    with pytest.raises(OwnerDiedError):
        lost_ref.future().result(DEADLINE_S)


def test_get_times_out_while_the_owner_lives(tmp_path, owner):
    (ref,) = ray.get(owner.pending.remote(tmp_path / "go"))
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.2)
    assert ray.wait([ref], timeout=0.2) == ([], [ref])
    (tmp_path / "go").touch()
    assert ray.get(ref, timeout=DEADLINE_S) == "made"


def test_lost_ref_among_good_ones(lost_ref):
    good = [ray.put(1), echo.remote(2)]
    with pytest.raises(OwnerDiedError):
        ray.get([good[0], lost_ref, good[1]], timeout=DEADLINE_S)
    assert ray.get(good) == [1, 2]
    refs = [lost_ref, *good]
    assert ray.wait(refs, num_returns=3, timeout=DEADLINE_S) == (refs, [])


def test_wait_without_fetching_counts_a_lost_ref_as_ready(lost_ref):
    ready, _ = ray.wait([lost_ref], timeout=DEADLINE_S, fetch_local=False)
    assert ready == [lost_ref]


def test_error_tells_the_ref_and_is_an_object_lost_error(lost_ref):
    with pytest.raises(ObjectLostError) as caught:
        ray.get(lost_ref)
    error = caught.value
    assert type(error) is OwnerDiedError
    assert error.object_ref_hex == lost_ref.hex()
    assert lost_ref.hex() in str(error)
    assert "owner" in str(error)


def test_keyword_argument_whose_owner_died(lost_ref):
    with pytest.raises(OwnerDiedError) as caught:
        ray.get(echo.remote(value=lost_ref), timeout=DEADLINE_S)
    assert isinstance(caught.value, RayTaskError)


def test_lost_argument_is_not_retried(tmp_path, lost_ref):
    @ray.remote(max_retries=3, retry_exceptions=True)
    def consume(value):
        note_run(tmp_path / "runs")

    with pytest.raises(OwnerDiedError):
        ray.get(consume.remote(lost_ref), timeout=DEADLINE_S)
    assert runs_in(tmp_path / "runs") == 0


def test_task_that_waits_for_an_argument_fails_when_its_owner_dies(
    tmp_path, owner, kill
):
    (ref,) = ray.get(owner.pending.remote(tmp_path / "go"))
    results = [echo.remote(ref), echo.remote(echo.remote(ref))]
    kill(owner)
    for result in results:
        with pytest.raises(OwnerDiedError):
            ray.get(result, timeout=DEADLINE_S)


def test_lost_ref_nested_in_an_argument_fails_where_it_is_read(lost_ref):
    @ray.remote
    def read(box):
        try:
            ray.get(box["a"][0], timeout=DEADLINE_S)
        except OwnerDiedError as error:
            return error.object_ref_hex

    result = read.remote({"a": [lost_ref]})
    assert ray.get(result, timeout=DEADLINE_S) == lost_ref.hex()


def test_lost_ref_read_in_a_task_without_catching(lost_ref):
    @ray.remote
    def read(refs):
        return ray.get(refs[0])

    with pytest.raises(OwnerDiedError) as caught:
        ray.get(read.remote([lost_ref]), timeout=DEADLINE_S)
    assert isinstance(caught.value, RayTaskError)
    assert "ray::read()" in str(caught.value)


def test_lost_argument_of_a_method_spares_the_actor(lost_ref):
    holder = Holder.remote()
    with pytest.raises(OwnerDiedError):
        ray.get(holder.hold.remote(lost_ref), timeout=DEADLINE_S)
    assert ray.get(holder.ask.remote(), timeout=DEADLINE_S) == "answer"


def test_lost_argument_of_a_constructor_kills_the_actor(lost_ref):
    holder = Holder.remote(lost_ref)
    with pytest.raises(ActorDiedError, match="OwnerDiedError"):
        ray.get(holder.ask.remote(), timeout=DEADLINE_S)


def test_lost_ref_in_the_state_of_an_actor(owner, kill, lost):
    holder = Holder.remote()
    (ref,) = ray.get(owner.put.remote(np.ones(500_000)))
    ray.get(holder.hold.remote([ref]))
    kill(owner)
    lost(ref)
    assert ray.get(holder.tell.remote(), timeout=DEADLINE_S) == "OwnerDiedError"
    with pytest.raises(OwnerDiedError):
        ray.get(holder.read.remote(), timeout=DEADLINE_S)


def test_lost_ref_can_still_be_passed_on(lost_ref):
    (again,) = ray.get(echo.remote([lost_ref]), timeout=DEADLINE_S)
    assert again == lost_ref
    with pytest.raises(OwnerDiedError):
        ray.get(again, timeout=DEADLINE_S)


def test_lost_ref_in_an_object_of_a_living_owner(lost_ref):
    outer = ray.put({"lost": lost_ref, "kept": 1})
    box = ray.get(outer, timeout=DEADLINE_S)
    assert box["kept"] == 1
    with pytest.raises(OwnerDiedError):
        ray.get(box["lost"], timeout=DEADLINE_S)


def test_outer_object_of_a_dead_owner(owner, kill, lost):
    (outer,) = ray.get(owner.nested.remote())
    kill(owner)
    lost(outer)


def test_inner_object_of_a_dead_owner(owner, kill, lost):
    (outer,) = ray.get(owner.nested.remote())
    (inner,) = ray.get(outer)
    kill(owner)
    lost(inner)


def test_loss_in_a_chain_of_owners(owner, kill, lost):
    """The outer object lives with the driver, the inner one died with its owner."""

    @ray.remote
    def wrap(refs):
        return {"wrapped": refs}

    (inner,) = ray.get(owner.put.remote(b"x" * 500_000))
    outer = wrap.remote([inner])
    ray.wait([outer])
    del inner
    kill(owner)
    lost(ray.get(outer, timeout=DEADLINE_S)["wrapped"][0])


def test_owner_that_leaves_by_itself(wait_until, owner, lost):
    (ref,) = ray.get(owner.put.remote(b"x" * 500_000))
    with pytest.raises(ActorDiedError):
        ray.get(owner.leave.remote())
    lost(ref)


def test_owner_whose_last_handle_goes(lost):
    (ref,) = ray.get(Owner.remote().put.remote(b"x" * 500_000))
    lost(ref)


def test_restarted_owner_has_lost_its_objects(wait_until, lost):
    owner = Owner.options(max_restarts=1, max_task_retries=5).remote()
    (ref,) = ray.get(owner.put.remote(b"x" * 500_000))
    pid = ray.get(owner.pid.remote())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    (fresh,) = ray.get(owner.put.remote("fresh"), timeout=DEADLINE_S)
    lost(ref)
    assert ray.get(fresh, timeout=DEADLINE_S) == "fresh"


@pytest.mark.parametrize("size", [10, 500_000])
def test_object_of_a_killed_worker(wait_until, lost, size):
    @ray.remote(max_retries=0)
    def make():
        return os.getpid(), [ray.put(b"x" * size)]

    pid, (ref,) = ray.get(make.remote())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    lost(ref)


def test_task_of_a_dead_owner_does_not_keep_its_cpus(tmp_path, kill):
    @ray.remote
    class Busy:
        def pid(self):
            return os.getpid()

        def occupy(self, path):
            self.ref = never.options(num_cpus=4).remote(path)

    busy = Busy.options(num_cpus=0).remote()
    ray.get(busy.occupy.remote(tmp_path / "never"))
    kill(busy)
    assert ray.get(echo.options(num_cpus=4).remote(1), timeout=DEADLINE_S) == 1


def test_value_read_before_the_death_can_be_put_again(owner, kill):
    (ref,) = ray.get(owner.put.remote(np.ones(500_000)))
    array = ray.get(ref)
    kill(owner)
    assert ray.get(ray.put(array), timeout=DEADLINE_S).sum() == 500_000


def test_death_of_a_middleman_does_not_lose_the_object(kill):
    holder = Holder.remote()
    ref = ray.put(np.ones(500_000))
    ray.get(holder.hold.remote([ref]))
    (again,) = ray.get(holder.refs_back.remote())
    del ref
    kill(holder)
    assert ray.get(again, timeout=DEADLINE_S).sum() == 500_000


def test_death_of_another_borrower_does_not_lose_the_object(owner, kill):
    holder = Holder.remote()
    refs = ray.get(owner.put.remote(np.ones(500_000)))
    ray.get(holder.hold.remote(refs))
    kill(holder)
    assert ray.get(refs[0], timeout=DEADLINE_S).sum() == 500_000


def test_reader_in_a_task_is_told_when_the_owner_dies(tmp_path, owner, kill):
    @ray.remote
    def read(refs):
        try:
            return ray.get(refs[0])
        except OwnerDiedError:
            return "told"

    refs = ray.get(owner.pending.remote(tmp_path / "go"))
    results = [read.remote(refs) for _ in range(2)]
    kill(owner)
    assert ray.get(results, timeout=DEADLINE_S) == ["told"] * 2
