"""The head's HTTP endpoint: what it tells, and whom it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.routing import Route

from cluster_process import ClusterProcesses
from rayshim.adapters.http.app import make_app
from rayshim.adapters.http.patience import MAX_OPEN, PATIENCE_S
from rayshim.lineage.demand import Demand

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
ROUTES = [
    route
    for route in make_app(dict, token="", hosts=[]).routes
    if isinstance(route, Route)
]
CASES = [(route.path, method) for route in ROUTES for method in METHODS]
CASES += [("/", "GET"), ("/api/nothing", "POST")]


class Head:
    """A head and the way to its endpoint."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self.address = cluster.observer.request("cluster_info")["http_address"]
        self.token = cluster.head.token.hex()

    def ask(
        self, method: str, path: str, *, token: str | None = "", **headers: str
    ) -> tuple[int, Any]:
        """Status and content of the answer; ``token`` "": the right one."""
        if token is not None:
            headers["authorization"] = f"Bearer {token or self.token}"
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 503:  # uvicorn's own, when it has no room
                assert answer.headers["cache-control"] == "no-store" or not content
            return answer.status, json.loads(content) if content else None
        finally:
            connection.close()


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ClusterProcesses(http_hosts="head.example, other.example") as cluster:
        yield Head(cluster)


def test_the_demand_is_told(head: Head) -> None:
    head.cluster.observer.request("request_resources", bundles=[{"GPU": 2.0}])

    status, content = head.ask("GET", "/api/demand")

    assert status == 200
    assert Demand.from_json(content).requested == ({"GPU": 2.0},)


@pytest.mark.parametrize(("path", "method"), CASES)
def test_without_the_token_nothing_is_told(head: Head, path: str, method: str) -> None:
    assert head.ask(method, path, token=None)[0] == 401
    assert head.ask(method, path, token="0" * 64)[0] == 401
    basic = {"authorization": f"Basic {head.token}"}
    assert head.ask(method, path, token=None, **basic)[0] == 401


@pytest.mark.parametrize(("path", "method"), CASES)
def test_foreign_hosts_and_origins_are_refused(
    head: Head, path: str, method: str
) -> None:
    port = head.address.rpartition(":")[2]

    assert head.ask(method, path, host="evil.example")[0] == 403
    assert head.ask(method, path, host=f"evil.example:{port}")[0] == 403
    assert head.ask(method, path, origin="https://evil.example")[0] == 403
    assert head.ask(method, path, origin="null")[0] == 403
    assert head.ask(method, path, token=None, host="evil.example")[0] == 403


@pytest.mark.parametrize("origin", ["null", "http://[::1", "http://", "\xe9"])
def test_origins_that_are_none_are_refused(head: Head, origin: str) -> None:
    assert head.ask("GET", "/api/demand", origin=origin)[0] == 403


@pytest.mark.slow
def test_connections_that_only_wait_are_ended(head: Head) -> None:
    host, _, port = head.address.rpartition(":")
    process = psutil.Process(head.cluster.head.process.pid)
    before = process.num_fds()

    def is_served() -> bool:
        try:
            return head.ask("GET", "/api/demand")[0] == 200
        except (ConnectionError, ValueError):  # no room, or 503 in plain text
            return False

    with contextlib.ExitStack() as stack:
        for number in range(2 * MAX_OPEN):
            one = socket.create_connection((host, int(port)), timeout=20)
            stack.enter_context(one)
            with contextlib.suppress(ConnectionError):
                if number % 2:
                    # One that is answered, and then a request that never ends.
                    one.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                    one.recv(1)
                one.sendall(b"GET / HTTP/1.1\r\nhost: ")
        deadline = time.monotonic() + 4 * PATIENCE_S
        # Those beyond the limit are closed a turn of the loop after they are accepted.
        while process.num_fds() > before + MAX_OPEN + 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        while not is_served() or process.num_fds() > before + 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_its_own_names_and_pages_are_served(head: Head) -> None:
    port = head.address.rpartition(":")[2]

    for host in (f"localhost:{port}", f"head.example:{port}", f"Other.example:{port}"):
        assert head.ask("GET", "/api/demand", host=host)[0] == 200
    origin = f"http://{head.address}"
    assert head.ask("GET", "/api/demand", origin=origin)[0] == 200


def test_other_methods_and_paths_say_what_is_wrong(head: Head) -> None:
    status, content = head.ask("POST", "/api/demand")
    assert (status, content) == (405, {"error": "POST /api/demand: Method Not Allowed"})
    status, content = head.ask("GET", "/api/nothing")
    assert (status, content) == (404, {"error": "GET /api/nothing: Not Found"})
    assert head.ask("HEAD", "/api/demand") == (200, None)


def test_refusals_name_no_secret(head: Head) -> None:
    _, content = head.ask("GET", "/api/demand", token=None)

    assert head.token not in json.dumps(content)
    assert "Bearer TOKEN" in content["error"]


def test_cluster_file_names_the_endpoint(head: Head) -> None:
    path = Path(head.cluster.head.session_dir) / "cluster.json"

    assert json.loads(path.read_text())["http_address"] == head.address


def test_the_endpoint_can_be_turned_off() -> None:
    with ClusterProcesses(http_port=-1) as cluster:
        assert cluster.observer.request("cluster_info")["http_address"] == ""


def test_a_port_that_is_taken_does_not_stop_the_head(head: Head) -> None:
    port = int(head.address.rpartition(":")[2])

    with ClusterProcesses(http_port=port) as cluster:
        assert cluster.observer.request("cluster_info")["http_address"] == ""


def test_nothing_is_imported_before_the_first_request() -> None:
    script = (
        "import sys, rayshim.adapters.raylet.head_server, "
        "rayshim.adapters.http.endpoint\n"
        "assert not {'starlette', 'uvicorn'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
