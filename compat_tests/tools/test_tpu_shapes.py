"""`ray.util.tpu`: slices, their hosts and chips."""

import pytest

import ray
from ray.cluster_utils import Cluster
from ray.util import tpu


@pytest.mark.parametrize(
    ("kind", "version"),
    [("TPU-V4", "v4"), ("v6e", "v6e"), ("TPU-V5LITEPOD", "v5litepod"), ("v7x", "v7x")],
)
def test_the_version_of_a_type(kind, version):
    assert tpu.get_tpu_version_from_type(kind) == version


@pytest.mark.parametrize("kind", ["x", "v4-8", "v99", ""])
def test_a_type_that_is_none(kind):
    with pytest.raises(ValueError, match="Invalid accelerator_type"):
        tpu.get_tpu_version_from_type(kind)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("2x2x2", "TPU-V4"), (2, {"CPU": 1, "TPU": 4})),
        (("2x2x2", "TPU-V4", {"CPU": 1}, 2), (4, {"CPU": 1, "TPU": 4})),
        (("2x2x2", "TPU-V4", {"TPU": 1}), (8, {"CPU": 1, "TPU": 1})),
        (("4x4", "TPU-V6E"), (4, {"CPU": 1, "TPU": 4})),
        (("4x4", "TPU-V6E", None, 1, 8), (2, {"CPU": 1, "TPU": 8})),
        (("2x4", "v6e"), (1, {"CPU": 1, "TPU": 8})),
        (("2x4", "v5litepod"), (1, {"CPU": 1, "TPU": 8})),
        (("1x1", "v6e"), (1, {"CPU": 1, "TPU": 1})),
    ],
)
def test_workers_and_their_resources(arguments, expected):
    assert tpu.get_tpu_worker_resources(*arguments) == expected


def test_chips_that_cannot_be_divided():
    with pytest.raises(ValueError, match="not divisible"):
        tpu.get_tpu_worker_resources("2x2x2", "v4", {"TPU": 3})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("2x2x2", "TPU-V4", 4), 2),
        (("2x2x2", "TPU-V4", 5, {"TPU": 4}), 3),
        (("2x2x2", "TPU-V4", 5, {"TPU": 1}), 1),
    ],
)
def test_slices_for_workers(arguments, expected):
    assert tpu.get_tpu_num_slices_for_workers(*arguments) == expected


def test_variables_of_the_coordinator():
    assert tpu.get_tpu_coordinator_env_vars("1.2.3.4", 2, 1) == {
        "MEGASCALE_COORDINATOR_ADDRESS": "1.2.3.4",
        "MEGASCALE_PORT": "8081",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }


def test_a_host_without_chips():
    assert tpu.get_current_pod_name() is None
    assert tpu.get_num_tpu_chips_on_node() == 0


@pytest.fixture(scope="module")
def slices(shared_cluster):
    shared_cluster.stop()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for name in ("a", "b"):
        for number in range(2):
            resources = {"TPU": 4}
            if number == 0:
                resources["TPU-v4-16-head"] = 1
            labels = {
                "ray.io/tpu-slice-name": f"slice-{name}",
                "ray.io/tpu-worker-id": str(number),
                "ray.io/tpu-topology": "2x2x2",
                "ray.io/tpu-pod-type": "v4-16",
                "ray.io/accelerator-type": "TPU-V4",
            }
            cluster.add_node(num_cpus=2, resources=resources, labels=labels)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_slices_of_a_cluster(slices):
    assert tpu.get_num_tpu_slices("2x2x2", "TPU-V4") == 2
    assert tpu.get_num_tpu_slices("2x2x2", "v4") == 2
    assert tpu.get_num_tpu_slices("2x2x4", "v4") == 0


def test_slices_that_are_free(slices, wait_until):
    wait_until(lambda: tpu.get_num_ready_tpu_slices("2x2x2", "TPU-V4") == 2)


def test_nodes_of_a_slice(slices):
    nodes = tpu.get_tpu_nodes_for_slice("slice-a")
    assert len(nodes) == 2
    assert {tpu.get_tpu_slice_name_from_node(node) for node in nodes} == {"slice-a"}
    assert tpu.get_tpu_nodes_for_slice("slice-c") == []


def test_a_topology_that_there_is_not(slices):
    with pytest.raises(ValueError, match="Invalid accelerator topology"):
        tpu.SlicePlacementGroup("2x2", "v4")


def test_no_slice_is_free_in_time(slices):
    with pytest.raises(TimeoutError, match="v6e-16"):
        tpu.SlicePlacementGroup("4x4", "v6e", head_reservation_timeout_s=0.5)


def test_running_needs_a_remote_function(slices):
    with pytest.raises(TypeError, match="remote"):
        tpu.run_on_slice(print, topology="2x2x2", accelerator_version="v4")
