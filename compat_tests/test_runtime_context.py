"""``ray.get_runtime_context()`` in the driver, in tasks and in actors."""

from __future__ import annotations

import re
import warnings

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")

ID_LENGTHS = {
    "get_job_id": 8,
    "get_node_id": 56,
    "get_worker_id": 56,
    "get_task_id": 48,
    "get_actor_id": 32,
}


def is_hex(text, length):
    """Tell whether a text has exactly so many hex digits."""
    return re.fullmatch(f"[0-9a-f]{{{length}}}", text) is not None


@ray.remote
def call(getter):
    return getattr(ray.get_runtime_context(), getter)()


@ray.remote
class Caller:
    def call(self, getter):
        return getattr(ray.get_runtime_context(), getter)()

    def attribute(self, name):
        return getattr(ray.get_runtime_context(), name)

    def task_id_twice(self):
        context = ray.get_runtime_context()
        return context.get_task_id(), ray.get_runtime_context().get_task_id()


def quietly(getter):
    """Call a getter of the driver's context without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(ray.get_runtime_context(), getter)()


@pytest.mark.parametrize("getter", ["get_job_id", "get_node_id", "get_worker_id"])
def test_ids_of_the_driver(getter):
    assert is_hex(quietly(getter), ID_LENGTHS[getter])


@pytest.mark.parametrize(
    "getter",
    ["get_task_id", "get_actor_id", "get_task_name", "get_actor_name"],
)
def test_driver_has_no_task_and_no_actor(getter):
    assert quietly(getter) is None


def test_driver_has_no_assigned_resources():
    with pytest.raises(AssertionError):
        ray.get_runtime_context().get_assigned_resources()


def test_driver_is_no_actor():
    with pytest.raises(RuntimeError, match="actor"):
        _ = ray.get_runtime_context().current_actor


def test_driver_cannot_be_cancelled():
    with pytest.raises(RuntimeError):
        ray.get_runtime_context().is_canceled()


def test_driver_is_in_no_placement_group():
    assert ray.get_runtime_context().get_placement_group_id() is None


@pytest.mark.parametrize(
    "getter", ["get_job_id", "get_node_id", "get_worker_id", "get_task_id"]
)
def test_ids_in_a_task(getter):
    assert is_hex(ray.get(call.remote(getter)), ID_LENGTHS[getter])


def test_task_has_no_actor_id():
    assert ray.get(call.remote("get_actor_id")) is None


@pytest.mark.parametrize("getter", list(ID_LENGTHS))
def test_ids_in_an_actor(getter):
    value = ray.get(Caller.remote().call.remote(getter))
    assert is_hex(value, ID_LENGTHS[getter])


def test_job_and_node_are_the_same_everywhere():
    context = ray.get_runtime_context()
    caller = Caller.remote()
    for getter in ("get_job_id", "get_node_id"):
        mine = getattr(context, getter)()
        assert ray.get(call.remote(getter)) == mine
        assert ray.get(caller.call.remote(getter)) == mine


def test_node_id_is_one_of_ray_nodes():
    ids = [node["NodeID"] for node in ray.nodes()]
    assert ray.get_runtime_context().get_node_id() in ids


def test_task_id_matches_the_reference():
    ref = call.remote("get_task_id")
    assert ray.get(ref) == ref.task_id().hex()
    caller = Caller.remote()
    ref = caller.call.remote("get_task_id")
    assert ray.get(ref) == ref.task_id().hex()


def test_task_id_is_one_per_call():
    caller = Caller.remote()
    first, second = ray.get(
        [caller.task_id_twice.remote(), caller.task_id_twice.remote()]
    )
    assert first[0] == first[1]
    assert first[0] != second[0]


def test_worker_ids_differ_between_actors():
    callers = [Caller.remote() for _ in range(2)]
    ids = ray.get([c.call.remote("get_worker_id") for c in callers])
    assert len({*ids, ray.get_runtime_context().get_worker_id()}) == 3


def test_task_name_is_the_function_name():
    assert ray.get(call.remote("get_task_name")) == "call"
    assert ray.get(call.options(name="special").remote("get_task_name")) == "special"


def test_task_function_name_has_the_module():
    name = ray.get(call.remote("get_task_function_name"))
    assert name.endswith("test_runtime_context.call")
    caller = Caller.remote()
    name = ray.get(caller.call.remote("get_task_function_name"))
    assert name.endswith("test_runtime_context.Caller.call")


def test_task_name_in_an_actor_is_class_and_method():
    caller = Caller.remote()
    assert ray.get(caller.call.remote("get_task_name")) == "Caller.call"


def test_assigned_resources_of_tasks():
    assert ray.get(call.remote("get_assigned_resources")) == {"CPU": 1}
    half = call.options(num_cpus=0.5)
    assert ray.get(half.remote("get_assigned_resources")) == {"CPU": 0.5}
    none = call.options(num_cpus=0)
    assert ray.get(none.remote("get_assigned_resources")) == {}


def test_assigned_resources_of_actors():
    getter = "get_assigned_resources"
    assert ray.get(Caller.remote().call.remote(getter)) == {}
    assert ray.get(Caller.options(num_cpus=2).remote().call.remote(getter)) == {
        "CPU": 2
    }


def test_fresh_actor_was_not_reconstructed():
    caller = Caller.remote()
    value = ray.get(caller.attribute.remote("was_current_actor_reconstructed"))
    assert value is False


def test_current_actor_is_the_actor():
    caller = Caller.remote()
    assert ray.get(caller.attribute.remote("current_actor")) == caller


def test_running_task_is_not_cancelled():
    assert ray.get(call.remote("is_canceled")) is False


def test_namespace_is_the_same_in_tasks_and_actors():
    @ray.remote
    def namespace():
        return ray.get_runtime_context().namespace

    mine = ray.get_runtime_context().namespace
    assert ray.get(namespace.remote()) == mine
    assert ray.get(Caller.remote().attribute.remote("namespace")) == mine


def test_runtime_env_of_a_task_is_visible():
    @ray.remote(runtime_env={"env_vars": {"COMPAT_SHAPE": "round"}})
    def env():
        return dict(ray.get_runtime_context().runtime_env)

    assert ray.get(env.remote())["env_vars"] == {"COMPAT_SHAPE": "round"}


def test_runtime_env_string_of_the_driver_is_json():
    assert ray.get_runtime_context().get_runtime_env_string() == "{}"


def test_get_gives_a_dictionary():
    values = quietly("get")
    assert {"job_id", "node_id", "namespace"} <= set(values)


def test_accelerator_ids_are_empty_without_accelerators():
    assert ray.get_runtime_context().get_accelerator_ids()["GPU"] == []
    assert ray.get(call.remote("get_accelerator_ids"))["GPU"] == []


def test_node_labels_name_the_node():
    context = ray.get_runtime_context()
    assert context.get_node_labels()["ray.io/node-id"] == context.get_node_id()
