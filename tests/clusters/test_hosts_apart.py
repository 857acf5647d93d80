"""Hosts that share nothing but a network: nodes that join, and remote drivers.

Each host has its own network namespace, its own temporary folder and its own /dev/shm,
so that neither a file nor a unix socket of one can be used by the other. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from started import LIMIT_S, Host, free_port, hear, wait_until

NET = "10.77.14"
#: An address of the second host that the first one has no way to.
HIDDEN = "10.99.14.2"

SCAN = """
    import select, socket, sys
    found, batch = [], {}
    poll = select.epoll()
    def look(limit):
        while len(batch) > limit:
            for number, event in poll.poll(1.0):
                one, port = batch.pop(number)
                if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    found.append(port)
                poll.unregister(number)
                one.close()
    for port in range(1, 65536):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex((sys.argv[1], port))
        batch[one.fileno()] = (one, port)
        poll.register(one, select.EPOLLOUT | select.EPOLLERR)
        look(400)
    look(0)
    tell(open=found)
"""
REMOTE = """
    import numpy as np
    begun = time.monotonic()
    context = ray.init(sys.argv[1], **QUIET)
    started_s = time.monotonic() - begun

    @ray.remote
    def total(values, inner):
        return float(values.sum()) + float(ray.get(inner[0]).sum())

    @ray.remote(num_cpus=0)
    class Store:
        def keep(self, refs):
            self.ref = refs[0]
        def total(self):
            return float(ray.get(self.ref).sum())
        def make(self, size):
            return np.arange(size, dtype=float)

    @ray.remote
    def where():
        return ray.get_runtime_context().get_node_id()

    large = ray.put(np.ones(1_000_000))
    store = Store.remote()
    ray.get(store.keep.remote([large]))
    total_of_both = ray.get(total.remote(large, [ray.put(np.ones(500_000))]))
    kept = ray.get(store.total.remote())
    made = ray.get(store.make.remote(1_000_000))
    pending = [total.remote(np.full(200_000, i), [large]) for i in range(4)]
    ready, _ = ray.wait(pending, num_returns=4, timeout=30)
    small = ray.get([where.remote() for _ in range(50)])
    nodes = {node["NodeID"] for node in ray.nodes()}
    tell(
        started_s=started_s, kind=type(context).__name__,
        total=total_of_both, kept=kept, made=float(made.sum()), ready=len(ready),
        values=ray.get(pending),
        nodes=len(nodes), here=ray.get_runtime_context().get_node_id() in nodes,
        ran=set(small) <= nodes,
        stores=[name for name in os.listdir("/dev/shm") if "rayshim" in name],
        cpus=ray.cluster_resources()["CPU"],
    )
"""


def can_make_namespaces() -> bool:
    """Whether this user may, and has the tools."""
    tools = ("ip", "unshare", "nsenter", "mount")
    if not all(shutil.which(name) for name in tools) or os.geteuid() != 0:
        return False
    done = subprocess.run(["unshare", "-nm", "true"], capture_output=True)
    return done.returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not can_make_namespaces(), reason="needs root, iproute2 and util-linux"
    ),
]


def ip(*arguments: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other."""
    tag = f"rc{os.getpid() % 100000}"
    names = (f"{tag}a", f"{tag}b")
    folder = tempfile.mkdtemp(prefix="rc", dir="/tmp")
    inside = f"mount -t tmpfs tmpfs {folder} && mount -t tmpfs tmpfs /dev/shm && "
    holders = []
    for name in names:
        ip("netns", "add", name)
    try:
        links = (f"{tag}x", f"{tag}y")
        ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        made = []
        for name, link, number in zip(names, links, (1, 2), strict=True):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"{NET}.{number}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
            holder = subprocess.Popen(
                [
                    *("ip", "netns", "exec", name, "unshare", "-m", "sh", "-c"),
                    inside + "echo up && exec cat",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            holders.append(holder)
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n"
            prefix = ("nsenter", "-t", str(holder.pid), "-m", "-n")
            made.append(Host(folder, prefix, f"/proc/{holder.pid}/root"))
        ip("-n", names[1], "addr", "add", f"{HIDDEN}/32", "dev", "lo")
        yield made[0], made[1]
        for host in made:
            host.ok("stop")
            assert host.left() == []
        wait_until(lambda: not made[0].processes())
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
        for name in names:
            ip("netns", "del", name)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(hosts: tuple[Host, Host]) -> Iterator[SimpleNamespace]:
    """A head on the first host, open to the second one, which has its token."""
    first, second = hosts
    port = free_port()
    shown = first.ok(
        "start",
        "--head",
        f"--node-ip-address={NET}.1",
        f"--port={port}",
        "--num-cpus=2",
    )
    token = first.ok("get-auth-token").strip()
    yield SimpleNamespace(
        first=first, second=second, address=f"{NET}.1:{port}", token=token, shown=shown
    )
    first.ok("stop")


def test_a_scan_of_a_default_cluster_finds_nothing(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    first.head()
    try:
        assert second.drive(SCAN, f"{NET}.1") == {"open": []}
    finally:
        first.ok("stop")


def test_remote_drivers_and_nodes_speak_tls(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    first, second = hosts
    certificates = tmp_path / "tls"
    first.ok("cert", str(certificates))
    tls = {
        "RAYSHIM_TLS_CA": str(certificates / "ca.pem"),
        "RAYSHIM_TLS_CERT": str(certificates / "cert.pem"),
        "RAYSHIM_TLS_KEY": str(certificates / "key.pem"),
        "RAYSHIM_TLS_NAME": "rayshim",
    }
    port = free_port()
    address = f"{NET}.1:{port}"
    first.ok(
        "start",
        "--head",
        f"--node-ip-address={NET}.1",
        f"--port={port}",
        "--num-cpus=2",
        **tls,
    )
    try:
        token = first.ok("get-auth-token", **tls).strip()

        seen = second.drive(REMOTE, f"ray://{address}", RAYSHIM_TOKEN=token, **tls)
        assert (seen["total"], seen["kept"]) == (1_500_000, 1_000_000)
        assert seen["made"] == 1_000_000 * 999_999 / 2

        plain = second.driver(
            "ray.init(sys.argv[1], **QUIET)", f"ray://{address}", RAYSHIM_TOKEN=token
        )
        out, err = plain.communicate(timeout=LIMIT_S)
        assert plain.returncode == 1, out
        assert "TLS" in err
        joined = second.run("start", f"--address={address}", RAYSHIM_TOKEN=token)
        assert joined.returncode != 0
        assert "TLS" in joined.stdout + joined.stderr
        assert second.left() == []
    finally:
        first.ok("stop", **tls)


def test_an_open_head_says_who_can_get_in(cluster: SimpleNamespace) -> None:
    assert "RAYSHIM_TOKEN" in cluster.shown
    assert f"ray://{NET}.1" in cluster.shown


def test_a_remote_driver_works_over_the_network(cluster: SimpleNamespace) -> None:
    seen = cluster.second.drive(
        REMOTE, f"ray://{cluster.address}", RAYSHIM_TOKEN=cluster.token
    )
    assert seen["kind"] == "ClientContext"
    assert seen["total"] == 1_500_000
    assert seen["kept"] == 1_000_000
    assert seen["made"] == 1_000_000 * 999_999 / 2
    assert seen["values"] == [1_000_000 + 200_000 * i for i in range(4)]
    assert (seen["nodes"], seen["here"], seen["ran"]) == (1, False, True)
    assert len(seen["stores"]) == 1, "it sees the store of the other host"
    assert seen["cpus"] == 2
    assert cluster.second.left() == []


def test_the_port_of_ray_clients_leads_there(cluster: SimpleNamespace) -> None:
    script = """
        ray.init("ray://" + sys.argv[1], **QUIET)
        tell(cpus=ray.cluster_resources()["CPU"])
    """
    for place in (f"{NET}.1:10001", f"{NET}.1"):
        seen = cluster.second.drive(script, place, RAYSHIM_TOKEN=cluster.token)
        assert seen == {"cpus": 2}


def test_the_node_of_a_remote_driver_runs_nothing(cluster: SimpleNamespace) -> None:
    seen = cluster.second.drive(
        """
        from rayshim.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        ray.init(sys.argv[1], **QUIET)
        own = ray.get_runtime_context().get_node_id()

        @ray.remote(num_cpus=0)
        def where():
            return ray.get_runtime_context().get_node_id()

        @ray.remote(num_cpus=0)
        class Actor:
            def where(self):
                return ray.get_runtime_context().get_node_id()

        actors = [Actor.remote() for _ in range(3)]
        used = set(ray.get([where.remote() for _ in range(20)]))
        used |= set(ray.get([actor.where.remote() for actor in actors]))
        try:
            ray.get(where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(
                own, soft=False)).remote(), timeout=20)
            error = ""
        except Exception as refusal:
            error = f"{type(refusal).__name__}: {refusal}"
        tell(own=own in used, error=error)
        """,
        cluster.address,
        RAYSHIM_TOKEN=cluster.token,
    )
    assert seen["own"] is False
    assert "runs nothing" in seen["error"]


def test_a_killed_remote_driver_leaves_nothing(cluster: SimpleNamespace) -> None:
    driver = cluster.second.driver(
        """
        import numpy as np
        ray.init(sys.argv[1], **QUIET)

        @ray.remote(num_cpus=2)
        class Greedy:
            def ping(self, values): return 1

        greedy = Greedy.remote()
        ray.get(greedy.ping.remote(np.ones(1_000_000)))
        tell(up=True)
        sys.stdin.readline()
        """,
        cluster.address,
        RAYSHIM_TOKEN=cluster.token,
    )
    hear(driver)
    # It is the child of nsenter, which becomes it.
    driver.kill()
    driver.communicate()

    def is_free() -> bool:
        used = cluster.first.status()["usage"]["CPU"]["used"]
        return bool(used == 0)

    wait_until(is_free)
    folder = Path(f"{cluster.second.files}{cluster.second.folder}")
    wait_until(lambda: not list(folder.glob("*/s*")))


def test_a_host_that_cannot_be_reached_is_named(cluster: SimpleNamespace) -> None:
    process = cluster.second.driver(
        "ray.init(sys.argv[1], **QUIET)",
        f"ray://{cluster.address}",
        RAYSHIM_TOKEN=cluster.token,
        RAYSHIM_DRIVER_IP=HIDDEN,
    )
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, out
    assert f"cannot connect to this host at {HIDDEN}" in err
    assert "job submit" in err
    assert cluster.second.left() == []


def test_another_token_does_not_get_in(cluster: SimpleNamespace) -> None:
    process = cluster.second.driver(
        "ray.init(sys.argv[1], **QUIET)",
        f"ray://{cluster.address}",
        RAYSHIM_TOKEN="ab" * 32,
    )
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, out
    assert "token" in err


def test_a_node_joins_from_another_host(cluster: SimpleNamespace) -> None:
    token_file = Path(f"{cluster.second.files}{cluster.second.folder}", "token")
    token_file.write_text(cluster.token)
    token_file.chmod(0o600)
    inside = f"{cluster.second.folder}/token"
    cluster.second.ok(
        "start",
        f"--address={cluster.address}",
        f"--token-path={inside}",
        "--num-cpus=1",
        '--resources={"far": 1}',
    )
    script = """
        import numpy as np
        ray.init(sys.argv[1], **QUIET)

        @ray.remote(num_cpus=0, resources={"far": 0.1})
        def far(values):
            return float(values.sum()), ray.get_runtime_context().get_node_id()

        value, node = ray.get(far.remote(ray.put(np.ones(500_000))))
        tell(value=value, same=node == ray.get_runtime_context().get_node_id(),
             nodes=len(ray.nodes()))
    """
    near = cluster.first.drive(script, "auto")
    assert near == {"value": 500_000, "same": False, "nodes": 2}
    # There is a node now: a driver needs none of its own.
    beside = cluster.second.drive(script, cluster.address, RAYSHIM_TOKEN_PATH=inside)
    assert beside == {"value": 500_000, "same": True, "nodes": 2}
    cluster.second.ok("stop")


def test_tls_on_the_drivers_side_alone_is_named(
    cluster: SimpleNamespace, tmp_path: Path
) -> None:
    certificates = tmp_path / "tls"
    cluster.first.ok("cert", str(certificates))
    process = cluster.second.driver(
        "ray.init(sys.argv[1], **QUIET)",
        f"ray://{cluster.address}",
        RAYSHIM_TOKEN=cluster.token,
        RAYSHIM_TLS_CA=str(certificates / "ca.pem"),
        RAYSHIM_TLS_CERT=str(certificates / "cert.pem"),
        RAYSHIM_TLS_KEY=str(certificates / "key.pem"),
    )
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, out
    assert "TLS" in err
