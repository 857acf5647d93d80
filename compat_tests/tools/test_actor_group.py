"""A group of actors is called as one."""

from __future__ import annotations

import pytest

import ray
from ray.util.actor_group import ActorGroup

pytestmark = [
    pytest.mark.usefixtures("ray_start"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Adder:
    def __init__(self, first=0, second=0):
        self.base = first + second

    def add(self, value=0):
        return self.base + value


@pytest.fixture(scope="module")
def group(shared_cluster):
    shared_cluster.start()
    group = ActorGroup(
        Adder,
        num_actors=2,
        num_cpus_per_actor=0,
        init_args=(1,),
        init_kwargs={"second": 2},
    )
    yield group
    group.shutdown()


def test_methods_call_all_actors(group):
    assert len(group) == 2
    assert ray.get(group.add.remote(5)) == [8, 8]


def test_one_actor_may_be_called(group):
    assert ray.get(group[0].actor.add.remote(value=1)) == 4
    assert len(list(group)) == 2


def test_methods_need_remote(group):
    with pytest.raises(TypeError, match="remote"):
        group.add(1)


def test_actors_come_and_go(group):
    group.add_actors(2)
    assert len(ray.get(group.add.remote())) == 4
    group.remove_actors([0, 3])
    assert len(group) == 2
    assert len(group.actor_metadata) == 2


def test_a_group_may_be_started_again():
    group = ActorGroup(Adder, num_cpus_per_actor=0)
    with pytest.raises(RuntimeError, match="already been started"):
        group.start()
    group.shutdown()
    assert len(group) == 0
    with pytest.raises(RuntimeError, match="shutdown"):
        group.add.remote()
    group.start()
    assert ray.get(group.add.remote(1)) == [1]
    group.shutdown(patience_s=0)


@pytest.mark.parametrize(
    "options",
    [
        {"num_actors": 0},
        {"num_actors": -1},
        {"num_cpus_per_actor": -1},
        {"num_gpus_per_actor": -1},
    ],
)
def test_numbers_are_checked(options):
    with pytest.raises(ValueError, match="must"):
        ActorGroup(Adder, **options)
