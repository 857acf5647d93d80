"""Options of tasks, actors and methods: checked once, then plain frozen values.

Names, types, defaults and limits are Ray's; those that no user may set without knowing
Ray's private names lose their underscore here. Values are checked where they are given
(at decoration or in ``.options()``), so a call with settled options costs nothing.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from rayshim._core.label_selectors import (
    check_fallback_strategy,
    check_label_selector,
)
from rayshim._core.sendable import MAX_AMOUNT, check_text

#: Classes that are known by name, since loading them here would load all of util.
_STRATEGIES = (
    "PlacementGroupSchedulingStrategy",
    "NodeAffinitySchedulingStrategy",
    "NodeLabelSchedulingStrategy",
)
#: The smallest amount of a resource that can be told from none.
RESOURCE_PRECISION = 0.0001
#: The largest whole number of an option.
MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Rule:
    """What one keyword accepts."""

    #: Types, None included where it is accepted.
    kinds: tuple[type, ...]
    #: Raises for values of the right type that are wrong; gets keyword and value.
    check: Callable[[str, Any], None] | None = None
    #: Names of further classes.
    class_names: tuple[str, ...] = ()

    def apply(self, keyword: str, value: Any) -> None:
        """Raise TypeError or ValueError unless ``value`` is accepted."""
        if not isinstance(value, self.kinds):
            names = {kind.__name__ for kind in type(value).__mro__}
            if names.isdisjoint(self.class_names):
                wanted = [kind.__name__ for kind in self.kinds]
                raise TypeError(
                    f"The type of keyword '{keyword}' must be "
                    f"{' or '.join([*wanted, *self.class_names])}, but received type "
                    f"{type(value)}"
                )
        elif self.check is not None and value is not None:
            self.check(keyword, value)


def _check_amount(keyword: str, value: Any) -> None:
    if not isinstance(value, (int, float)):
        raise TypeError(
            f"The quantity of resource {keyword} must be a number, not {value!r}"
        )
    if value != value or value in (math.inf, -math.inf):
        raise ValueError(f"The quantity of resource {keyword} must be finite")
    if value > MAX_AMOUNT:
        raise ValueError(
            f"The quantity of resource {keyword} cannot be more than {MAX_AMOUNT:g}: "
            "no node has as much"
        )
    if value < 0:
        raise ValueError(
            f"The quantity of resource {keyword} cannot be negative, got {value}"
        )
    if 0 < value < RESOURCE_PRECISION:
        raise ValueError(
            f"The precision of the fractional quantity of resource {keyword} cannot go "
            f"beyond {RESOURCE_PRECISION}, got {value}"
        )


def _check_resources(keyword: str, value: dict[Any, Any]) -> None:
    if "CPU" in value or "GPU" in value:
        raise ValueError(
            "Use the 'num_cpus' and 'num_gpus' keyword instead of 'CPU' and 'GPU' in "
            f"'{keyword}' keyword"
        )
    for name, amount in value.items():
        if not isinstance(name, str):
            raise TypeError(f"'{keyword}' maps text to numbers, not {name!r}")
        if not name:
            raise ValueError(f"'{keyword}' has a resource without a name")
        check_text(keyword, name)
        _check_amount(name, amount)


def _at_least(lowest: int) -> Callable[[str, Any], None]:
    words = {0: "None, 0 or a positive integer", 1: "None or a positive integer"}
    text = words.get(lowest, "None, 0, -1 or a positive integer")
    if lowest == -1:
        text += ", where -1 represents infinity"

    def check(keyword: str, value: int) -> None:
        if value < lowest:
            raise ValueError(
                f"The keyword '{keyword}' only accepts {text}; got {value}"
            )
        if value > MAX_NUMBER:
            raise ValueError(f"The keyword '{keyword}' is at most {MAX_NUMBER}")

    return check


def _check_num_returns(keyword: str, value: int | str) -> None:
    if isinstance(value, str):
        if value not in ("dynamic", "streaming"):
            raise TypeError(
                f"The keyword '{keyword}' accepts a non-negative integer, 'streaming' "
                f"or 'dynamic', not {value!r}"
            )
    elif value < 0:
        raise ValueError(
            f"{keyword} must be >= 0 (or None: 1, or 'streaming' for generators), but "
            f"got {value}"
        )
    elif value > MAX_NUMBER:
        raise ValueError(f"{keyword} is at most {MAX_NUMBER}")


def _check_backpressure(keyword: str, value: int) -> None:
    if value == 0:
        raise ValueError(
            f"{keyword}=0 is not allowed: nothing would ever be yielded. Use the "
            "number of objects that may wait for the consumer, or -1 for no limit."
        )


def _check_actor_backpressure(keyword: str, value: int) -> None:
    _check_backpressure(keyword, value)
    _at_least(-1)(keyword, value)


def _check_retry_exceptions(keyword: str, value: Any) -> None:
    if isinstance(value, bool):
        return
    for kind in value:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError(
                f"{keyword} must be either a boolean or a list of exceptions; it holds "
                f"{kind!r}"
            )


def _check_lifetime(keyword: str, value: str) -> None:
    if value not in ("detached", "non_detached"):
        raise ValueError(
            f"actor `{keyword}` argument must be one of 'detached', 'non_detached' and "
            f"None, not {value!r}"
        )


def _check_not_for_tasks(keyword: str, value: Any) -> None:
    raise ValueError(f"Setting '{keyword}' is not implemented for tasks")


def _check_runtime_env(keyword: str, value: dict[str, Any]) -> None:
    if value:
        from rayshim.runtime_env import check_runtime_env

        check_runtime_env(value)


_NONE = type(None)
_AMOUNT = _Rule((float, int, _NONE), _check_amount)
_TEXT = _Rule((str, _NONE), check_text)
_FLAG = _Rule((bool, _NONE))

#: Keywords of tasks and actors alike.
_COMMON = {
    "num_cpus": _AMOUNT,
    "num_gpus": _AMOUNT,
    "memory": _AMOUNT,
    "resources": _Rule((dict, _NONE), _check_resources),
    "accelerator_type": _TEXT,
    "label_selector": _Rule((dict, _NONE), lambda _, v: check_label_selector(v)),
    "fallback_strategy": _Rule((list, _NONE), lambda _, v: check_fallback_strategy(v)),
    "name": _TEXT,
    "runtime_env": _Rule((dict, _NONE), _check_runtime_env),
    "scheduling_strategy": _Rule((_NONE, str), class_names=_STRATEGIES),
    "placement_group": _Rule((_NONE, str), class_names=("PlacementGroup",)),
    "placement_group_bundle_index": _Rule((int,)),
    "placement_group_capture_child_tasks": _FLAG,
    "enable_task_events": _Rule((bool,)),
    "_labels": _Rule((dict, _NONE)),
}
_TASK = {
    **_COMMON,
    "object_store_memory": _Rule((int, _NONE), _check_not_for_tasks),
    "num_returns": _Rule((int, str, _NONE), _check_num_returns),
    "max_calls": _Rule((int, _NONE), _at_least(0)),
    "max_retries": _Rule((int, _NONE), _at_least(-1)),
    "retry_exceptions": _Rule((bool, list, tuple), _check_retry_exceptions),
    "_generator_backpressure_num_objects": _Rule((int, _NONE), _check_backpressure),
    "_num_objects_per_yield": _Rule((int, _NONE), _at_least(1)),
}
_ACTOR = {
    **_COMMON,
    "object_store_memory": _Rule((int, _NONE), _at_least(0)),
    "namespace": _TEXT,
    "lifetime": _Rule((str, _NONE), _check_lifetime),
    "get_if_exists": _Rule((bool,)),
    "max_restarts": _Rule((int, _NONE), _at_least(-1)),
    "max_task_retries": _Rule((int, _NONE), _at_least(-1)),
    "max_concurrency": _Rule((int, _NONE), _at_least(0)),
    "max_pending_calls": _Rule((int, _NONE), _at_least(-1)),
    "concurrency_groups": _Rule((list, dict, _NONE)),
    "allow_out_of_order_execution": _FLAG,
    "enable_tensor_transport": _FLAG,
    "_actor_generator_backpressure_num_objects": _Rule(
        (int, _NONE), _check_actor_backpressure
    ),
}
_METHOD = {
    "num_returns": _TASK["num_returns"],
    "concurrency_group": _TEXT,
    "max_task_retries": _ACTOR["max_task_retries"],
    "retry_exceptions": _Rule((bool, list, tuple, _NONE), _check_retry_exceptions),
    "enable_task_events": _Rule((bool, _NONE)),
    "tensor_transport": _TEXT,
    "_generator_backpressure_num_objects": _Rule((int, _NONE), _check_backpressure),
    "_num_objects_per_yield": _Rule((int, _NONE), _at_least(1)),
}
_METHOD_CALL = {**_METHOD, "name": _TEXT}

#: Keyword -> field, where the two differ.
_FIELDS = {
    "_labels": "labels",
    "_generator_backpressure_num_objects": "generator_backpressure",
    "_actor_generator_backpressure_num_objects": "generator_backpressure",
    "_num_objects_per_yield": "objects_per_yield",
}
#: Field -> what a None for it means, where the field itself is never None.
_IF_NONE: dict[str, Any] = {"generator_backpressure": -1, "objects_per_yield": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What tasks and actors have in common. None: not asked for."""

    _rules: ClassVar[dict[str, _Rule]]
    _kind: ClassVar[str]
    #: Keywords that are refused in ``.options()``.
    _only_at_decoration: ClassVar[frozenset[str]]

    #: Logical CPUs, GPUs, bytes of memory, and custom resources by name.
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: float | None = None
    object_store_memory: int | None = None
    resources: dict[str, float] | None = None
    accelerator_type: str | None = None
    label_selector: dict[str, str] | None = None
    fallback_strategy: list[dict[str, Any]] | None = None
    name: str | None = None
    runtime_env: dict[str, Any] | None = None
    scheduling_strategy: Any = None
    placement_group: Any = "default"
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None
    enable_task_events: bool = True
    labels: dict[str, str] | None = None

    def merge(self, **overrides: Any) -> Self:
        """Return a copy with other values of some fields, unchecked."""
        return dataclasses.replace(self, **overrides)

    @classmethod
    def _fields_of(cls, keywords: dict[str, Any]) -> dict[str, Any]:
        """Check keywords of the user; return field values."""
        has_group = keywords.get("placement_group") not in (None, "default")
        if has_group and keywords.get("scheduling_strategy") is not None:
            raise ValueError(
                "placement_group and scheduling_strategy both say where to run; leave "
                "placement_group out and pass PlacementGroupSchedulingStrategy(group) "
                "as scheduling_strategy"
            )
        fields = {}
        for keyword, value in keywords.items():
            rule = cls._rules.get(keyword)
            if rule is None:
                raise ValueError(
                    f"Invalid option keyword {keyword} for {cls._kind}. Valid ones "
                    f"are {', '.join(sorted(cls._rules))}."
                )
            rule.apply(keyword, value)
            field = _FIELDS.get(keyword, keyword)
            fields[field] = _IF_NONE.get(field) if value is None else value
        return fields

    @classmethod
    def _refuse_at_call(cls, keywords: dict[str, Any]) -> None:
        for keyword in cls._only_at_decoration:
            if keyword in keywords:
                raise ValueError(
                    f"Setting '{keyword}' is not supported in '.options()'; it "
                    "belongs to the decorator."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions(_Options):
    """Options of a remote function or of a call of one."""

    _rules: ClassVar[dict[str, _Rule]] = _TASK
    _kind: ClassVar[str] = "remote functions"
    _only_at_decoration: ClassVar[frozenset[str]] = frozenset(("max_calls",))

    num_cpus: float | None = 1
    #: A number, "streaming" or "dynamic"; None: 1, or "streaming" of a generator.
    num_returns: int | str | None = None
    #: Calls after which an executor is replaced; 0: never.
    max_calls: int | None = 0
    #: Further runs after a crash; -1: without limit.
    max_retries: int | None = 3
    #: Whether, or for which errors, a failed call runs again too.
    retry_exceptions: bool | list[type[BaseException]] | tuple[Any, ...] = False
    #: Objects that may wait for the consumer; -1: any number.
    generator_backpressure: int = -1
    objects_per_yield: int = 1

    @classmethod
    def validated(cls, *, is_generator: bool = False, **keywords: Any) -> Self:
        """Check the keywords of ``@remote`` over a function.

        Args:
            is_generator: whether the function yields.
            keywords: as the user wrote them.

        Raises:
            ValueError: an unknown keyword, or a value out of range.
            TypeError: a value of the wrong type.
        """
        fields = cls._fields_of(keywords)
        _check_yields(fields.get("num_returns"), is_generator)
        return cls(**fields)

    def merge_validated(self, *, is_generator: bool = False, **keywords: Any) -> Self:
        """Check the keywords of ``function.options()`` and lay them over these.

        Raises:
            ValueError, TypeError: as :meth:`validated`.
        """
        fields = self._fields_of(keywords)
        self._refuse_at_call(keywords)
        _check_yields(fields.get("num_returns"), is_generator)
        return self.merge(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOptions(_Options):
    """Options of an actor class or of one actor."""

    _rules: ClassVar[dict[str, _Rule]] = _ACTOR
    _kind: ClassVar[str] = "actors"
    _only_at_decoration: ClassVar[frozenset[str]] = frozenset(("concurrency_groups",))

    namespace: str | None = None
    #: "detached": outlives its job.
    lifetime: str | None = None
    get_if_exists: bool = False
    #: Further incarnations; -1: without limit.
    max_restarts: int | None = 0
    #: Further tries of a call that a death interrupts; -1: without limit.
    max_task_retries: int | None = 0
    #: Calls at a time; None or 0: 1, or 1000 of an async actor.
    max_concurrency: int | None = None
    #: Calls of one caller that may wait; -1 or 0: any number.
    max_pending_calls: int | None = -1
    #: Group name -> calls at a time.
    concurrency_groups: Any = None
    allow_out_of_order_execution: bool | None = None
    enable_tensor_transport: bool | None = None
    #: Objects of a generator method that may wait for the consumer; -1: any number.
    generator_backpressure: int = -1

    @classmethod
    def validated(cls, **keywords: Any) -> Self:
        """Check the keywords of ``@remote`` over a class.

        Raises:
            ValueError: an unknown keyword, or a value out of range.
            TypeError: a value of the wrong type.
        """
        return cls(**cls._fields_of(keywords))._consistent()

    def merge_validated(self, **keywords: Any) -> Self:
        """Check the keywords of ``Class.options()`` and lay them over these.

        Raises:
            ValueError, TypeError: as :meth:`validated`.
        """
        fields = self._fields_of(keywords)
        self._refuse_at_call(keywords)
        return self.merge(**fields)._consistent()

    def _consistent(self) -> Self:
        if self.get_if_exists and not self.name:
            raise ValueError("The actor name must be specified to use `get_if_exists`.")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOptions:
    """Options of an actor's method or of one call; None: as before."""

    name: str | None = None
    num_returns: int | str | None = None
    concurrency_group: str | None = None
    max_task_retries: int | None = None
    retry_exceptions: bool | list[type[BaseException]] | tuple[Any, ...] | None = None
    generator_backpressure: int | None = None
    objects_per_yield: int | None = None
    enable_task_events: bool | None = None
    tensor_transport: str | None = None

    @classmethod
    def for_decorator(cls, **keywords: Any) -> Self:
        """Check the keywords of ``@ray.method``.

        Raises:
            AssertionError: an unknown keyword.
            ValueError, TypeError: a wrong value.
        """
        for keyword in keywords:
            assert keyword in _METHOD, (
                f"Unexpected keyword argument to @ray.method: '{keyword}'. The "
                f"supported keyword arguments are {', '.join(sorted(_METHOD))}."
            )
        return cls._checked(keywords)

    @classmethod
    def for_call(cls, **keywords: Any) -> Self:
        """Check the keywords of ``handle.method.options()``.

        Raises:
            TypeError: an unknown keyword.
            ValueError, TypeError: a wrong value.
        """
        for keyword in keywords:
            if keyword not in _METHOD_CALL:
                raise TypeError(
                    f"options() of a method got an unexpected keyword argument "
                    f"'{keyword}'; it takes {', '.join(sorted(_METHOD_CALL))}"
                )
        return cls._checked(keywords)

    @classmethod
    def _checked(cls, keywords: dict[str, Any]) -> Self:
        fields = {}
        for keyword, value in keywords.items():
            _METHOD_CALL[keyword].apply(keyword, value)
            fields[_FIELDS.get(keyword, keyword)] = value
        if fields.get("num_returns") == "dynamic":
            _warn_dynamic()
        return cls(**fields)


def _check_yields(num_returns: Any, is_generator: bool) -> None:
    if not isinstance(num_returns, str):
        return
    if num_returns == "dynamic":
        _warn_dynamic()
    if not is_generator:
        raise ValueError(
            f"num_returns='{num_returns}' can only be used with generator functions "
            "(functions that use 'yield'). The decorated function is not a generator "
            "function."
        )


def _warn_dynamic() -> None:
    from rayshim.util.annotations import RayDeprecationWarning

    warnings.warn(
        "num_returns='dynamic' is deprecated; use num_returns='streaming' instead.",
        RayDeprecationWarning,
        stacklevel=5,
    )
