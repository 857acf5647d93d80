from __future__ import annotations

import functools
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim._core.signatures import CallSignature


def two(a: int, b: int = 2) -> None: ...


def keyword_only(a: int, *, key: int, other: int = 0) -> None: ...


def positional_only(a: int, /, b: int = 0) -> None: ...


def anything(*args: int, **kwargs: int) -> None: ...


def some(a: int, *args: int, key: int = 0, **kwargs: int) -> None: ...


def nothing() -> None: ...


@functools.wraps(two)
def wrapped(*args: int, **kwargs: int) -> None: ...


class Plain:
    pass


class Custom:
    def __init__(self, size: int) -> None: ...

    def method(self, x: int, y: int = 0) -> None: ...

    def __call__(self, x: int) -> None: ...


FUNCTIONS: list[Callable[..., Any]] = [
    two,
    keyword_only,
    positional_only,
    anything,
    some,
    nothing,
    wrapped,
    functools.partial(two, 1),
    functools.partial(two, b=1),
    Custom(1),
    Custom(1).method,
    Custom,
]


@given(
    function=st.sampled_from(FUNCTIONS),
    count=st.integers(0, 4),
    keywords=st.sets(st.sampled_from(["a", "b", "key", "other", "x", "size"])),
    through_pickle=st.booleans(),
)
def test_agrees_with_bind(
    function: Callable[..., Any],
    count: int,
    keywords: set[str],
    through_pickle: bool,
) -> None:
    signature = CallSignature.of(function)
    if through_pickle:
        signature = pickle.loads(pickle.dumps(signature))
    args, kwargs = tuple(range(count)), dict.fromkeys(keywords, 0)
    expected = text = ""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        expected = str(error)
    try:
        signature.check(args, kwargs)
    except TypeError as error:
        text = str(error)
    assert text == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((1, 2, 3), {}, "too many positional arguments"),
        ((), {}, "missing a required argument: 'a'"),
        ((1,), {"c": 1}, "got an unexpected keyword argument 'c'"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ],
)
def test_texts_are_those_that_users_know(
    args: tuple[int, ...], kwargs: dict[str, int], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        CallSignature.of(two).check(args, kwargs)


def test_self_is_left_out() -> None:
    signature = CallSignature.of(Custom.method, skip_first=True)
    signature.check((1,), {"y": 2})
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        signature.check((), {})


def test_class_without_constructor_takes_nothing() -> None:
    signature = CallSignature.of(Plain.__init__, skip_first=True)
    signature.check((), {})
    with pytest.raises(TypeError, match="too many positional arguments"):
        signature.check((1,), {})


def test_first_parameter_that_takes_all_is_not_left_out() -> None:
    CallSignature.of(anything, skip_first=True).check((1, 2), {})


@pytest.mark.parametrize("function", [dict.update, iter, max])
def test_callables_without_a_signature_take_everything(function: Any) -> None:
    signature = CallSignature.of(function)
    pickle.loads(pickle.dumps(signature)).check((1, 2, 3, 4), {"x": 1})


def test_default_values_do_not_travel() -> None:
    def function(lock: Any = threading.Lock()) -> None: ...  # noqa: B008

    pickle.loads(pickle.dumps(CallSignature.of(function))).check((), {})
