"""The older names for connections to clusters."""

from __future__ import annotations

import warnings

import pytest

import rayshim as ray
from rayshim.client_builder import ClientBuilder, ClientContext
from rayshim.util.client import num_connected_contexts


def test_a_builder_keeps_what_it_is_told() -> None:
    builder = ray.client("head:10001").namespace("mine").env({"env_vars": {"A": "1"}})
    assert isinstance(builder, ClientBuilder)
    assert builder.address == "head:10001"
    assert builder._job_config.ray_namespace == "mine"
    assert builder._job_config.runtime_env == {"env_vars": {"A": "1"}}
    assert ray.client("ray://head:10001").address == "head:10001"


def test_ray_address_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://far:1")
    assert ray.client().address == "far:1"
    monkeypatch.delenv("RAY_ADDRESS")
    assert ray.client().address is None


@pytest.mark.parametrize("address", ["", "grpc://head:1"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address"):
        ray.client(address)
    with pytest.raises(ValueError, match="address"):
        ClientBuilder("")


@pytest.mark.parametrize(
    ("name", "value"),
    [("secure", True), ("metadata", [("a", "b")]), ("ignore_version", True)],
)
def test_what_connect_does_not_support_is_refused(name: str, value: object) -> None:
    arguments = {name: value}
    with pytest.raises(NotImplementedError, match=name):
        ray.util.connect("head:10001", **arguments)  # type: ignore[arg-type]


def test_the_warning_says_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda *args, **options: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        context = ray.client("head:10001").namespace("mine").connect()
        ray.client("head:10001", _deprecation_warn_enabled=False).connect()
    assert isinstance(context, ClientContext)
    assert len(caught) == 1
    assert 'ray.init("ray://head:10001", namespace="mine")' in str(caught[0].message)


def test_nothing_is_connected_without_a_session() -> None:
    assert ray.util.client.ray.is_connected() is False
    assert num_connected_contexts() == 0
    assert ray.util.client.ray.get is ray.get
