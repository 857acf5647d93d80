"""Names of Ray's inside, and names that are there to be refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rayshim as ray
from rayshim._private import services
from rayshim._private.worker import global_worker


def test_asking_for_the_address_opens_no_session() -> None:
    assert ray.util.get_node_ip_address().count(".") == 3
    assert services.get_node_ip_address().count(".") == 3
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("address", "own"),
    [("127.0.0.1:53", "127.0.0.1"), ("[::1]:53", "::1")],
)
def test_the_address_is_that_of_the_interface_which_leads_there(
    address: str, own: str
) -> None:
    # A host without IPv6 has no interface that leads to ::1.
    assert services.get_node_ip_address(address) in (own, "127.0.0.1")
    assert ray.util.get_node_ip_address(address) in (own, "127.0.0.1")


def test_an_address_that_leads_nowhere_gives_the_own_host() -> None:
    assert services.get_node_ip_address("255.255.255.255:1") == "127.0.0.1"


def test_the_worker_says_that_no_session_is_open() -> None:
    assert not global_worker.connected
    assert global_worker.mode is None
    with pytest.raises(RuntimeError, match="init"):
        global_worker.check_connected()


def test_a_node_has_the_name_that_the_cloud_gave_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_CLOUD_INSTANCE_ID", "i-123")
    assert ray.util.get_node_instance_id() == "i-123"


def test_datasets_are_refused_by_name() -> None:
    from rayshim import data

    with pytest.raises(NotImplementedError, match="from_pandas_refs"):
        data.from_pandas_refs([])
    with pytest.raises(AttributeError, match="not part of rayshim yet"):
        _ = data.Dataset


def test_names_are_loaded_at_their_first_use() -> None:
    program = (
        "import sys, rayshim.util, rayshim.experimental\n"
        "late = ('actor_pool', 'helpers', 'debug', 'iter', 'multiprocessing')\n"
        "print([name for name in late if 'rayshim.util.' + name in sys.modules])\n"
        "print(rayshim.util.ActorPool.__name__, rayshim.util.iter.__name__)\n"
        "print(rayshim.experimental.set_resource.__name__)\n"
        "print(rayshim._private.worker.SCRIPT_MODE)\n"
        "print(rayshim.experimental.internal_kv.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "[]",
        "ActorPool rayshim.util.iter",
        "set_resource",
        "0",
        "rayshim.experimental.internal_kv",
    ]
