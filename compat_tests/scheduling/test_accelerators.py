"""Types of accelerators: the option, the names, and the families."""

from __future__ import annotations

import pytest

import ray
from ray.util import accelerators

TYPE = "accelerator_type:A100"


@ray.remote
def assigned():
    return ray.get_runtime_context().get_assigned_resources()


@ray.remote
class Member:
    def assigned(self):
        return ray.get_runtime_context().get_assigned_resources()


@pytest.fixture
def with_type(ray_fresh):
    ray_fresh(num_cpus=2, resources={TYPE: 1})


def test_a_call_of_a_type_holds_a_little_of_its_resource(with_type):
    task = assigned.options(accelerator_type="A100")
    assert ray.get(task.remote()) == {"CPU": 1.0, TYPE: 0.001}


def test_an_actor_of_a_type_holds_a_cpu_too(with_type):
    member = Member.options(accelerator_type=accelerators.NVIDIA_A100).remote()
    assert ray.get(member.assigned.remote()) == {"CPU": 1.0, TYPE: 0.001}


def test_a_type_that_no_node_has_waits(with_type):
    ref = assigned.options(accelerator_type="H100").remote()
    assert ray.wait([ref], timeout=0.3)[0] == []
    ray.cancel(ref)


def test_the_type_may_be_asked_for_as_a_resource(with_type):
    task = assigned.options(resources={TYPE: 0.5})
    assert ray.get(task.remote()) == {"CPU": 1.0, TYPE: 0.5}


def test_the_type_must_be_text():
    with pytest.raises(TypeError):
        assigned.options(accelerator_type=3)


def test_a_machine_without_gpus_has_no_type(ray_start):
    [node] = ray.nodes()
    assert "ray.io/accelerator-type" not in node["Labels"]
    assert not [name for name in node["Resources"] if name.startswith("accelerator")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NVIDIA_TESLA_V100", "V100"),
        ("NVIDIA_TESLA_P100", "P100"),
        ("NVIDIA_TESLA_T4", "T4"),
        ("NVIDIA_TESLA_P4", "P4"),
        ("NVIDIA_TESLA_K80", "K80"),
        ("NVIDIA_TESLA_A10G", "A10G"),
        ("NVIDIA_TESLA_A100", "A100"),
        ("NVIDIA_L4", "L4"),
        ("NVIDIA_A100", "A100"),
        ("NVIDIA_H100", "H100"),
        ("INTEL_GAUDI", "Intel-GAUDI"),
        ("AMD_INSTINCT_MI300x", "AMD-Instinct-MI300X-OAM"),
        ("AWS_NEURON_CORE", "aws-neuron-core"),
        ("GOOGLE_TPU_V4", "TPU-V4"),
        ("METAX_C500", "MXC500"),
        ("APPLE_SILICON", "Apple-Silicon"),
    ],
)
def test_names_of_types(name, value):
    assert getattr(accelerators, name) == value


def test_families_of_the_running_call(ray_start):
    @ray.remote
    def families():
        return ray.get_runtime_context().get_accelerator_ids()

    ids = ray.get(families.remote())
    assert {"GPU", "TPU", "NPU", "HPU", "neuron_cores", "RBLN"} <= set(ids)
    assert {"FURIOSA", "TTNPU", "MBLT"} <= set(ids)
    assert all(found == [] for found in ids.values())
