"""What the ``address`` of ``init`` means, before anything is asked."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayshim._core import clusters, session_folders
from rayshim._core.addresses import cluster_address
from rayshim.adapters.wire import address as addresses
from rayshim.adapters.wire import versions


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """For sessions; nothing in the environment says where clusters are."""
    for name in (*clusters.ADDRESS_VARIABLES, "RAYSHIM_TOKEN", "RAYSHIM_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "rayshim.cluster_utils", None)
    with tempfile.TemporaryDirectory(prefix="rt") as made:
        monkeypatch.setenv("HOME", made)
        yield made


def add(folder: str, address: str, **more: object) -> Path:
    """A session's file, as its process writes it."""
    root = session_folders.session_root(folder)
    session = root / f"s{os.getpid()}-{len(list(root.iterdir())):08x}"
    session.mkdir()
    facts = {
        "address": address,
        "head_address": f"tcp:{address}/head/head",
        "token": "ab" * 32,
        "pid": os.getpid(),
        **more,
    }
    (session / "cluster.json").write_text(json.dumps(facts))
    return session


def test_nothing_is_a_session_of_its_own(folder: str) -> None:
    assert cluster_address(None, folder) == ""
    assert cluster_address("local", folder) == ""


def test_the_environment_stands_in_for_none_and_auto(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    assert cluster_address(None, folder) == cluster_address("auto", folder) == "a:1"
    assert cluster_address("b:2", folder) == "b:2"
    assert cluster_address("local", folder) == ""
    monkeypatch.setenv("RAYSHIM_ADDRESS", "c:3")
    assert cluster_address(None, folder) == "c:3"


def test_none_joins_only_what_the_command_has_started(folder: str) -> None:
    add(folder, "127.0.0.1:1", origin="cluster")
    assert cluster_address(None, folder) == ""
    started = add(folder, "127.0.0.1:2", origin="start")
    (started.parent / "keeper-1.json").touch()
    assert cluster_address(None, folder) == "127.0.0.1:2"


@pytest.mark.parametrize("address", ["foo", "ray://", "a:b:c d", "local:x", "grpc://a"])
def test_other_forms_are_refused(folder: str, address: str) -> None:
    with pytest.raises(ValueError, match="address"):
        cluster_address(address, folder)


def test_dashboards_are_for_jobs(folder: str) -> None:
    with pytest.raises(ValueError, match="JobSubmissionClient"):
        cluster_address("http://127.0.0.1:8265", folder)


def test_auto_prefers_started_clusters_to_newer_sessions(folder: str) -> None:
    add(folder, "127.0.0.1:1", origin="start")
    add(folder, "local:s1-00000001", origin="init")
    assert clusters.find_cluster("auto", folder).address == "127.0.0.1:1"


def test_clusters_are_found_by_each_of_their_addresses(folder: str) -> None:
    add(
        folder,
        "127.0.0.1:6379",
        client_port=10001,
        dashboard_url="http://127.0.0.1:8265",
    )
    for address in (
        "127.0.0.1:6379",
        "ray://localhost:6379",
        "ray://localhost:10001",
        "ray://localhost",
        "http://localhost:8265",
    ):
        found = clusters.find_cluster(address, folder)
        assert found.address == "127.0.0.1:6379", address
    with pytest.raises(ConnectionError):
        clusters.find_cluster("http://localhost:8266", folder)


def test_a_token_of_the_user_leads_to_other_hosts(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectionError, match="RAYSHIM_TOKEN"):
        clusters.find_cluster("far:6379", folder)
    path = clusters.user_token_path()
    path.parent.mkdir()
    path.write_text("cd" * 32)
    assert clusters.find_cluster("far:6379", folder).token == b"\xcd" * 32
    monkeypatch.setenv("RAYSHIM_TOKEN", "ef" * 32)
    found = clusters.find_cluster("ray://far", folder)
    assert (found.head_address, found.token) == (
        "tcp:far:10001/head/head",
        b"\xef" * 32,
    )


@pytest.mark.parametrize("text", ["", "xyz", "ab" * 15])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TOKEN holds no token"):
        clusters.parse_token(text, "TOKEN")


def test_versions_that_differ_are_shown_in_a_table() -> None:
    versions.check({**versions.own(), "rayshim": "9"}, "this driver")
    with pytest.raises(RuntimeError) as caught:
        versions.check({"python": "2.7.1", "rayshim": "9"}, "this driver")
    text = str(caught.value)
    assert "this driver" in text
    assert "2.7.1" in text
    assert "not told" in text
    assert text.count("<-") == 2


def test_ports_of_a_range_are_taken_one_by_one() -> None:
    first = addresses.listen_in("127.0.0.1", "")
    port = first.getsockname()[1]
    first.close()
    kept = addresses.listen_in("127.0.0.1", str(port))
    try:
        assert kept.getsockname()[1] == port
        with pytest.raises(OSError, match="worker_ports"):
            addresses.listen_in("127.0.0.1", f"{port}-{port}")
    finally:
        kept.close()
