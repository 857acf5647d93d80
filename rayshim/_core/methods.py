"""The methods of an actor class, as handles know them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from rayshim._core.signatures import CallSignature
from rayshim.adapters.wire import messages as m

if TYPE_CHECKING:
    from rayshim._core.options import MethodOptions

#: Attribute that ``@ray.method`` leaves on a function: its MethodOptions.
METHOD_OPTIONS = "__rayshim_method__"


class MethodInfo:
    """How one method is called."""

    __slots__ = (
        "backpressure",
        "call_name",
        "concurrency_group",
        "is_async",
        "is_generator",
        "max_task_retries",
        "num_returns",
        "retry_exceptions",
        "signature",
    )

    def __init__(
        self,
        signature: CallSignature,
        *,
        is_generator: bool = False,
        is_async: bool = False,
    ) -> None:
        self.signature = signature
        self.is_generator = is_generator
        self.is_async = is_async
        self.num_returns = m.STREAMING if is_generator else 1
        self.call_name = ""
        self.concurrency_group = ""
        #: None: as the actor's own option says.
        self.max_task_retries: int | None = None
        self.retry_exceptions: Any = False
        self.backpressure = -1

    def with_options(self, options: MethodOptions) -> MethodInfo:
        """A copy with the given options laid over.

        Raises:
            ValueError: a streaming ``num_returns`` for a method that does not yield.
        """
        info = MethodInfo(
            self.signature, is_generator=self.is_generator, is_async=self.is_async
        )
        for name in MethodInfo.__slots__:
            setattr(info, name, getattr(self, name))
        if options.num_returns is not None:
            info.num_returns = self._returns(options.num_returns)
        if options.name:
            info.call_name = options.name
        if options.concurrency_group:
            info.concurrency_group = options.concurrency_group
        if options.max_task_retries is not None:
            info.max_task_retries = options.max_task_retries
        if options.retry_exceptions is not None:
            info.retry_exceptions = options.retry_exceptions
        if options.generator_backpressure is not None:
            info.backpressure = options.generator_backpressure
        return info

    def _returns(self, value: Any) -> int:
        if value in ("streaming", "dynamic"):
            if not self.is_generator:
                raise ValueError(
                    f"num_returns={value!r} needs a method that yields; this one is "
                    "not a generator"
                )
            return m.STREAMING if value == "streaming" else m.DYNAMIC
        return int(value)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: getattr(self, name) for name in MethodInfo.__slots__}
        return _rebuild, (state,)


def _rebuild(state: dict[str, Any]) -> MethodInfo:
    info = MethodInfo.__new__(MethodInfo)
    for name, value in state.items():
        setattr(info, name, value)
    return info


def method_table(cls: type) -> dict[str, MethodInfo]:
    """Name -> info of every method of a class."""
    table = {}
    for name, function in inspect.getmembers(cls, callable):
        static = inspect.getattr_static(cls, name)
        if not _is_method(static):
            continue
        target = inspect.unwrap(function)
        plain = isinstance(static, (staticmethod, classmethod))
        info = MethodInfo(
            CallSignature.of(function, skip_first=not plain),
            is_generator=inspect.isgeneratorfunction(target)
            or inspect.isasyncgenfunction(target),
            is_async=inspect.iscoroutinefunction(target)
            or inspect.isasyncgenfunction(target),
        )
        options = getattr(function, METHOD_OPTIONS, None)
        if options is not None:
            info = info.with_options(options)
        table[name] = info
    return table


def _is_method(static: Any) -> bool:
    if isinstance(static, (staticmethod, classmethod)):
        static = static.__func__
    return inspect.isfunction(static) or hasattr(static, "__wrapped__")


def _any_arguments(*args: Any, **kwargs: Any) -> None:
    """Signature of the built-in methods that take anything."""


def _no_arguments() -> None:
    """Signature of the built-in methods that take nothing."""


#: Methods that every actor has.
BUILTIN_METHODS = {
    "__ray_ready__": MethodInfo(CallSignature.of(_no_arguments)),
    "__ray_terminate__": MethodInfo(CallSignature.of(_no_arguments)),
    "__ray_call__": MethodInfo(CallSignature.of(_any_arguments)),
}
