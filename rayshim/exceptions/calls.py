"""Errors of user code in a call, and the class that is also the cause's."""

from __future__ import annotations

from functools import lru_cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, cast

from .base import RayError

#: Flag of classes that were made by a class statement (CPython's object.h).
_HEAP_TYPE = 1 << 9


class UserCodeException(RayError):
    """User code that a library of this package ran has failed."""


class UnserializableException(RayError):
    """A call raised an exception that cannot be loaded in this process.

    Args:
        original_stack_trace: its traceback as text.
    """

    def __init__(self, original_stack_trace: str) -> None:
        super().__init__(original_stack_trace)
        self._original_stack_trace = original_stack_trace

    def __str__(self) -> str:
        return (
            "Failed to deserialize exception: pickle cannot make it again, often "
            "because its __init__ takes other arguments than Exception.args holds. "
            "Give its class a __reduce__.\n"
            f"Original exception:\n{self._original_stack_trace}"
        )


class CrossLanguageError(RayError):
    """A call in another language failed.

    Args:
        ray_exception: message with ``formatted_exception_string`` and ``language``.
    """

    def __init__(self, ray_exception: Any) -> None:
        language = getattr(ray_exception, "language", "another language")
        text = getattr(ray_exception, "formatted_exception_string", "")
        super().__init__(f"An exception raised from {language}:\n{text}")


class TaskCancelledError(RayError):
    """A call was cancelled before or while it ran.

    Args:
        task_id: the task; may be unknown.
        error_message: further words.
    """

    def __init__(self, task_id: Any = None, error_message: str | None = None) -> None:
        self.task_id = task_id
        self.error_message = error_message

    def __str__(self) -> str:
        message = self.error_message or ""
        if self.task_id is None:
            return message
        return f"Task: {self.task_id} was cancelled. {message}".rstrip()


class RayTaskError(RayError):
    """User code raised while a task or a method of an actor ran.

    ``ray.get`` raises an instance of a class that is made of this one and the class
    of the cause (see :meth:`as_instanceof_cause`), so that both ``except`` work::

        try:
            ray.get(divide.remote(1, 0))
        except ZeroDivisionError as error:
            error.cause   # the exception itself, as raised there

    Args:
        function_name: what was called.
        traceback_str: the traceback as Python formats it, chained causes included.
        cause: the exception; if it could not be transported, another that says so.
        proctitle: what the header calls the process, such as ``ray::f``.
        pid: its process id.
        ip: its node's address.
        actor_repr: ``repr`` of the actor, of calls on one.
        actor_id: its id in hex.
    """

    def __init__(
        self,
        function_name: str,
        traceback_str: str,
        cause: Any,
        proctitle: str | None = None,
        pid: int | None = None,
        ip: str | None = None,
        actor_repr: str | None = None,
        actor_id: str | None = None,
    ) -> None:
        if pid is None:
            import os

            pid = os.getpid()
        self.function_name = function_name
        self.traceback_str = traceback_str
        self.cause = cause
        self.proctitle = f"ray::{function_name}" if proctitle is None else proctitle
        self.pid = pid
        self.ip = "127.0.0.1" if ip is None else ip
        self.actor_repr = actor_repr
        self._actor_id = actor_id

    def as_instanceof_cause(self) -> RayTaskError:
        """Return this error as an instance of the cause's class as well.

        Returns:
            This error itself when it already is such an instance, when there is no
            cause, or when no class can be made of both.
        """
        cause = _innermost(self.cause)
        if not isinstance(cause, BaseException) or isinstance(self, type(cause)):
            return self
        try:
            return self.make_dual_exception_instance()
        except Exception as problem:
            import logging

            logging.getLogger(__name__).warning(
                "cannot raise the error of %s as a %s, only as RayTaskError: %s; "
                "its cause attribute has the exception",
                self.function_name,
                type(cause).__name__,
                problem,
            )
            return self

    def make_dual_exception_instance(self) -> RayTaskError:
        """Return the same error as an instance of both classes.

        Raises:
            TypeError: the cause is no exception, or its class refuses.
        """
        cause = _innermost(self.cause)
        if not isinstance(cause, BaseException):
            raise TypeError(f"the cause must be an exception, not {cause!r}")
        return _new_dual(self, cause)

    def __str__(self) -> str:
        header = f"{self.proctitle}() (pid={self.pid}, ip={self.ip}"
        if self._actor_id:
            header += f", actor_id={self._actor_id}"
        if self.actor_repr:
            header += f", repr={self.actor_repr}"
        header += ")"
        text = _without_own_frames(self.traceback_str.strip("\n"))
        begin = "Traceback (most recent call last):"
        lines = [header if line == begin else line for line in text.split("\n")]
        if not (lines[0] == header or lines[0].startswith("ray::") or header in lines):
            lines.insert(0, header)
        return "\n".join(lines)


def _innermost(cause: Any) -> Any:
    """An error that passed through other calls has the type of the first."""
    while isinstance(cause, RayTaskError) and cause.cause is not None:
        cause = cause.cause
    return cause


def _without_own_frames(text: str) -> str:
    """Drop the frames of ``rayshim/_core``: they say nothing about user code."""
    lines = []
    is_own = False
    for line in text.split("\n"):
        if line.startswith('  File "'):
            is_own = "/rayshim/_core/" in line
        elif not line.startswith("    "):
            is_own = False
        if not is_own:
            lines.append(line)
    return "\n".join(lines)


@lru_cache(maxsize=256)
def _dual_class(cause_class: type[BaseException]) -> type[RayTaskError]:
    """Make the class ``RayTaskError(Name)`` with both as bases.

    Its instances keep the plain error as ``_task_error`` instead of its attributes,
    so that those of the cause are found first, be it under the same name.
    """
    name = f"RayTaskError({cause_class.__name__})"

    def __getattr__(self: Any, attribute: str) -> Any:
        own = self.__dict__
        if not attribute.startswith("__") and "_task_error" in own:
            for source in (own["cause"], own["_task_error"]):
                try:
                    return getattr(source, attribute)
                except AttributeError:
                    continue
        raise AttributeError(f"{name!r} object has no attribute {attribute!r}")

    def __str__(self: Any) -> str:
        return str(self.__dict__["_task_error"])

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return _load_dual, (self.__dict__["_task_error"],)

    namespace = {
        "__module__": RayTaskError.__module__,
        "__doc__": f"A call failed with {cause_class.__name__}; see ``cause``.",
        "__getattr__": __getattr__,
        "__str__": __str__,
        "__reduce__": __reduce__,
    }
    return cast(type[RayTaskError], type(name, (RayTaskError, cause_class), namespace))


def _new_dual(task_error: RayTaskError, cause: BaseException) -> RayTaskError:
    kind: Any = type(cause)
    cls: Any = _dual_class(kind)
    # Neither __new__ nor __init__ of a user's class runs: nobody knows what they want.
    builtin = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    if isinstance(cause, BaseExceptionGroup):
        # Groups take their members when made and not later.
        error = builtin.__new__(cls, cause.message, cause.exceptions)
    else:
        error = _bare(cls, builtin)
    error.__dict__.update(cause=cause, _task_error=task_error)
    _copy_slots(cause, error)
    vars(BaseException)["args"].__set__(error, (cause,))
    return cast(RayTaskError, error)


def _bare(cls: Any, builtin: Any) -> Any:
    try:
        return builtin.__new__(cls)
    except TypeError:
        # A class with the layout of Exception but a __new__ of its own, as
        # MemoryError: Python then wants the one that goes with the layout.
        return Exception.__new__(cls)


def _load_dual(task_error: RayTaskError) -> RayTaskError:
    return task_error.as_instanceof_cause()


def _copy_slots(source: BaseException, target: BaseException) -> None:
    """Copy what is not in ``__dict__``: ``errno``, ``filename``, ``value``, ..."""
    kinds = (MemberDescriptorType, GetSetDescriptorType)
    for cls in type(source).__mro__:
        for name, descriptor in vars(cls).items():
            # args and what begins with __ every exception has of its own.
            if name == "args" or name.startswith("__"):
                continue
            if isinstance(descriptor, kinds):
                try:
                    descriptor.__set__(target, descriptor.__get__(source))
                except (AttributeError, TypeError):
                    continue  # read-only, or never set
