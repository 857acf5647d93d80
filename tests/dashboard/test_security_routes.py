"""Every endpoint of the dashboard, by every method: whom it refuses."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator

import pytest

import rayshim
from live_dashboard import METHODS, Dashboard, all_paths, start

PATHS = all_paths()
#: What brings the token, and so is asked without it.
LOGIN = "/login"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dashboard() -> Iterator[Dashboard]:
    yield start(_system_config={"http_hosts": "desk.example"})
    rayshim.shutdown()


def test_the_tables_are_not_empty() -> None:
    assert {"/api/jobs/", "/api/jobs/something/logs/tail", "/api/version"} <= set(PATHS)
    assert len(PATHS) > 10


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_every_method_is_refused(
    dashboard: Dashboard, path: str
) -> None:
    right = base64.b64encode(f"user:{dashboard.token}".encode()).decode()
    name = f"rayshim_{dashboard.port}"
    for method in METHODS:
        for proof in (
            {},
            {"authorization": "Bearer " + "0" * 64},
            {"authorization": "Bearer"},
            {"authorization": f"Basic {right}"},
            {"cookie": f"{name}={dashboard.token}"},
            {"cookie": f"{name}=99999999999-{'0' * 64}"},
            {"accept": "text/html"},
        ):
            status, content, _ = dashboard.ask(method, path, token=None, **proof)
            assert status == 401, (method, proof, content)


@pytest.mark.parametrize("path", PATHS)
def test_other_names_and_pages_of_others_are_refused(
    dashboard: Dashboard, path: str
) -> None:
    for method in METHODS:
        for token in ("", None):
            for headers in (
                {"host": "evil.example"},
                {"host": f"evil.example:{dashboard.port}"},
                {"host": f"127.0.0.1.evil.example:{dashboard.port}"},
                {"host": f"127.0.0.1:{dashboard.port + 1}"},
                {"host": ""},
                {"origin": "https://evil.example"},
                {"origin": "null"},
                {"origin": f"http://evil.example:{dashboard.port}"},
                {"origin": f"http://localhost:{dashboard.port + 1}"},
            ):
                status, _, found = dashboard.ask(method, path, token=token, **headers)
                assert status == 403, (method, headers)
                assert "access-control-allow-origin" not in found


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_climb_are_refused(dashboard: Dashboard, path: str) -> None:
    for tail in (
        "/../../etc/passwd",
        "/..",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/%2E%2E/x",
        "/%252e%252e/x",
        "/..%2f..%2fetc/passwd",
        "/..%5c..%5cx",
        "/%00",
        "/.%2e/x",
    ):
        for method in METHODS:
            status, content, _ = dashboard.ask(method, path.rstrip("/") + tail)
            assert status == 400, (method, tail)
            assert b"root:" not in content


@pytest.mark.parametrize("path", PATHS)
def test_answers_have_the_headers_that_keep_browsers_safe(
    dashboard: Dashboard, path: str
) -> None:
    for token in ("", None):
        _, _, headers = dashboard.ask("GET", path, token=token)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


@pytest.mark.parametrize("path", PATHS)
def test_web_sockets_are_refused_without_the_token(
    dashboard: Dashboard, path: str
) -> None:
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(b"0123456789abcdef").decode(),
    }
    origin = {"origin": "https://evil.example"}

    assert dashboard.ask("GET", path, token=None, **upgrade)[0] in (401, 403)
    assert dashboard.ask("GET", path, **upgrade, **origin)[0] == 403


def test_a_cookie_is_given_for_the_token(dashboard: Dashboard) -> None:
    status, _, headers = dashboard.ask(
        "GET", f"{LOGIN}?token={dashboard.token}&next=/tasks", token=None
    )

    assert (status, headers["location"]) == (303, "/tasks")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert dashboard.token not in cookie


@pytest.mark.parametrize(
    "onward", ["//evil.example/", "https://evil.example/", "/\\evil.example", ""]
)
def test_login_leads_nowhere_else(dashboard: Dashboard, onward: str) -> None:
    path = f"{LOGIN}?token={dashboard.token}&next={onward}"

    assert dashboard.ask("GET", path, token=None)[2]["location"] == "/"


def test_a_cookie_reads_and_changes_only_from_its_own_pages(
    dashboard: Dashboard,
) -> None:
    path = f"{LOGIN}?token={dashboard.token}"
    cookie = dashboard.ask("GET", path, token=None)[2]["set-cookie"].partition(";")[0]
    own = f"http://{dashboard.address}"
    body = b'{"entrypoint": 5}'

    def ask(method: str, path: str, **headers: str) -> int:
        return dashboard.ask(
            method, path, token=None, body=body, cookie=cookie, **headers
        )[0]

    assert ask("GET", "/api/version") == 200
    assert ask("POST", "/api/jobs/") == 403
    assert ask("POST", "/api/jobs/", origin="https://evil.example") == 403
    assert ask("POST", "/api/jobs/", origin=own) == 400
    assert ask("POST", "/logout", origin=own) == 303


def test_login_by_a_form_needs_the_own_page(dashboard: Dashboard) -> None:
    body = f"token={dashboard.token}".encode()
    own = f"http://{dashboard.address}"

    assert dashboard.ask("POST", LOGIN, token=None, body=body)[0] == 401
    foreign = {"origin": "https://evil.example"}
    assert dashboard.ask("POST", LOGIN, token=None, body=body, **foreign)[0] == 403
    status, _, headers = dashboard.ask("POST", LOGIN, token=None, body=body, origin=own)
    assert status == 303
    assert "set-cookie" in headers


def test_what_a_form_repeats_is_escaped(dashboard: Dashboard) -> None:
    path = f"{LOGIN}?next=/%22%3E%3Cscript%3E&token=%3Cscript%3E"

    content = dashboard.ask("GET", path, token=None, accept="text/html")[1]

    assert b"<script" not in content


def test_its_own_names_are_served(dashboard: Dashboard) -> None:
    for name in ("localhost", "127.0.0.1", "desk.example", "Desk.Example"):
        host = f"{name}:{dashboard.port}"
        assert dashboard.ask("GET", "/api/version", host=host)[0] == 200


def test_large_bodies_are_refused(dashboard: Dashboard) -> None:
    said = {"content_length": str(1 << 33)}

    assert dashboard.ask("POST", "/api/jobs/", **said)[0] == 413
    assert dashboard.ask("PUT", "/api/packages/gcs/a.zip", **said)[0] == 413


def test_a_large_body_without_its_length_is_refused(dashboard: Dashboard) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    head = (
        f"POST /api/jobs/ HTTP/1.1\r\nhost: {dashboard.address}\r\n"
        f"authorization: Bearer {dashboard.token}\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", dashboard.port), timeout=20) as sock:
        sock.sendall(head.encode())
        try:
            for _ in range(200):
                sock.sendall(chunk)
        except ConnectionError:
            pass  # it has heard enough
        try:
            answer = sock.recv(4096)
        except ConnectionError:
            answer = b"HTTP/1.1 413"

    assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "name", ["x.zip", "_ray_pkg_zz.zip", "_ray_pkg_0123456789abcdef.sh", "token"]
)
def test_only_packages_are_stored_and_found(dashboard: Dashboard, name: str) -> None:
    path = f"/api/packages/gcs/{name}"

    assert dashboard.ask("PUT", path, body=b"PK")[0] == 400
    assert dashboard.ask("GET", path)[0] == 404
    assert dashboard.ask("GET", "/api/packages/file/token")[0] == 404


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "a\0b", "..", "a\nb"])
def test_names_of_jobs_are_no_paths(dashboard: Dashboard, name: str) -> None:
    import json

    body = json.dumps({"entrypoint": "true", "submission_id": name}).encode()

    assert dashboard.ask("POST", "/api/jobs/", body=body)[0] == 400
