"""Objects whose owner is gone, and owners that stay for their objects."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import ray
from ray.exceptions import ObjectLostError, OwnerDiedError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


@ray.remote
class Owner:
    def make(self, size):
        return [ray.put(np.ones(size))]

    def pid(self):
        return os.getpid()


def kill_and_wait(actor, wait_until):
    """Kill the actor and wait until its process is gone."""
    pid = ray.get(actor.pid.remote())
    ray.kill(actor)

    def gone():
        try:
            state = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return True
        return state.rsplit(")", 1)[1].split()[0] == "Z"

    wait_until(gone)


def wait_lost(ref, wait_until):
    """Wait until the death is known: a copy on this node may be read until then."""

    def lost():
        try:
            ray.get(ref, timeout=30)
        except OwnerDiedError:
            return True
        return False

    wait_until(lost)


@pytest.mark.parametrize("size", [5, 500_000])
def test_get_after_the_owners_death(wait_until, size):
    owner = Owner.remote()
    (ref,) = ray.get(owner.make.remote(size))
    kill_and_wait(owner, wait_until)
    wait_lost(ref, wait_until)
    with pytest.raises(OwnerDiedError) as caught:
        ray.get(ref, timeout=30)
    assert isinstance(caught.value, ObjectLostError)
    assert ref.hex() in str(caught.value)


def test_ref_of_a_dead_owner_counts_as_ready(wait_until):
    owner = Owner.remote()
    (ref,) = ray.get(owner.make.remote(500_000))
    kill_and_wait(owner, wait_until)
    assert ray.wait([ref], timeout=30) == ([ref], [])


def test_argument_of_a_dead_owner_fails_the_task(wait_until):
    owner = Owner.remote()
    (ref,) = ray.get(owner.make.remote(500_000))
    kill_and_wait(owner, wait_until)
    wait_lost(ref, wait_until)
    with pytest.raises(OwnerDiedError):
        ray.get(echo.remote(ref), timeout=30)


def test_value_got_before_the_death_stays_valid(wait_until):
    owner = Owner.remote()
    (ref,) = ray.get(owner.make.remote(500_000))
    array = ray.get(ref)
    kill_and_wait(owner, wait_until)
    assert array.sum() == 500_000


def test_result_of_an_actors_method_is_owned_by_the_caller(wait_until):
    @ray.remote
    class Maker:
        def array(self):
            return np.ones(500_000)

        def pid(self):
            return os.getpid()

    maker = Maker.remote()
    ref = maker.array.remote()
    ray.wait([ref])
    kill_and_wait(maker, wait_until)
    assert ray.get(ref, timeout=30).sum() == 500_000


def test_worker_that_owns_an_object_outlives_max_calls():
    @ray.remote(max_calls=1)
    def make():
        return [ray.put(np.ones(500_000))]

    (ref,) = ray.get(make.remote())
    for _ in range(3):
        ray.get(echo.remote(1))
    assert ray.get(ref, timeout=30).sum() == 500_000
