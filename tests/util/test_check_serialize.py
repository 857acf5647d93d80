from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rayshim.util.check_serialize import FailureTuple, inspect_serializability


def make_function(lock: Any) -> Callable[[], Any]:
    def function() -> Any:
        return lock

    return function


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


def test_value_that_pickles_has_no_failures() -> None:
    out = io.StringIO()
    assert inspect_serializability(3, print_file=out) == (True, set())
    assert "Checking Serializability of 3" in out.getvalue()
    assert "FAIL" not in out.getvalue()


def test_function_names_its_captured_value() -> None:
    lock = threading.Lock()
    function = make_function(lock)
    out = io.StringIO()
    is_fine, failures = inspect_serializability(function, print_file=out)
    (failure,) = failures
    assert not is_fine
    assert (failure.obj, failure.parent) == (lock, function)
    assert (failure.name, failure.path) == ("lock", ("lock",))
    assert "cannot pickle '_thread.lock' object" in out.getvalue()
    assert "1 nonlocal variables" in out.getvalue()
    assert str(failure) in out.getvalue()


def test_name_begins_the_path() -> None:
    _, failures = inspect_serializability(
        Box(threading.Lock()), name="box", print_file=io.StringIO()
    )
    assert [failure.path for failure in failures] == [("box", "content")]


def test_every_culprit_is_reported() -> None:
    value = {"a": threading.Lock(), "b": 1, "c": threading.Lock()}
    _, failures = inspect_serializability(value, print_file=io.StringIO())
    assert {failure.name for failure in failures} == {"a", "c"}


def test_depth_bounds_the_search() -> None:
    value = [[[threading.Lock()]]]
    _, failures = inspect_serializability(value, depth=1, print_file=io.StringIO())
    assert [failure.obj for failure in failures] == value


def test_value_itself_has_no_parent(capsys: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()
    _, failures = inspect_serializability(lock)
    (failure,) = failures
    assert failure.parent is None
    assert repr(failure) == f"FailTuple(unknown [path=, obj={lock!r}, parent=None])"
    assert "FAIL" in capsys.readouterr().out


def test_failures_are_themselves() -> None:
    assert FailureTuple(1, "a", None) != FailureTuple(1, "a", None)
