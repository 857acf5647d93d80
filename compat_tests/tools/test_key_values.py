"""The cluster's key-value table, locations of values, and names of Ray's inside."""

from __future__ import annotations

import numpy as np
import pytest

import ray
from ray.experimental import internal_kv as kv

pytestmark = pytest.mark.usefixtures("ray_start")


@pytest.fixture(autouse=True)
def empty(ray_start):
    yield
    for namespace in (None, "other"):
        kv._internal_kv_del("", del_by_prefix=True, namespace=namespace)


def test_put_and_get():
    assert kv._internal_kv_initialized()
    assert kv._internal_kv_get("key") is None
    assert kv._internal_kv_put("key", "value") is False
    assert kv._internal_kv_get("key") == b"value"
    assert kv._internal_kv_get(b"key") == b"value"


def test_put_tells_whether_the_key_was_there():
    kv._internal_kv_put(b"key", b"1")
    assert kv._internal_kv_put(b"key", b"2") is True
    assert kv._internal_kv_put(b"key", b"3", overwrite=False) is True
    assert kv._internal_kv_put(b"key", b"4", False) is True
    assert kv._internal_kv_get(b"key") == b"2"


def test_exists():
    assert not kv._internal_kv_exists("key")
    kv._internal_kv_put("key", "")
    assert kv._internal_kv_exists("key")
    assert kv._internal_kv_get("key") == b""


def test_list_takes_a_prefix():
    for key in ("ab", "ac", "b"):
        kv._internal_kv_put(key, "value")
    assert sorted(kv._internal_kv_list("a")) == [b"ab", b"ac"]
    assert kv._internal_kv_list("none") == []


def test_delete_counts():
    for key in ("ab", "ac", "b"):
        kv._internal_kv_put(key, "value")
    assert kv._internal_kv_del("b") == 1
    assert kv._internal_kv_del("b") == 0
    assert kv._internal_kv_del("a", del_by_prefix=True) == 2


@pytest.mark.parametrize("namespace", ["other", b"other"])
def test_namespaces_are_apart(namespace):
    kv._internal_kv_put("key", "value", namespace=namespace)
    assert kv._internal_kv_get("key") is None
    assert kv._internal_kv_get("key", namespace="other") == b"value"
    assert kv._internal_kv_list("", namespace=namespace) == [b"key"]


def test_binary_values_stay_as_they_are():
    value = bytes(range(256)) * 100
    kv._internal_kv_put(b"\x00\xff", value)
    assert kv._internal_kv_get(b"\x00\xff") == value


@pytest.mark.parametrize("bad", [1, None, ["a"]])
def test_keys_are_bytes_or_text(bad):
    with pytest.raises((TypeError, AssertionError)):
        kv._internal_kv_get(bad)


def test_tasks_see_the_same_table():
    @ray.remote(num_cpus=0)
    def put():
        from ray.experimental import internal_kv

        return internal_kv._internal_kv_put("from a task", "value")

    assert ray.get(put.remote()) is False
    assert kv._internal_kv_get("from a task") == b"value"


@pytest.mark.parametrize("name", ["get_object_locations", "get_local_object_locations"])
def test_locations_of_a_large_value(name):
    ref = ray.put(np.zeros(1_000_000, dtype=np.uint8))
    (row,) = getattr(ray.experimental, name)([ref]).values()
    assert row["node_ids"] == [ray.get_runtime_context().get_node_id()]
    assert 1_000_000 <= row["object_size"] < 1_001_000
    assert row["did_spill"] is False


def test_locations_of_a_small_result():
    @ray.remote(num_cpus=0)
    def small():
        return 1

    ref = small.remote()
    ray.get(ref)
    (row,) = ray.experimental.get_object_locations([ref]).values()
    assert row["node_ids"] == []
    assert 0 < row["object_size"] < 100


def test_locations_of_a_value_to_come():
    @ray.remote(num_cpus=0)
    def late():
        import time

        time.sleep(1)

    ref = late.remote()
    locations = ray.experimental.get_object_locations([ref], timeout_ms=500)
    assert locations == {ref: {"node_ids": [], "object_size": None, "did_spill": False}}
    ray.get(ref)


def test_locations_of_nothing():
    assert ray.experimental.get_object_locations([]) == {}
    assert ray.experimental.get_local_object_locations([]) == {}


def test_resources_of_nodes_do_not_change():
    with pytest.raises(DeprecationWarning):
        ray.experimental.set_resource("name", 1)


def test_addresses_of_the_node():
    from ray._private.services import get_node_ip_address
    from ray.util import get_node_instance_id
    from ray.util import get_node_ip_address as public

    (node,) = ray.nodes()
    assert public() == get_node_ip_address() == node["NodeManagerAddress"]
    assert public("8.8.8.8:53").count(".") == 3
    assert get_node_instance_id() == ""


def test_the_global_worker_knows_where_it_is():
    import ray._private.worker as module

    worker = module.global_worker
    context = ray.get_runtime_context()
    assert worker.connected
    assert worker.mode == module.SCRIPT_MODE
    assert worker.current_job_id.hex() == context.get_job_id()
    assert worker.current_node_id.hex() == context.get_node_id()
    assert worker.namespace == context.namespace
    assert worker.worker_id.hex() == context.get_worker_id()
    assert worker.node_ip_address == ray.nodes()[0]["NodeManagerAddress"]
    assert worker.actor_id.is_nil()
    worker.check_connected()


def test_the_global_worker_knows_its_task():
    @ray.remote(num_cpus=0)
    def look():
        import ray._private.worker as module

        worker = module.global_worker
        return worker.mode, worker.current_task_id.hex(), worker.actor_id.is_nil()

    ref = look.remote()
    assert ray.get(ref) == (ray.WORKER_MODE, ref.task_id().hex(), True)


def test_the_serialization_module_has_the_names_too():
    from ray.util import serialization

    assert serialization.register_serializer is ray.util.register_serializer
    assert serialization.deregister_serializer is ray.util.deregister_serializer
    serialization.StandaloneSerializationContext()
