"""Addresses of processes."""

from __future__ import annotations

import pytest

from rayshim.adapters.wire import address

NODE = "ab12cd34" + "0" * 48


def test_parts_come_back() -> None:
    made = address.make("10.0.0.7", 4711, NODE, "w-00ff")
    assert made == "tcp:10.0.0.7:4711/ab12cd34/w-00ff"
    assert address.parse_tcp(made) == ("10.0.0.7", 4711, "ab12cd34", "w-00ff")
    assert address.node_of(made) == "ab12cd34"


def test_an_ipv6_host_keeps_its_brackets() -> None:
    made = address.make("::1", 80, NODE, "x")
    assert made.startswith("tcp:[::1]:80/")
    assert address.parse_tcp(made).host == "::1"


def test_the_same_node_takes_the_unix_socket() -> None:
    made = address.make("10.0.0.7", 4711, NODE, "w-00ff")
    assert address.socket_path(made, "ab12cd34", "/s") == "/s/w-00ff.sock"
    assert address.socket_path(made, "ffffffff", "/s") == ""
    assert address.socket_path("unix:/a.sock", "ab12cd34", "/s") == "/a.sock"


@pytest.mark.parametrize(
    "bad", ["", "tcp:", "tcp:host", "tcp:host:x/n/m", "http://a:1"]
)
def test_anything_else_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        address.parse_tcp(bad)


def test_a_session_on_one_node_names_none() -> None:
    assert address.node_of("unix:/tmp/x.sock") == ""


def test_a_head_that_was_called_by_its_name_is_called_so_again() -> None:
    told = "tcp:10.0.0.7:6379/head/head"

    named = "tcp:demo-scheduler.ray.svc:6379/head/head"
    assert address.lasting(named, told) == named
    assert address.lasting("tcp:10.0.0.7:10001/head/head", told) == told
    assert address.lasting("tcp:[::1]:6379/head/head", told) == told
    assert address.lasting("tcp:localhost:6379/head/head", told) == told
    assert address.lasting("unix:/run/head.sock", told) == told
