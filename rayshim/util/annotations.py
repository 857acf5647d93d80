"""Marks of stability, as libraries on top of Ray put on their own names."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any


class AnnotationType(Enum):
    """What a mark says."""

    PUBLIC_API = "PublicAPI"
    DEVELOPER_API = "DeveloperAPI"
    DEPRECATED = "Deprecated"
    UNKNOWN = "Unknown"


class RayDeprecationWarning(DeprecationWarning):
    """A name or a value is going away."""


def PublicAPI(*args: Any, **kwargs: Any) -> Any:
    """Mark a name as stable, or as ``stability="alpha"`` or ``"beta"``.

    Args:
        args: the function or class, when used without parentheses.
        kwargs: ``stability`` and ``api_group``.
    """
    if len(args) == 1 and not kwargs and callable(args[0]):
        return PublicAPI(stability="stable")(args[0])
    stability = kwargs.get("stability", "stable")
    assert stability in ("stable", "alpha", "beta"), stability

    def mark(obj: Any) -> Any:
        if stability != "stable":
            _append(
                obj, f"**PublicAPI ({stability}):** may change before it is stable."
            )
        return _mark(obj, AnnotationType.PUBLIC_API, kwargs.get("api_group", "Others"))

    return mark


def DeveloperAPI(*args: Any, **kwargs: Any) -> Any:
    """Mark a name as one for libraries: it may change between minor releases."""
    if len(args) == 1 and not kwargs and callable(args[0]):
        return DeveloperAPI()(args[0])

    def mark(obj: Any) -> Any:
        _append(obj, "**DeveloperAPI:** may change between minor releases.")
        return _mark(
            obj, AnnotationType.DEVELOPER_API, kwargs.get("api_group", "Others")
        )

    return mark


def Deprecated(*args: Any, **kwargs: Any) -> Any:
    """Mark a name as going away.

    Args:
        args: the function or class, when used without parentheses.
        kwargs: ``message`` says what to use; with ``warning=True`` each call warns.
    """
    if len(args) == 1 and not kwargs and callable(args[0]):
        return Deprecated()(args[0])
    text = "This API is deprecated and may be removed."
    message = kwargs.get("message", "")
    doc = f".. warning::\n\n    **DEPRECATED**: {text}\n    {message}".rstrip()

    def mark(obj: Any) -> Any:
        _append(obj, doc)
        _mark(obj, AnnotationType.DEPRECATED, kwargs.get("api_group", "Others"))
        if not kwargs.get("warning"):
            return obj
        if isinstance(obj, type):
            cls: Any = obj
            cls.__init__ = _warning(cls.__init__, f"{text} {message}")
            return cls
        return _warning(obj, f"{text} {message}")

    return mark


def _warning(function: Callable[..., Any], text: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(text.strip(), RayDeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    return call


def _append(obj: Any, text: str) -> None:
    obj.__doc__ = f"{obj.__doc__ or ''}\n\n{text}\n"


def _mark(obj: Any, kind: AnnotationType, group: str) -> Any:
    obj._annotated = obj.__name__
    obj._annotated_type = kind
    obj._annotated_api_group = group
    return obj
