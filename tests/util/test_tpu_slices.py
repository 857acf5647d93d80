"""Slices of TPUs on a cluster whose nodes say that they have some."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster
from rayshim.util import placement_group_table, tpu

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slices() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for name in ("a", "b"):
        for number in range(2):
            head = {"TPU-v4-16-head": 1} if number == 0 else {}
            labels = {
                "ray.io/tpu-slice-name": f"slice-{name}",
                "ray.io/tpu-worker-id": str(number),
                "ray.io/tpu-pod-type": "v4-16",
            }
            cluster.add_node(num_cpus=2, resources={"TPU": 4, **head}, labels=labels)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@ray.remote
def place(extra: int) -> tuple[str, int]:
    node_id = ray.get_runtime_context().get_node_id()
    (node,) = [one for one in ray.nodes() if one["NodeID"] == node_id]
    return node["Labels"]["ray.io/tpu-slice-name"], extra


def test_a_slice_is_reserved_as_a_whole(slices: Cluster) -> None:
    held = tpu.slice_placement_group("2x2x2", "v4")
    assert held.placement_group.wait(10)
    assert (held.num_hosts, held.num_bundles, held.chips_per_host) == (2, 2, 4)
    assert held.bundle_resources == {"CPU": 1, "TPU": 4}
    names = {one["ray.io/tpu-slice-name"] for one in held.bundle_label_selector}
    places = ray.get(tpu.run_on_slice(place, 7, tpu_slice=held))
    assert len(names) == 1
    assert places == [(names.pop(), 7)] * 2
    assert tpu.get_num_ready_tpu_slices("2x2x2", "v4") == 1
    held.shutdown()
    states = {row["state"] for row in placement_group_table().values()}
    assert states == {"REMOVED"}


def test_both_slices_with_a_group_for_each(slices: Cluster) -> None:
    held = tpu.slice_placement_group("2x2x2", "v4", num_slices=2, pg_per_slice=True)
    try:
        assert len(held.slice_placement_groups) == 2
        first = ray.get(tpu.run_on_slice(place, 1, tpu_slice=held, slice_index=0))
        every = ray.get(tpu.run_on_slice(place, 1, tpu_slice=held))
        assert len(set(first)) == 1
        assert len(every) == 4 and len(set(every)) == 2
        with pytest.raises(TimeoutError, match="Failed to reserve TPU head"):
            tpu.slice_placement_group("2x2x2", "v4", head_reservation_timeout_s=0.2)
    finally:
        held.shutdown()


def test_a_part_of_a_slice_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="slice_placement_group"):
        tpu.subslice_placement_group("2x2x1", "v4")
