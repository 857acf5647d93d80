"""The process of the dashboard: when it starts, where it listens, how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

import rayshim
from live_dashboard import Dashboard, start, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dashboard() -> Iterator[Dashboard]:
    yield start()
    rayshim.shutdown()


def test_it_starts_at_the_first_visit_and_again_after_a_crash(
    dashboard: Dashboard,
) -> None:
    assert dashboard.process() is None

    assert dashboard.ask("GET", "/api/version")[0] == 200
    first = dashboard.process()
    assert first is not None
    first.send_signal(signal.SIGKILL)
    wait_until(lambda: not first.is_running() or first.status() == "zombie")

    assert dashboard.ask("GET", "/api/version")[0] == 200
    second = dashboard.process()
    assert second is not None and second.pid != first.pid


def test_address_is_in_what_init_returns(dashboard: Dashboard) -> None:
    assert dashboard.address == f"127.0.0.1:{dashboard.port}"
    context = rayshim.init(ignore_reinit_error=True)
    assert context.dashboard_url == context.address_info["webui_url"]
    assert context.dashboard_url == dashboard.address


def test_the_demand_is_told_there_too(dashboard: Dashboard) -> None:
    status, content, _ = dashboard.ask("GET", "/api/demand")

    assert status == 200
    assert b'"nodes"' in content


def test_a_second_session_takes_the_next_port(dashboard: Dashboard) -> None:
    script = (
        "import rayshim\n"
        "c = rayshim.init(num_cpus=1, logging_level='error')\n"
        "print(c.dashboard_url)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout.strip().rpartition(":")[2]) != dashboard.port


def test_a_port_that_was_asked_for_and_is_taken_is_an_error() -> None:
    rayshim.shutdown()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(rayshim.exceptions.RaySystemError, match="dashboard_port"):
            rayshim.init(num_cpus=1, dashboard_port=port, logging_level="error")


def test_a_port_that_was_asked_for_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        dashboard = start(dashboard_port=port)
        assert dashboard.port == port
    finally:
        rayshim.shutdown()


def test_without_a_dashboard_nothing_listens() -> None:
    try:
        context = rayshim.init(
            num_cpus=1, include_dashboard=False, logging_level="error"
        )
        assert context.dashboard_url == ""
    finally:
        rayshim.shutdown()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dashboard_port": "x"}, TypeError),
        ({"dashboard_port": 70000}, ValueError),
        ({"dashboard_host": 5}, TypeError),
    ],
)
def test_wrong_parameters(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match="dashboard_"):
        rayshim.init(num_cpus=1, **options)


def test_it_ends_with_a_node_that_is_killed() -> None:
    script = (
        "import rayshim, sys\n"
        "c = rayshim.init(num_cpus=1, logging_level='error')\n"
        "print(c.dashboard_url, c['session_dir'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdin is not None and driver.stdout is not None
    with driver.stdin, driver.stdout:
        url, folder = driver.stdout.readline().split()
        dashboard = Dashboard(url, folder)
        assert dashboard.ask("GET", "/api/version")[0] == 200
        process = dashboard.process()
        assert process is not None
        node = psutil.Process(driver.pid).children()[0]

        os.kill(node.pid, signal.SIGKILL)

        wait_until(lambda: not process.is_running() or process.status() == "zombie")
    driver.wait()  # it removes what the node has left
