"""Tasks and actors in placement groups on one node."""

from __future__ import annotations

import os
import signal
import time

import pytest

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    RayTaskError,
    TaskPlacementGroupRemoved,
    WorkerCrashedError,
)
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ONE = {"CPU": 1}
LIMIT_S = 30


@pytest.fixture(scope="module")
def gpu_session(shared_cluster):
    """A session on one node with GPUs and a resource of its own."""
    shared_cluster.stop()
    ray.init(
        num_cpus=4,
        num_gpus=2,
        resources={"disk": 4},
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    yield
    ray.shutdown()


pytestmark = pytest.mark.usefixtures("gpu_session")


def free():
    amounts = ray.available_resources()
    return tuple(amounts.get(name, 0) for name in ("CPU", "GPU", "disk"))


@pytest.fixture
def make(gpu_session, wait_until):
    """Make ready groups that are removed at the end of the test."""
    made = []

    def new(bundles, **options):
        group = placement_group(bundles, **options)
        made.append(group)
        assert group.wait(20)
        return group

    yield new
    for group in made:
        remove_placement_group(group)
    wait_until(lambda: free() == (4, 2, 4), timeout_s=30)


def inside(group, index=-1, capture=None, **options):
    """Return options for a bundle."""
    strategy = PlacementGroupSchedulingStrategy(group, index, capture)
    return {"scheduling_strategy": strategy, **options}


def get(ref):
    return ray.get(ref, timeout=LIMIT_S)


@ray.remote
def facts():
    context = ray.get_runtime_context()
    return (
        context.get_placement_group_id(),
        context.get_assigned_resources(),
        context.should_capture_child_tasks_in_placement_group,
        [int(index) for index in ray.get_gpu_ids()],
    )


@ray.remote
def place():
    group = get_current_placement_group()
    return group is not None and group.id.hex()


@ray.remote
def hold(gate):
    while not gate.exists():
        time.sleep(0.02)
    return place._function()


@ray.remote(num_cpus=1)
class Member:
    def place(self):
        return place._function()

    def child(self, **options):
        return ray.get(place.options(**options).remote())

    def pid(self):
        return os.getpid()

    def sleep(self):
        time.sleep(1000)


@ray.remote(num_cpus=0)
class Light:
    def place(self):
        return place._function()

    def child(self, **options):
        return ray.get(place.options(**options).remote())


def test_the_context_of_a_task(make):
    group = make([{"CPU": 1, "disk": 2}, {"CPU": 1, "GPU": 1}])
    ref = facts.options(**inside(group, resources={"disk": 1.5})).remote()
    held = {"CPU": 1.0, "disk": 1.5}
    assert get(ref) == (group.id.hex(), held, False, [])
    ref = facts.options(**inside(group, 1, True, num_cpus=0)).remote()
    assert get(ref) == (group.id.hex(), {}, True, [])
    assert get(facts.remote()) == (None, {"CPU": 1.0}, False, [])


def test_gpus_of_bundles(make):
    group = make([{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}])
    refs = [facts.options(**inside(group, i, num_gpus=1)).remote() for i in (0, 1)]
    first, second = get(refs[0])[3], get(refs[1])[3]
    assert len(first) == len(second) == 1
    assert {*first, *second} == {0, 1}


def test_parts_of_a_gpu(make):
    group = make([{"CPU": 2, "GPU": 0.5}])
    half = facts.options(**inside(group, 0, num_gpus=0.5)).remote()
    quarter = facts.options(**inside(group, 0, num_gpus=0.25)).remote()
    assert get(half)[3] == get(quarter)[3]
    assert get(half)[1] == {"CPU": 1.0, "GPU": 0.5}


def test_a_gpu_in_a_bundle_is_not_for_others(make):
    group = make([{"CPU": 1, "GPU": 2}])
    ref = facts.options(num_gpus=1, num_cpus=0).remote()
    assert ray.wait([ref], timeout=0.3) == ([], [ref])
    assert len(get(facts.options(**inside(group, 0, num_gpus=2)).remote())[3]) == 2
    remove_placement_group(group)
    assert len(get(ref)[3]) == 1


@pytest.mark.parametrize("index", [None, "x"])
def test_an_index_is_a_number(make, index):
    group = make([ONE])
    with pytest.raises(TypeError):
        place.options(**inside(group, index)).remote()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_cpus": 2}, "Cannot schedule place with the placement group"),
        ({"resources": {"disk": 2}}, "cannot fit into any bundles"),
        ({"num_gpus": 1}, "cannot fit into any bundles"),
    ],
    ids=repr,
)
def test_a_task_that_fits_no_bundle(make, options, text):
    group = make([{"CPU": 1, "disk": 1}])
    with pytest.raises(ValueError, match=text):
        place.options(**inside(group, **options)).remote()


def test_a_task_does_not_use_two_bundles(make):
    group = make([ONE, ONE])
    with pytest.raises(ValueError, match="cannot fit into any bundles"):
        place.options(**inside(group, num_cpus=2)).remote()


def test_a_plain_actor_needs_a_cpu_of_its_group(make):
    @ray.remote
    class Plain:
        def place(self):
            return place._function()

    group = make([{"disk": 1}])
    with pytest.raises(ValueError, match="requires 1 CPU for creation"):
        Plain.options(**inside(group)).remote()
    with_cpu = make([ONE])
    plain = Plain.options(**inside(with_cpu)).remote()
    assert get(plain.place.remote()) == with_cpu.id.hex()
    # It gave the CPU back when it was made.
    assert get(place.options(**inside(with_cpu)).remote()) == with_cpu.id.hex()


def test_an_actor_without_needs_fits_anywhere(make):
    group = make([{"disk": 1}])
    light = Light.options(**inside(group)).remote()
    assert get(light.place.remote()) == group.id.hex()


def test_no_group_is_no_group():
    strategy = PlacementGroupSchedulingStrategy(None)
    assert get(place.options(scheduling_strategy=strategy).remote()) is False
    strategy = PlacementGroupSchedulingStrategy(PlacementGroup.empty())
    assert get(place.options(scheduling_strategy=strategy).remote()) is False
    with pytest.raises(ValueError, match="bundle index must be -1"):
        place.options(**inside(PlacementGroup.empty(), 0)).remote()


def test_the_options_of_old_name_a_group_too(make):
    group = make([ONE])
    options = {"placement_group": group, "placement_group_bundle_index": 0}
    assert get(place.options(**options).remote()) == group.id.hex()


@pytest.mark.parametrize("capture", [None, False, True])
def test_children_of_a_task(make, capture):
    @ray.remote(num_cpus=1)
    def parent():
        inner = {
            "default": place,
            "light": place.options(num_cpus=0),
            "actor": None,
            "no group": place.options(placement_group=None),
            "DEFAULT": place.options(scheduling_strategy="DEFAULT"),
            "SPREAD": place.options(scheduling_strategy="SPREAD"),
            "none": place.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(None)
            ),
            "asks": place.options(placement_group_capture_child_tasks=True),
            "declines": place.options(placement_group_capture_child_tasks=False),
        }
        inner["actor"] = Light.remote().place
        return {name: bool(ray.get(one.remote())) for name, one in inner.items()}

    group = make([{"CPU": 2}])
    stays = {"asks"} | ({"default", "light", "actor"} if capture else set())
    found = get(parent.options(**inside(group, 0, capture)).remote())
    assert {name for name, is_inside in found.items() if is_inside} == stays


@pytest.mark.parametrize("capture", [None, False, True])
def test_children_of_an_actor(make, capture):
    group = make([{"CPU": 2}])
    member = Light.options(**inside(group, 0, capture)).remote()
    assert get(member.place.remote()) == group.id.hex()
    expected = group.id.hex() if capture else False
    assert get(member.child.remote()) == expected


def test_grandchildren_are_captured(make):
    @ray.remote(num_cpus=0)
    def child():
        return ray.get(place.remote())

    @ray.remote(num_cpus=0)
    def parent():
        return ray.get(child.remote())

    group = make([{"CPU": 1}])
    assert get(parent.options(**inside(group, -1, True)).remote()) == group.id.hex()


def test_a_function_is_captured_by_where_it_is_called(make):
    @ray.remote(num_cpus=0)
    def child():
        return ray.get(place.options(num_cpus=0).remote()), ray.get(place.remote())

    group = make([{"CPU": 2}])
    options = inside(group, -1, True, num_cpus=0)
    for _ in range(3):
        ref, plain = child.options(**options).remote(), child.remote()
        assert get(ref) == (group.id.hex(), group.id.hex())
        assert get(plain) == (False, False)


def test_a_captured_child_has_to_fit(make):
    @ray.remote(num_cpus=1)
    def parent():
        return ray.get(place.options(num_cpus=3).remote())

    group = make([ONE])
    with pytest.raises(RayTaskError, match="cannot fit into any bundles"):
        get(parent.options(**inside(group, 0, True)).remote())


def test_a_captured_child_chooses_a_bundle(make):
    @ray.remote(num_cpus=0)
    def parent():
        option = place.options(placement_group_bundle_index=1)
        return ray.get(option.remote())

    group = make([ONE, ONE])
    assert get(parent.options(**inside(group, 0, True)).remote()) == group.id.hex()


def test_an_index_without_a_group_is_refused():
    with pytest.raises(ValueError, match="bundle index must be -1"):
        place.options(placement_group_bundle_index=0).remote()


def test_a_group_made_in_a_task(make):
    @ray.remote(num_cpus=0)
    def build():
        group = placement_group([ONE])
        assert group.wait(20)
        return group

    group = get(build.remote())
    try:
        assert get(place.options(**inside(group)).remote()) == group.id.hex()
    finally:
        remove_placement_group(group)


def test_a_bundle_is_shared_until_it_is_full(make, tmp_path):
    group = make([{"CPU": 2}])
    gate = tmp_path / "gate"
    refs = [hold.options(**inside(group, 0)).remote(gate) for _ in range(3)]
    assert ray.wait(refs, num_returns=3, timeout=1.0)[0] == []
    assert ray.available_resources()["CPU"] == 2
    gate.touch()
    assert get(refs) == [group.id.hex()] * 3


def test_any_bundle_means_the_one_with_room(make, tmp_path):
    group = make([ONE, ONE])
    gate = tmp_path / "gate"
    first = hold.options(**inside(group, 0)).remote(gate)
    assert ray.wait([first], timeout=0.3)[0] == []
    assert get(place.options(**inside(group)).remote()) == group.id.hex()
    gate.touch()
    get(first)


def test_an_actor_restarts_in_its_bundle(make):
    group = make([ONE])
    options = {"max_restarts": 1, "max_task_retries": -1}
    member = Member.options(**inside(group, 0, **options)).remote()
    pid = get(member.pid.remote())
    os.kill(pid, signal.SIGKILL)
    assert get(member.pid.remote()) != pid
    assert get(member.place.remote()) == group.id.hex()


def test_removal_ends_a_running_task(make, tmp_path):
    group = make([ONE])
    started = tmp_path / "started"

    @ray.remote(max_retries=0)
    def run():
        started.touch()
        time.sleep(1000)

    running = run.options(**inside(group)).remote()
    queued = run.options(**inside(group)).remote()
    while not started.exists():
        time.sleep(0.02)
    remove_placement_group(group)
    with pytest.raises(WorkerCrashedError):
        get(running)
    with pytest.raises(TaskPlacementGroupRemoved):
        get(queued)


def test_removal_ends_actors(make):
    group = make([ONE])
    member = Member.options(**inside(group)).remote()
    waiting = Member.options(**inside(group)).remote()
    get(member.pid.remote())
    running, queued = member.sleep.remote(), waiting.pid.remote()
    remove_placement_group(group)
    with pytest.raises(ActorDiedError):
        get(running)
    with pytest.raises(ActorUnschedulableError, match="placement group"):
        get(queued)
    with pytest.raises(ActorDiedError):
        get(member.pid.remote())


def test_removal_leaves_others_alone(make):
    group, other = make([ONE]), make([ONE])
    outside = Light.remote()
    member = Member.options(**inside(other)).remote()
    assert get(outside.place.remote()) is False
    assert get(member.place.remote()) == other.id.hex()
    remove_placement_group(group)
    assert get(member.place.remote()) == other.id.hex()
    assert get(outside.place.remote()) is False


def test_an_actor_made_before_its_group_is_there(make, tmp_path):
    gate = tmp_path / "gate"
    first = make([{"CPU": 4}])
    busy = hold.options(**inside(first, num_cpus=4)).remote(gate)
    later = placement_group([ONE])
    member = Member.options(**inside(later)).remote()
    ref = member.place.remote()
    assert ray.wait([ref], timeout=0.3) == ([], [ref])
    gate.touch()
    get(busy)
    remove_placement_group(first)
    assert get(ref) == later.id.hex()
    remove_placement_group(later)
