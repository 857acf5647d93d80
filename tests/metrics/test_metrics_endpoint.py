"""The ports of nodes, and what Prometheus finds there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import rayshim
from rayshim._core import current
from rayshim.adapters.metrics import prometheus
from rayshim.util.metrics import Counter

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    rayshim.init(
        num_cpus=1,
        log_to_driver=False,
        include_dashboard=False,
        _system_config={"metrics_report_interval_ms": 100},
    )
    yield
    rayshim.shutdown()


def ask(path: str = "/metrics", **headers: str) -> tuple[int, str]:
    port = rayshim.nodes()[0]["MetricsExportPort"]
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", None, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def bearer() -> dict[str, str]:
    return {"Authorization": f"Bearer {(folder() / 'token').read_text().strip()}"}


def folder() -> Path:
    assert current.peer is not None
    return Path(current.peer.session_dir)


def wait_for(text: str) -> str:
    deadline = time.monotonic() + 20
    while True:
        _, found = ask(**bearer())
        if text in found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def test_who_has_no_token_hears_nothing() -> None:
    status, text = ask()
    assert status == 401 and "ray_" not in text
    assert ask(Authorization="Bearer " + "0" * 64)[0] == 401


def test_other_hosts_are_refused() -> None:
    assert ask(**bearer(), Host="elsewhere:80")[0] == 403


def test_other_paths_are_not_there() -> None:
    assert ask("/", **bearer())[0] == 404


def test_counts_of_tasks_are_there_when_their_process_has_ended() -> None:
    @rayshim.remote(max_calls=1)
    def count() -> None:
        Counter("te_ended").inc(3)

    rayshim.get(count.remote())
    assert "ray_te_ended_total{" in wait_for("ray_te_ended_total{")


def test_tasks_that_run_are_there() -> None:
    @rayshim.remote
    class Gate:
        def wait(self) -> None:
            pass

    gate = Gate.options(num_cpus=1).remote()
    rayshim.get(gate.wait.remote())

    @rayshim.remote
    def waits() -> None:
        pass

    ref = waits.remote()
    text = wait_for('Name="waits"')
    (actor,) = [one for one in text.splitlines() if 'Name="Gate"' in one]
    assert actor.startswith("ray_actors{") and 'State="ALIVE"' in actor
    (line,) = [one for one in text.splitlines() if 'Name="waits"' in one]
    assert 'State="PENDING_NODE_ASSIGNMENT"' in line
    del gate
    rayshim.get(ref)


def test_calls_that_ended_are_counted_by_name_and_state() -> None:
    @rayshim.remote
    def ends(fails: bool) -> None:
        assert not fails

    rayshim.wait([ends.remote(i > 2) for i in range(5)], num_returns=5)
    wait_for('Name="ends",')
    deadline = time.monotonic() + 20
    found: dict[str, float] = {}
    while sum(found.values()) < 5 and time.monotonic() < deadline:
        _, text = ask(**bearer())
        for line in text.splitlines():
            if line.startswith("ray_tasks{") and 'Name="ends"' in line:
                state = line.partition('State="')[2].partition('"')[0]
                if state in ("FINISHED", "FAILED"):
                    found[state] = float(line.rpartition(" ")[2])
    assert found == {"FINISHED": 3.0, "FAILED": 2.0}


def test_the_file_for_service_discovery_names_the_port() -> None:
    path = folder() / "prom_metrics_service_discovery.json"
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    (entry,) = json.loads(path.read_text())
    port = rayshim.nodes()[0]["MetricsExportPort"]
    assert entry == {"labels": {"job": "ray"}, "targets": [f"127.0.0.1:{port}"]}


def test_prometheus_is_told_where_token_and_targets_are() -> None:
    text = prometheus.configuration(folder())
    assert f'credentials_file: "{folder()}/token"' in text
    assert f'files: ["{folder()}/prom_metrics_service_discovery.json"]' in text


def test_without_prometheus_the_command_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(prometheus.PrometheusMissing, match=r"--config\.file="):
        prometheus.launch(folder())
    assert prometheus.shut_down(folder()) is None


def test_commands_print_metrics_and_the_dashboard() -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        code = "from rayshim.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, "metrics", *args],
            env={**os.environ, "RAYSHIM_ADDRESS": f"local:{folder().name}"},
            capture_output=True,
            text=True,
            check=False,
        )

    shown = run("show")
    assert shown.returncode == 0, shown.stderr
    assert "ray_node_cpu_count{" in shown.stdout
    assert json.loads(run("grafana").stdout)["panels"]
    assert "scrape_configs:" in run("config").stdout
