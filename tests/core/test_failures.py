"""Errors of calls become payloads, however badly they behave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rayshim import exceptions
from rayshim._core import failures


class BreaksWhenLookedAt(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class BreaksAsText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BreaksInPickle(BreaksAsText):
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


class BreaksInLoad(Exception):
    def __reduce__(self) -> Any:
        return int, ("no number",)


@pytest.mark.parametrize(
    "kind", [BreaksWhenLookedAt, BreaksAsText, BreaksInPickle, BreaksInLoad]
)
def test_a_hostile_exception_arrives_as_a_task_error(kind: type[Exception]) -> None:
    peer = cast(Any, SimpleNamespace(pid=1, node_ip="127.0.0.1"))
    try:
        raise kind("x")
    except kind as error:
        wrapped = failures.task_error(peer, "f", error)
        failures.error_payload(error)
    raised = failures.to_raise(failures.error_payload(wrapped))
    assert isinstance(raised, exceptions.RayTaskError)
    assert kind.__name__ in str(raised)
    assert "test_a_hostile_exception" in str(raised)
