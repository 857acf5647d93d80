"""What a process of a pool does."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

#: Positional and keyword arguments of one call.
Call = tuple[Any, dict[str, Any]]


class RemoteTraceback(Exception):
    """The traceback of another process, as the cause of what was raised there."""


class Failure:
    """What a call raised, in the place of its result.

    Args:
        error: what it raised.
        trace: its traceback, as text.
    """

    def __init__(self, error: BaseException, trace: str) -> None:
        self.error = error
        self.trace = trace

    def exception(self) -> BaseException:
        """The error, with the traceback of the process as its cause."""
        self.error.__cause__ = RemoteTraceback(f'\n"""\n{self.trace}"""')
        return self.error


class PoolActor:
    """One process of a pool.

    Args:
        initializer: called first, in this process.
        initargs: its arguments.
    """

    def __init__(
        self, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
    ) -> None:
        if initializer is not None:
            initializer(*initargs)

    def ping(self) -> None:
        """Answers when the process is ready."""

    def run(self, func: Callable[..., Any], calls: list[Call]) -> list[Any]:
        """Results of calls, a `Failure` where one raised."""
        return [_call(func, args, kwargs) for args, kwargs in calls]


def _call(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    try:
        return func(*args, **kwargs)
    except Exception as error:
        trace = traceback.format_exc()
        try:
            cloudpickle.loads(cloudpickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return Failure(error, trace)
