"""Two hosts that share nothing but a network: namespaces with their own files.

Each host has its own network namespace, its own /tmp and its own /dev/shm, so that
neither a file nor a unix socket of one can be used by the other. Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

NET = "10.77.13"

HEAD = """
    import json, sys
    import numpy as np
    from rayshim import cluster_utils
    cluster_utils.LOOPBACK = sys.argv[1]
    import rayshim as ray

    cluster = cluster_utils.Cluster(True, head_node_args={"num_cpus": 1})
    print(json.dumps({"head": cluster._head.process_address,
                      "address": cluster.address,
                      "token": cluster._token.hex()}), flush=True)
    assert sys.stdin.readline().strip() == "joined"
    ray.init(address=cluster.address, log_to_driver=False)

    @ray.remote(resources={"far": 1}, num_cpus=0)
    def make(size):
        import os
        stores = [name for name in os.listdir("/dev/shm") if "rayshim" in name]
        return np.arange(size), stores, ray.get_runtime_context().get_node_id()

    @ray.remote(resources={"far": 1}, num_cpus=0)
    def total(values, inner):
        return int(values.sum()) + int(ray.get(inner[0]).sum())

    @ray.remote(resources={"far": 1}, num_cpus=0)
    class Counter:
        def __init__(self): self.value = 0
        def add(self, values):
            self.value += int(values.sum())
            return self.value
        def items(self):
            yield from (np.full(300_000, i) for i in range(3))

    far, segments, node = ray.get(make.remote(2_000_000), timeout=60)
    large = ray.put(np.ones(3_000_000))
    counter = Counter.remote()
    steps = [int(ray.get(ref)[0]) for ref in
             counter.items.options(num_returns="streaming").remote()]
    print(json.dumps({
        "sum": int(far.sum()),
        "other_node": node != ray.get_runtime_context().get_node_id(),
        "total": ray.get(total.remote(large, [ray.put(np.ones(500_000))]), timeout=60),
        "counter": ray.get([counter.add.remote(large), counter.add.remote(large)],
                           timeout=60)[-1],
        "steps": steps,
        "segments": segments,
    }), flush=True)
    assert sys.stdin.readline().strip() == "gone"
    try:
        lost = ray.get(counter.add.remote(large), timeout=60)
    except ray.exceptions.RayActorError as error:
        lost = type(error).__name__
    print(json.dumps({"lost": lost}), flush=True)
    ray.shutdown()
    cluster.shutdown()
"""

NODE = """
    import json, sys
    from types import SimpleNamespace
    from rayshim import cluster_utils
    cluster_utils.LOOPBACK = sys.argv[1]
    facts = json.loads(sys.argv[2])
    cluster = cluster_utils.Cluster()
    cluster._token = bytes.fromhex(facts["token"])
    cluster._head = SimpleNamespace(process_address=facts["head"], process=None)
    cluster.address = facts["address"]
    options = cluster_utils._node_options({"num_cpus": 1, "resources": {"far": 2}})
    node = cluster._new_node(options, is_head_node=False)
    node.launch()
    node.wait_ready(60)
    cluster._wait_for_node(node, 60)
    print("joined", flush=True)
    sys.stdin.readline()
    node.kill()
"""


def can_make_namespaces() -> bool:
    """Whether this user may, and has the tools."""
    tools = all(shutil.which(name) for name in ("ip", "unshare", "mount"))
    if not tools or os.geteuid() != 0:
        return False
    done = subprocess.run(["unshare", "-nm", "true"], capture_output=True)
    return done.returncode == 0


pytestmark = pytest.mark.skipif(
    not can_make_namespaces(), reason="needs root, iproute2 and util-linux"
)


def ip(*arguments: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces that reach each other; their names."""
    tag = f"rs{os.getpid() % 100000}"
    names = (f"{tag}a", f"{tag}b")
    for name in names:
        ip("netns", "add", name)
    try:
        ip("link", "add", f"{tag}x", "type", "veth", "peer", "name", f"{tag}y")
        for name, link, number in zip(
            names, (f"{tag}x", f"{tag}y"), (1, 2), strict=True
        ):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"{NET}.{number}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def start(host: str, script: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python script on a host of its own."""
    inside = (
        "mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && "
        'cd / && exec "$0" "$@"'
    )
    command = ["ip", "netns", "exec", host, "unshare", "-m", "sh", "-c", inside]
    return subprocess.Popen(
        [*command, sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def say(process: subprocess.Popen[str], line: str) -> None:
    """Write one line to a script."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    """One line of a script."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the script ended"
    return line.strip()


def test_hosts_share_nothing_but_the_network(hosts: tuple[str, str]) -> None:
    head = start(hosts[0], HEAD, f"{NET}.1")
    node = None
    try:
        facts = hear(head)
        node = start(hosts[1], NODE, f"{NET}.2", facts)
        assert hear(node) == "joined"
        say(head, "joined")
        seen = json.loads(hear(head))
        assert seen["sum"] == 2_000_000 * 1_999_999 // 2
        assert seen["other_node"]
        assert seen["total"] == 3_500_000
        assert seen["counter"] == 6_000_000
        assert seen["steps"] == [0, 1, 2]
        assert len(seen["segments"]) == 1, "the node sees the other one's store"
        say(node, "die")
        assert node.wait(30) == 0
        say(head, "gone")
        assert json.loads(hear(head))["lost"] in (
            "ActorDiedError",
            "ActorUnavailableError",
        )
        assert head.wait(30) == 0
    finally:
        for process in (head, node):
            if process is not None:
                process.kill()
                process.communicate()
