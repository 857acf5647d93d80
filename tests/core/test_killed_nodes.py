"""What a killed node leaves outside of its own folders goes as well."""

from __future__ import annotations

from pathlib import Path

import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster

pytestmark = pytest.mark.slow


def test_spilled_files_of_a_killed_node_are_removed(tmp_path: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(
            num_cpus=1,
            resources={"far": 1},
            object_store_memory=80 << 20,
            _system_config={"spill_dir": str(tmp_path)},
        )
        ray.init(address=cluster.address, log_to_driver=False)

        @ray.remote(num_cpus=0, resources={"far": 1})
        class Keeper:
            def keep(self) -> int:
                self.kept = [ray.put(bytes(10 << 20)) for _ in range(12)]
                return len(self.kept)

        keeper = Keeper.remote()
        assert ray.get(keeper.keep.remote(), timeout=60) == 12
        assert any(path.is_file() for path in tmp_path.rglob("*"))
        cluster.remove_node(node, allow_graceful=False)
        assert not any(path.is_file() for path in tmp_path.rglob("*"))
    finally:
        ray.shutdown()
        cluster.shutdown()
