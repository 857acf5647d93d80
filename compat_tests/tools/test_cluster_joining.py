"""Drivers that join a cluster which `ray start --head` has started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PRELUDE = """
import json, os, sys
import {package} as ray
QUIET = dict(logging_level="ERROR", log_to_driver=False)

def tell(**facts):
    print("FACTS" + json.dumps(facts), flush=True)
"""


class HandMade:
    """A cluster made by the command, and drivers as processes of their own."""

    def __init__(self, backend: str, folder: str) -> None:
        self.package = backend
        self.env = {
            **os.environ,
            "TMPDIR": folder,
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Else only drivers without an address find the token.
            "RAY_AUTH_MODE": "disabled",
        }
        self.command = str(Path(sys.executable).with_name(backend))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        #: Which of its addresses the host has is for the command to say.
        self.address = ""

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.command, *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def start(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            "start",
            "--head",
            f"--port={self.port}",
            "--num-cpus=2",
            "--num-gpus=0",
            "--include-dashboard=false",
            "--resources",
            '{"widget": 3}',
            "--disable-usage-stats",
            *more,
        )

    def popen(self, script: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        code = PRELUDE.format(package=self.package) + textwrap.dedent(script)
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**self.env, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def drive(self, script: str, *arguments: str, **env: str) -> dict:
        """Run a driver until it ends, and give what it told."""
        process = self.popen(script, *arguments, **env)
        try:
            out, err = process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"the driver did not end:\n{out}\n{err}")
        for line in out.splitlines():
            if line.startswith("FACTS"):
                return json.loads(line[5:])
        pytest.fail(f"the driver told nothing:\n{out}\n{err}")


def told(process: subprocess.Popen[str]) -> dict:
    """The next facts of a driver that goes on."""
    while line := process.stdout.readline():
        if line.startswith("FACTS"):
            return json.loads(line[5:])
    pytest.fail(f"the driver ended: {process.stderr.read()}")


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate("go\n", timeout=60)


@pytest.fixture(scope="module")
def cluster(backend_name):
    folder = tempfile.mkdtemp(prefix="rc", dir="/tmp")
    made = HandMade(backend_name, folder)
    done = made.start()
    assert done.returncode == 0, done.stdout + done.stderr
    # The output of Ray's own command goes to both.
    made.start_output = done.stdout + done.stderr
    (made.address,) = re.findall(rf"address='([\w.]+:{made.port})'", made.start_output)
    yield made
    if backend_name == "rayshim":
        assert made.run("stop").returncode == 0
    else:
        # Its own `stop` would end the clusters of everybody on this machine.
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if folder.encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def backend_name(request):
    return request.config.getoption("--backend", default="rayshim")


@pytest.fixture(scope="module")
def plain(cluster):
    """What a driver sees that just calls init()."""
    return cluster.drive(
        """
        context = ray.init(**QUIET)
        info = context.address_info

        @ray.remote
        def where():
            found = ray.get_runtime_context()
            return found.get_node_id(), found.get_job_id(), found.namespace

        tell(
            widgets=ray.cluster_resources().get("widget"),
            cpus=ray.cluster_resources()["CPU"],
            nodes=[node["NodeID"] for node in ray.nodes()],
            head=[n["Resources"].get("node:__internal_head__") for n in ray.nodes()],
            where=ray.get(where.remote()),
            gcs=info["gcs_address"],
            address=info["address"],
            context_address=ray.get_runtime_context().gcs_address,
            job=ray.get_runtime_context().get_job_id(),
            namespace=ray.get_runtime_context().namespace,
            node=ray.get_runtime_context().get_node_id(),
        )
        """
    )


def test_init_without_address_joins_the_started_cluster(plain):
    assert plain["widgets"] == 3
    assert plain["cpus"] == 2
    assert plain["head"] == [1.0]


def test_the_context_names_the_cluster(cluster, plain):
    assert plain["gcs"] == plain["address"] == cluster.address
    assert plain["context_address"] == cluster.address


def test_tasks_run_in_the_drivers_job_and_namespace(plain):
    assert plain["where"] == [plain["node"], plain["job"], plain["namespace"]]
    assert plain["nodes"] == [plain["node"]]


@pytest.mark.parametrize("address", ["auto", "place", "localhost"])
def test_addresses_of_the_cluster(cluster, plain, address):
    named = {"place": cluster.address, "localhost": f"localhost:{cluster.port}"}
    seen = cluster.drive(
        """
        ray.init(address=sys.argv[1], **QUIET)
        tell(nodes=[node["NodeID"] for node in ray.nodes()])
        """,
        named.get(address, address),
    )
    assert seen["nodes"] == plain["nodes"]


def test_each_driver_is_a_job_of_its_own(cluster, plain):
    seen = cluster.drive(
        """
        ray.init(**QUIET)
        tell(job=ray.get_runtime_context().get_job_id(),
             namespace=ray.get_runtime_context().namespace)
        """
    )
    assert seen["job"] != plain["job"]
    assert seen["namespace"] != plain["namespace"]


@pytest.mark.parametrize("given", ["none", "auto"])
def test_ray_address_stands_in_for_none_and_auto(cluster, plain, given):
    seen = cluster.drive(
        """
        given = {"none": {}, "auto": {"address": "auto"}}[sys.argv[1]]
        ray.init(**given, **QUIET)
        tell(nodes=[node["NodeID"] for node in ray.nodes()])
        """,
        given,
        RAY_ADDRESS=cluster.address,
        RAY_TMPDIR="/tmp",
    )
    assert seen["nodes"] == plain["nodes"]


def test_local_starts_a_session_beside_the_cluster(cluster, plain):
    seen = cluster.drive(
        """
        ray.init(address="local", num_cpus=1, include_dashboard=False, **QUIET)
        tell(nodes=[node["NodeID"] for node in ray.nodes()],
             widgets=ray.cluster_resources().get("widget"))
        """,
        RAY_ADDRESS=cluster.address,
    )
    assert seen["widgets"] is None
    assert seen["nodes"] != plain["nodes"]


@pytest.fixture(scope="module")
def refused(cluster):
    """Parameter -> type and text of what init() raises in a cluster."""
    return cluster.drive(
        """
        found = {}
        for name, value in [("num_cpus", 1), ("num_gpus", 1),
                            ("resources", {"a": 1}), ("labels", {"a": "b"}),
                            ("object_store_memory", 100 * 2**20)]:
            try:
                ray.init(**{name: value}, **QUIET)
                found[name] = ["nothing", ""]
                ray.shutdown()
            except Exception as error:
                found[name] = [type(error).__name__, str(error)]
        tell(**found, open=ray.is_initialized())
        """
    )


@pytest.mark.parametrize(
    "name", ["num_cpus", "num_gpus", "resources", "labels", "object_store_memory"]
)
def test_amounts_are_refused_in_a_cluster(refused, name):
    kind, text = refused[name]
    assert kind == "ValueError"
    assert "existing cluster" in text
    assert name in text
    assert refused["open"] is False


@pytest.mark.parametrize("address", ["foo", "localhost", "1.2.3.4.5"])
def test_what_is_no_address_is_refused(cluster, address):
    seen = cluster.drive(
        """
        try:
            ray.init(address=sys.argv[1], **QUIET)
            tell(error="nothing")
        except Exception as error:
            tell(error=type(error).__name__)
        """,
        address,
    )
    assert seen["error"] == "ValueError"


@pytest.fixture(scope="module")
def pair(cluster):
    """Two drivers at once: what the second sees of the first."""
    first = cluster.popen(
        """
        ray.init(namespace="shop", runtime_env={"env_vars": {"WHOSE": "first"}},
                 **QUIET)

        @ray.remote(num_cpus=0)
        class Till:
            def __init__(self): self.total = 0
            def add(self, amount):
                self.total += amount
                return self.total
            def whose(self): return os.environ.get("WHOSE")

        till = Till.options(name="till").remote()
        kept = Till.options(name="kept", lifetime="detached").remote()
        ray.get([till.add.remote(1), kept.add.remote(10)])
        tell(job=ray.get_runtime_context().get_job_id(), pid=os.getpid(),
             whose=ray.get(till.whose.remote()))
        sys.stdin.readline()
        """
    )
    facts = {"first": told(first)}
    script = """
        ray.init(namespace=sys.argv[1], runtime_env={"env_vars": {"OTHER": "1"}},
                 **QUIET)
        seen = {"names": sorted(ray.util.list_named_actors())}
        seen["all"] = sorted([row["name"], row["namespace"]] for row in
                             ray.util.list_named_actors(all_namespaces=True))
        for name in ("till", "kept"):
            try:
                actor = ray.get_actor(name)
                seen[name] = ray.get(actor.add.remote(1))
            except Exception as error:
                seen[name] = type(error).__name__
        try:
            seen["far"] = ray.get(ray.get_actor("till", "shop").whose.remote())
        except Exception as error:
            seen["far"] = type(error).__name__

        @ray.remote
        def variables():
            return os.environ.get("WHOSE"), os.environ.get("OTHER")

        seen["variables"] = ray.get(variables.remote())
        tell(**seen)
        """
    facts["same"] = cluster.drive(script, "shop")
    facts["other"] = cluster.drive(script, "elsewhere")
    finish(first)
    facts["after"] = cluster.drive(
        """
        import time
        ray.init(namespace="shop", **QUIET)
        deadline = time.monotonic() + 30
        while "till" in ray.util.list_named_actors() and time.monotonic() < deadline:
            time.sleep(0.05)
        kept = ray.get_actor("kept")
        seen = {"names": ray.util.list_named_actors(),
                "kept": ray.get(kept.add.remote(0))}
        ray.kill(kept)
        tell(**seen)
        """
    )
    return facts


def test_actors_are_shared_in_a_namespace(pair):
    assert pair["same"]["names"] == ["kept", "till"]
    assert pair["same"]["till"] == 2
    assert pair["same"]["kept"] == 11


def test_namespaces_hide_actors_from_other_drivers(pair):
    assert pair["other"]["names"] == []
    assert pair["other"]["till"] == "ValueError"
    assert pair["other"]["kept"] == "ValueError"


def test_actors_of_other_namespaces_are_found_by_their_namespace(pair):
    assert pair["other"]["far"] == "first"


def test_actors_of_all_namespaces_are_listed(pair):
    assert pair["other"]["all"] == [["kept", "shop"], ["till", "shop"]]


def test_environments_of_jobs_are_apart(pair):
    assert pair["first"]["whose"] == "first"
    assert pair["same"]["variables"] == [None, "1"]


def test_actors_end_with_their_driver_but_for_detached_ones(pair):
    assert pair["after"]["names"] == ["kept"]
    assert pair["after"]["kept"] == 11


def test_what_a_killed_driver_held_is_free_again(cluster):
    driver = cluster.popen(
        """
        ray.init(**QUIET)

        @ray.remote(num_cpus=2, resources={"widget": 3})
        class Greedy:
            def ping(self): return 1

        greedy = Greedy.remote()
        ray.get(greedy.ping.remote())
        tell(free=ray.available_resources().get("widget", 0))
        sys.stdin.readline()
        """
    )
    told(driver)
    driver.kill()
    driver.communicate()
    seen = cluster.drive(
        """
        ray.init(**QUIET)

        @ray.remote(num_cpus=2, resources={"widget": 3})
        def all_of_it():
            return "mine"

        tell(got=ray.get(all_of_it.remote(), timeout=60))
        """
    )
    assert seen["got"] == "mine"


def test_drivers_share_the_cpus(cluster):
    script = """
        ray.init(**QUIET)

        @ray.remote
        def one(x):
            return x + 1

        tell(total=sum(ray.get([one.remote(i) for i in range(200)])))
        """
    both = [cluster.popen(script), cluster.popen(script)]
    for driver in both:
        assert told(driver)["total"] == 20100
        finish(driver)


def test_a_second_init_may_be_ignored(cluster):
    seen = cluster.drive(
        """
        ray.init(**QUIET)
        job = ray.get_runtime_context().get_job_id()
        try:
            ray.init(address="auto", **QUIET)
            error = ""
        except RuntimeError as refusal:
            error = str(refusal)
        ray.init(address="auto", ignore_reinit_error=True, **QUIET)
        tell(error=error, same=job == ray.get_runtime_context().get_job_id())
        """
    )
    assert "twice" in seen["error"]
    assert seen["same"] is True


def test_a_driver_may_leave_and_join_again(cluster):
    seen = cluster.drive(
        """
        jobs = []
        for _ in range(2):
            ray.init(address="auto", **QUIET)
            jobs.append(ray.get_runtime_context().get_job_id())
            ray.shutdown()
        tell(jobs=jobs)
        """
    )
    assert len(set(seen["jobs"])) == 2


def test_job_config_names_the_namespace(cluster):
    seen = cluster.drive(
        """
        from importlib import import_module
        JobConfig = import_module(ray.__name__ + ".job_config").JobConfig
        ray.init(job_config=JobConfig(ray_namespace="mine"), **QUIET)
        tell(namespace=ray.get_runtime_context().namespace)
        """
    )
    assert seen["namespace"] == "mine"


def test_the_older_name_of_a_connection(cluster):
    seen = cluster.drive(
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            context = ray.client().namespace("old").connect()
        tell(
            deprecated=any(one.category is DeprecationWarning for one in caught),
            namespace=ray.get_runtime_context().namespace,
            clients=context._num_clients,
            widgets=ray.cluster_resources()["widget"],
        )
        """
    )
    expected = {"deprecated": True, "namespace": "old", "clients": 1, "widgets": 3}
    assert seen == expected


def test_a_second_head_at_the_same_port_is_refused(cluster):
    done = cluster.start()
    assert done.returncode != 0


def test_the_command_says_how_to_go_on(cluster):
    for text in (cluster.address, "init(", "stop"):
        assert text in cluster.start_output


def test_health_checks_answer(cluster):
    assert cluster.run("health-check", "--address", cluster.address).returncode == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{probe.getsockname()[1]}"
    assert cluster.run("health-check", "--address", nowhere).returncode != 0


def test_status_shows_what_there_is(cluster):
    done = cluster.run("status", "--address", cluster.address)
    assert done.returncode == 0
    assert "widget" in done.stdout
    assert "CPU" in done.stdout
