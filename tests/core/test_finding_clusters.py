"""Which cluster ``init(address=...)`` means."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from rayshim._core import session_folders
from rayshim._core.attached import find


@pytest.fixture
def folder() -> Iterator[str]:
    """For sessions, with a short name."""
    with tempfile.TemporaryDirectory(prefix="rt") as made:
        yield made


@pytest.fixture
def add(folder: str) -> Callable[[str, int], None]:
    """Adds a cluster's file, as its head writes it."""

    def add(address: str, pid: int) -> None:
        root = session_folders.session_root(folder)
        session = root / f"s{pid}-{len(list(root.iterdir())):08x}"
        session.mkdir()
        facts = {
            "address": address,
            "head_address": f"tcp:{address}/head/head",
            "token": "ab",
            "pid": pid,
        }
        (session / "cluster.json").write_text(json.dumps(facts))

    return add


def test_a_cluster_is_found_by_any_name_of_its_host(
    add: Callable[[str, int], None], folder: str
) -> None:
    add("127.0.0.1:6379", os.getpid())
    add("127.0.0.1:6380", os.getpid())
    for address in ("127.0.0.1:6379", "localhost:6379"):
        assert find(address, folder).address == "127.0.0.1:6379"
    for address in ("localhost:6378", "no.such.host.invalid:6379", "6379"):
        with pytest.raises(ConnectionError, match="no cluster of this user"):
            find(address, folder)


def test_a_cluster_whose_head_is_dead_is_not_found(
    add: Callable[[str, int], None], folder: str
) -> None:
    add("127.0.0.1:6379", 2**22 + 1)
    with pytest.raises(ConnectionError, match="Could not find any running"):
        find("auto", folder)
