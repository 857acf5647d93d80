from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rayshim._core import unpicklable
from rayshim._core.unpicklable import describe_failure, size_report

REASON = "_thread.lock: cannot pickle '_thread.lock' object"


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content

    def method(self) -> None: ...


class Slotted:
    __slots__ = ("slot",)


class Reduced:
    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce__(self) -> Any:
        return Reduced, (self.content,)


class Cyclic:
    def __init__(self) -> None:
        self.itself = self
        self.lock = threading.Lock()


def closure(lock: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return lock

    return inner


def default(lock: Any) -> Callable[..., Any]:
    def inner(first: int, second: Any = lock, *, third: Any = None) -> None: ...

    return inner


def made_class(lock: Any) -> type:
    class Local:
        shared = lock

    return Local


def class_with_method(lock: Any) -> type:
    class Local:
        def use(self) -> Any:
            return lock

    return Local


def slotted(lock: Any) -> Slotted:
    made = Slotted()
    made.slot = lock
    return made


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda lock: lock, ""),
        (lambda lock: [1, lock], "element 1 -> "),
        (lambda lock: {"a": lock}, "key 'a' -> "),
        (lambda lock: {lock: 1}, None),
        (lambda lock: Box(lock), "attribute 'content' of Box -> "),
        (slotted, "attribute 'slot' of Slotted -> "),
        (
            lambda lock: [Box({"k": (lock,)})],
            "element 0 -> attribute 'content' of Box -> key 'k' -> element 0 -> ",
        ),
        (closure, "closure variable 'lock' of function 'inner' -> "),
        (default, "default of parameter 'second' of function 'inner' -> "),
        (made_class, "attribute 'shared' of Local -> "),
        (
            class_with_method,
            "method 'use' of Local -> "
            "closure variable 'lock' of function 'Local.use' -> ",
        ),
        (
            lambda lock: functools.partial(max, lock),
            "argument 0 of partial -> ",
        ),
        (
            lambda lock: Box(lock).method,
            "instance of method 'method' -> attribute 'content' of Box -> ",
        ),
        (
            Reduced,
            "what Reduced.__reduce__ gives as arguments -> element 0 -> ",
        ),
    ],
)
def test_failure_is_led_to_its_culprit(
    make: Callable[[Any], Any], path: str | None
) -> None:
    text = describe_failure(make(threading.Lock()), TypeError("whatever"))
    if path is None:
        assert text.endswith(REASON)
    else:
        assert text == path + REASON


def test_values_that_refer_to_themselves_end_the_search() -> None:
    text = describe_failure(Cyclic(), TypeError("whatever"))
    assert text == f"attribute 'lock' of Cyclic -> {REASON}"


def test_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpicklable, "MAX_TRIES", 3)
    text = describe_failure([1, 2, 3, 4, threading.Lock()], TypeError("whatever"))
    assert text == "list: cannot pickle '_thread.lock' object"


def test_value_that_pickles_after_all_keeps_the_first_reason() -> None:
    assert describe_failure([1], TypeError("once")) == "list: once"


def test_size_report_names_the_largest_first() -> None:
    small, large = b"x" * 2**20, bytearray(3 * 2**20)

    def function(some: bytes = b"y" * 2**19) -> Any:
        return small, large, some

    assert size_report(function) == (
        "closure variable 'large' of function 'function' (bytearray, 3.0 MiB), "
        "closure variable 'small' of function 'function' (bytes, 1.0 MiB), "
        "default of parameter 'some' of function 'function' (bytes, 0.5 MiB)"
    )


def test_size_report_of_a_class_looks_into_its_methods() -> None:
    large = bytearray(2**20)

    class Local:
        def use(self) -> Any:
            return large

    assert size_report(Local).startswith(
        "closure variable 'large' of function 'Local.use' (bytearray, 1.0 MiB)"
    )


def test_size_report_of_a_function_that_captures_nothing() -> None:
    assert "nothing from outside" in size_report(lambda: None)
