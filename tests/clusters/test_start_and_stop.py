"""`rayshim start`, what it leaves behind, and `rayshim stop`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rayshim._core import keeper
from started import LIMIT_S, Host, a_host, free_port, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made() -> Iterator[SimpleNamespace]:
    """A head with its node, and a second node, all on loopback."""
    with a_host() as host:
        address = host.head("--resources", '{"near": 1}', "--labels", "zone=a")
        host.ok("start", "--address", address, "--num-cpus=1", "--node-name=second")
        yield SimpleNamespace(host=host, address=address)


@pytest.fixture
def host() -> Iterator[Host]:
    """A host without a cluster."""
    with a_host() as one:
        yield one


def test_two_nodes_are_seen(made: SimpleNamespace) -> None:
    facts = made.host.status()
    assert [one["state"] for one in facts["nodes"]] == ["active", "active"]
    assert facts["usage"]["CPU"]["total"] == 3
    assert facts["nodes"][0]["labels"]["zone"] == "a"
    assert facts["nodes"][1]["labels"]["rayshim.io/node-name"] == "second"


def test_programs_find_it_and_use_both_nodes(made: SimpleNamespace) -> None:
    seen = made.host.drive(
        """
        ray.init(**QUIET)

        @ray.remote(scheduling_strategy="SPREAD")
        def node():
            time.sleep(0.05)
            return ray.get_runtime_context().get_node_id()

        tell(nodes=len(set(ray.get([node.remote() for _ in range(12)]))))
        """
    )
    assert seen["nodes"] == 2


def test_tasks_of_an_unchanged_program_import_ray(made: SimpleNamespace) -> None:
    """The nodes were started without the alias: the job brings it along."""
    seen = made.host.drive(
        """
        import subprocess
        ray.install_as_ray()
        ray.init(**QUIET)

        def names():
            import ray.util.metrics
            below = "import ray.util; print(ray.__name__)"
            below = subprocess.check_output([sys.executable, "-c", below], text=True)
            return [ray.__name__, below.strip()]

        class Actor:
            def names(self):
                return names()

        task, with_env = ray.remote(names), {"env_vars": {"OWN": "1"}}
        tell(names=ray.get([
            task.remote(),
            task.options(runtime_env=with_env).remote(),
            ray.remote(Actor).remote().names.remote(),
        ]))
        """
    )
    assert seen["names"] == [["rayshim", "rayshim"]] * 3


def test_a_dashboard_port_in_use_is_said_without_a_traceback(host: Host) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = host.run(
            *("start", "--head", f"--port={free_port()}", f"--dashboard-port={port}")
        )
    assert done.returncode == 1
    assert f"the dashboard cannot listen at 127.0.0.1:{port}" in done.stderr
    assert "--dashboard-port" in done.stderr and "Traceback" not in done.stderr
    assert not host.left()


def test_hooks_of_an_unchanged_program_import_ray(made: SimpleNamespace) -> None:
    seen = made.host.drive(
        """
        ray.install_as_ray()

        def hook():
            import ray.util
            os.environ["HOOK"] = ray.__name__

        ray.init(runtime_env={"worker_process_setup_hook": hook}, **QUIET)

        @ray.remote
        def told():
            return os.environ["HOOK"]

        tell(hook=ray.get(told.remote()))
        """
    )
    assert seen["hook"] == "rayshim"


def test_what_a_short_program_counted_is_not_lost(made: SimpleNamespace) -> None:
    """Its executors are ended with it, long before their next report."""
    seen = made.host.drive(
        """
        from rayshim.util.metrics import Counter
        ray.init(**QUIET)

        def count():
            Counter("short_program").inc(2)
            return os.getpid()

        class Actor:
            def count(self):
                return count()

        actor, killed = (ray.remote(Actor).remote() for _ in range(2))
        pids = ray.get([actor.count.remote(), killed.count.remote()])
        ray.kill(killed)
        tell(pids=[*pids, ray.get(ray.remote(count).remote())])
        """
    )
    lines = wait_until(lambda: _counted(made.host, "ray_short_program_total", 6.0))
    assert lines
    rows = json.loads(made.host.ok("list", "workers", "--format", "json", "--detail"))
    ended = {row["pid"]: row for row in rows if not row["is_alive"]}
    kinds = {ended[pid]["exit_type"] for pid in seen["pids"]}
    assert kinds == {"INTENDED_SYSTEM_EXIT"}
    assert "its node ended it" in ended[seen["pids"][0]]["exit_detail"]


def _counted(host: Host, name: str, wanted: float) -> list[str]:
    """Lines of a metric, once they sum up to what is wanted."""
    text = host.ok("metrics", "show")
    lines = [line for line in text.splitlines() if line.startswith(name + "{")]
    return lines if sum(float(line.split()[-1]) for line in lines) == wanted else []


def test_default_listeners_are_loopback_only(made: SimpleNamespace) -> None:
    listening = [
        one.laddr.ip
        for pid in made.host.processes()
        for one in psutil.Process(pid).net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    ]
    assert listening
    loopback = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}  # gRPC maps its own
    assert set(listening) <= loopback


def test_what_is_started_is_this_users_alone(made: SimpleNamespace) -> None:
    root = Path(made.host.folder, f"rayshim-{os.getuid()}")
    assert root.stat().st_mode & 0o077 == 0
    for path in [*root.glob("*/token"), *root.glob("*/cluster.json"), *root.glob("k*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_token_is_printed(made: SimpleNamespace) -> None:
    token = made.host.ok("get-auth-token").strip()
    assert len(bytes.fromhex(token)) == 32


def test_addresses_of_hosts_are_printed(made: SimpleNamespace) -> None:
    assert made.host.ok("get-head-ip").strip() == "127.0.0.1"
    assert made.host.ok("get-worker-ips").split() == ["127.0.0.1"]


def test_the_doctor_finds_it_well(made: SimpleNamespace) -> None:
    done = made.host.run("doctor", "--format", "json")
    findings = {one["subject"]: one for one in json.loads(done.stdout)}
    assert findings["cluster"]["state"] == "ok"
    assert findings["clock"]["state"] == "ok"
    assert all(one["fix"] for one in findings.values() if one["state"] != "ok")


def test_a_wrong_token_is_refused(made: SimpleNamespace) -> None:
    with a_host() as stranger:
        for arguments in (["status", "--address"], ["start", "--address"]):
            done = stranger.run(*arguments, made.address, RAYSHIM_TOKEN="ab" * 32)
            assert done.returncode == 1
            assert "token" in done.stderr


def test_without_a_token_the_error_says_how_to_get_it(made: SimpleNamespace) -> None:
    with a_host() as stranger:
        done = stranger.run("start", "--address", made.address)
        assert done.returncode == 1
        assert "RAYSHIM_TOKEN" in done.stderr


def test_a_taken_port_is_named(made: SimpleNamespace) -> None:
    port = made.address.rpartition(":")[2]
    done = made.host.run("start", "--head", "--port", port)
    assert done.returncode == 1
    assert port in done.stderr
    assert "rayshim stop" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--head"),
        (["--head", "--address=a:1"], "one of them"),
        (["--address=a:1", "--port=3"], "--port"),
        (["--head", "--redis-password=x"], "--redis-password is not supported"),
        (["--head", "--autoscaling-config=x"], "autoscaling.md"),
        (["--head", "--resources=x"], "--resources"),
        (["--head", "--labels=x"], "--labels"),
        (["--head", '--system-config={"x": 1}'], "unknown setting"),
        (["--head", "--object-store-memory=1"], "object_store_memory"),
        (["--head", "--min-worker-port=5"], "--max-worker-port"),
    ],
)
def test_wrong_use_is_explained(
    made: SimpleNamespace, arguments: list[str], word: str
) -> None:
    done = made.host.run("start", *arguments)
    assert done.returncode == 2
    assert word in done.stderr


def test_stop_ends_all_and_leaves_nothing(host: Host) -> None:
    host.head()
    assert host.processes()
    assert "Stopped" in host.ok("stop")
    assert host.left() == []
    assert "Nothing runs" in host.ok("stop")


def test_stop_spares_sessions_of_programs(host: Host) -> None:
    driver = host.driver(
        """
        ray.init(address="local", num_cpus=1, **QUIET)
        tell(up=True)
        sys.stdin.readline()
        tell(sum=ray.get(ray.remote(lambda: 42).remote()))
        """
    )
    try:
        assert driver.stdout is not None
        driver.stdout.readline()
        host.head()
        host.ok("stop", "--force")
        out, err = driver.communicate("\n", timeout=LIMIT_S)
        assert '"sum": 42' in out, err
    finally:
        driver.kill()
        driver.communicate()


def test_the_head_comes_back_with_what_it_knew(host: Host) -> None:
    host.head()
    driver = host.driver(
        """
        ray.init(namespace="n", **QUIET)

        @ray.remote(num_cpus=0)
        class Counter:
            def __init__(self): self.value = 0
            def add(self):
                self.value += 1
                return self.value

        counter = Counter.options(name="c", lifetime="detached").remote()
        tell(value=ray.get(counter.add.remote()))
        sys.stdin.readline()
        again = ray.get(ray.get_actor("c").add.remote())
        tell(value=again, answer=ray.get(ray.remote(lambda: 1).remote(), timeout=30))
        """
    )
    try:
        assert driver.stdout is not None
        driver.stdout.readline()
        before = _head_pid(host)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: _head_pid(host) not in (0, before))
        out, err = driver.communicate("\n", timeout=LIMIT_S)
        assert '"value": 2, "answer": 1' in out, err
    finally:
        driver.kill()
        driver.communicate()


def test_a_killed_node_is_replaced(host: Host) -> None:
    host.head()
    (node,) = host.status()["nodes"]
    os.kill(_node_pid(host), signal.SIGKILL)

    def replaced() -> bool:
        alive = [one for one in host.status()["nodes"] if one["state"] == "active"]
        return [one["node_id"] for one in alive] not in ([], [node["node_id"]])

    wait_until(replaced)
    assert len([name for name in host.left() if name.startswith("rayshim-s")]) == 1


def test_a_head_that_dies_while_its_node_starts_again_comes_back(host: Host) -> None:
    host.head()
    (one,) = keeper.running_keepers(host.folder)
    node, head = _node_pid(host), _head_pid(host)
    before = {child.pid for child in psutil.Process(one.pid).children()}
    os.kill(node, signal.SIGKILL)
    # The new node has just begun, and has nobody to join from here on.
    wait_until(
        lambda: {child.pid for child in psutil.Process(one.pid).children()} - before
    )
    os.kill(head, signal.SIGKILL)
    wait_until(lambda: _head_pid(host) not in (0, head))
    wait_until(
        lambda: [one["state"] for one in host.status()["nodes"]].count("active") == 1
    )


def test_a_killed_keeper_leaves_nothing(host: Host) -> None:
    host.head()
    (one,) = keeper.running_keepers(host.folder)
    os.kill(one.pid, signal.SIGKILL)
    wait_until(lambda: not host.processes())
    host.ok("stop")
    assert host.left() == []


def test_block_stays_until_it_is_ended(host: Host) -> None:
    arguments = ["start", "--head", "--block", "--port", str(free_port())]
    process = subprocess.Popen(
        [*_command(), *arguments, "--num-cpus=1"],
        env=host.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: keeper.running_keepers(host.folder))
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        assert host.left() == []
    finally:
        process.kill()
        process.communicate()


def test_a_killed_block_leaves_nothing(host: Host) -> None:
    arguments = ["start", "--head", "--block", "--port", str(free_port())]
    process = subprocess.Popen(
        [*_command(), *arguments, "--num-cpus=1"],
        env=host.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: keeper.running_keepers(host.folder))
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: not host.processes())
    assert host.left() == []


def test_a_drained_node_leaves(host: Host) -> None:
    address = host.head()
    host.ok("start", "--address", address, "--num-cpus=1")
    second = host.status()["nodes"][1]["node_id"]
    host.ok(
        "drain-node",
        f"--node-id={second[:10]}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=the machine goes",
    )

    def is_gone() -> bool:
        rows = {one["node_id"]: one for one in host.status()["nodes"]}
        return bool(rows[second]["state"] == "dead")

    wait_until(is_gone)
    wait_until(lambda: len(keeper.running_keepers(host.folder)) == 1)


def test_a_drained_node_that_stays_waits_for_a_signal(host: Host) -> None:
    address = host.head()
    command = [*_command(), "start", "--address", address, "--num-cpus=1"]
    process = subprocess.Popen(
        [*command, "--block", "--stay-when-drained"],
        env=host.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        nodes = wait_until(lambda: [*host.status()["nodes"]][1:])
        host.ok(
            "drain-node",
            f"--node-id={nodes[0]['node_id']}",
            "--reason=DRAIN_NODE_REASON_IDLE_TERMINATION",
            "--reason-message=nothing needs it",
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "was drained and has left the cluster" in line:
                break
        assert process.poll() is None
        assert [one["state"] for one in host.status()["nodes"]] == ["active", "dead"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


def test_staying_when_drained_is_for_nodes_that_block(host: Host) -> None:
    done = host.run("start", "--address=127.0.0.1:1", "--stay-when-drained")
    assert done.returncode == 2
    assert "--stay-when-drained is for a node that joins a cluster" in done.stderr


def test_a_users_token_serves_all_clusters(host: Host) -> None:
    host.ok("get-auth-token", "--generate")
    token = host.ok("get-auth-token").strip()
    assert host.ok("get-auth-token", "--generate").strip() == token
    host.head()
    assert host.ok("get-auth-token").strip() == token
    path = Path(host.folder, ".rayshim", "auth_token")
    assert path.stat().st_mode & 0o777 == 0o600


def _command() -> list[str]:
    from started import COMMAND

    return [COMMAND]


def _head_pid(host: Host) -> int:
    for path in Path(host.folder).glob("*/s*/cluster.json"):
        try:
            return int(json.loads(path.read_text())["pid"])
        except (OSError, ValueError):
            return 0
    return 0


def _node_pid(host: Host) -> int:
    from rayshim._core.clusters import running
    from rayshim.adapters.wire.oneshot import OneShot

    found = running(host.folder)[0]
    with OneShot(found.head_address, found.token) as head:
        return int(head.ask("node_table")[0]["pid"])


def test_other_versions_are_refused_with_a_table(made: SimpleNamespace) -> None:
    seen = made.host.drive(
        """
        from rayshim.adapters.wire import versions
        versions.WIRE_VERSION = 99
        try:
            ray.init(**QUIET)
            tell(error="")
        except RuntimeError as error:
            tell(error=str(error))
        """
    )
    assert "Version mismatch" in seen["error"]
    assert "99  <-" in seen["error"]


def test_tls_of_a_started_cluster(host: Host) -> None:
    folder = f"{host.folder}/tls"
    host.ok("cert", folder)
    tls = {
        "RAYSHIM_TLS_CA": f"{folder}/ca.pem",
        "RAYSHIM_TLS_CERT": f"{folder}/cert.pem",
        "RAYSHIM_TLS_KEY": f"{folder}/key.pem",
        "RAYSHIM_TLS_NAME": "rayshim",
    }
    port = str(free_port())
    host.ok("start", "--head", "--port", port, "--num-cpus=1", **tls)
    host.ok("start", f"--address=127.0.0.1:{port}", "--num-cpus=1", **tls)
    script = """
        import numpy as np
        ray.init(**QUIET)

        @ray.remote(scheduling_strategy="SPREAD")
        def total(values):
            return float(values.sum())

        ref = ray.put(np.ones(300_000))
        tell(total=sum(ray.get([total.remote(ref) for _ in range(8)])))
    """
    assert host.drive(script, **tls) == {"total": 8 * 300_000}
    assert host.run("status").returncode == 1
    host.ok("status", **tls)


def test_what_runs_in_another_folder_is_found_without_its_name(host: Host) -> None:
    elsewhere = Path(host.folder, "elsewhere-else")
    elsewhere.mkdir()
    address = host.head("--temp-dir", str(elsewhere))
    assert host.status()["nodes"]
    told = host.drive(
        "ray.init('auto', **QUIET)\ntell(n=len(ray.nodes()))", RAY_ADDRESS=address
    )
    assert told == {"n": 1}
    assert host.drive("ray.init('auto', **QUIET)\ntell(n=1)") == {"n": 1}
    host.ok("stop")
    assert host.run("status").returncode != 0
    assert host.left() == []
    (root,) = elsewhere.iterdir()
    assert {one.name for one in root.iterdir()} <= {"history"}
