"""A head whose journal cannot be read or written ends, and says why."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster
from rayshim.exceptions import RaySystemError

pytestmark = pytest.mark.slow


def test_a_journal_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"this is no database" * 200)
    cluster = Cluster()
    config = {"journal_url": f"sqlite://{broken}"}
    try:
        with pytest.raises(RaySystemError, match=r"broken\.sqlite cannot be opened"):
            cluster.add_node(num_cpus=1, _system_config=config)
    finally:
        cluster.shutdown()


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs mount")
def test_a_full_disk_ends_the_head_and_not_the_cluster(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root")
    config = {"journal_url": f"sqlite://{disk}/journal.sqlite"}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": config}
    )
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        from rayshim._core import current

        @ray.remote
        class Counter:
            def one(self) -> int:
                return 1

        counter = Counter.options(name="kept").remote()
        assert ray.get(counter.one.remote()) == 1
        peer = current.require_peer()
        for number in range(40):
            peer.notify("kv_put", {"key": f"k{number}", "value": bytes(50_000)})
        assert cluster._head is not None and cluster._head.process is not None
        assert cluster._head.process.process.wait(30) == 74
        assert "journal" in cluster._head.process.last_words()
        assert ray.get(counter.one.remote(), timeout=30) == 1
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert cluster.head_node is not None
        cluster.head_node.kill_gcs_server(check_alive=False)
        cluster.head_node.start_gcs_server()
        deadline = time.monotonic() + 30
        while True:
            try:
                assert ray.get(ray.get_actor("kept").one.remote(), timeout=30) == 1
                break
            except ValueError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        ray.shutdown()
        cluster.shutdown()
        subprocess.run(["umount", "-l", str(disk)], check=False)
