"""Requests to the control service that are larger than what it takes."""

from __future__ import annotations

from typing import Any

import pytest

import rayshim as ray
from live_session import start
from rayshim._core import peer as peers
from rayshim.autoscaler import sdk


def test_a_request_that_is_too_large_ends_no_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = start()
    try:
        monkeypatch.setattr(peers, "MAX_REQUEST_BYTES", 1000)
        payload: dict[str, Any] = {"key": "k", "value": bytes(1000)}
        for send in (session.peer.request, session.peer.notify):
            with pytest.raises(ValueError, match=r"kv_put: 10.. bytes are more than"):
                send("kv_put", payload)
        assert session.peer.request("kv_exists", {"key": "k"}) is False
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_cpus": 10**8},
        {"num_cpus": 10**30},
        {"bundles": [{"CPU": 1}] * (sdk.MAX_BUNDLES + 1)},
        {"bundles": [{"CPU": float("nan")}]},
        {"bundles": [{"CPU": float("inf")}]},
    ],
    ids=lambda arguments: str(arguments)[:30],
)
def test_wishes_that_no_plan_could_hold(arguments: dict[str, Any]) -> None:
    start()
    try:
        with pytest.raises(ValueError, match=r"at most 100000|finite"):
            sdk.request_resources(**arguments)
    finally:
        ray.shutdown()
