"""Whether arguments fit a signature: asked in the caller, for every call.

The common call has positional arguments only, and then two comparisons answer. With
keywords a few dictionary look-ups do. What these cannot accept goes to
``inspect.Signature.bind``, which knows all of Python's rules and words its errors as
users of Ray know them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
#: Stands for any default value: whether there is one is all that matters, and the
#: values themselves may be large or refuse to be pickled.
_SOME_DEFAULT = ...
_NEVER = sys.maxsize


class CallSignature:
    """The parameters of a function, made for checking calls fast.

    Immutable, safe to share between threads, and small when pickled: neither default
    values nor annotations are kept.
    """

    __slots__ = ("_from", "_names", "_parameters", "_required", "_signature", "_to")

    def __init__(self, parameters: list[inspect.Parameter] | None) -> None:
        """Args: parameters: None accepts every call."""
        self._parameters = parameters
        #: Numbers of positional arguments that fit when there are no keywords;
        #: ``_from`` is out of reach where keywords are needed.
        self._from, self._to = 0, _NEVER
        #: Name -> position of parameters that may be given by keyword; keyword-only
        #: ones count on. Empty where the fast check does not apply.
        self._names: dict[str, int] = {}
        #: Positions (as in ``_names``) of parameters without a default.
        self._required: frozenset[int] = frozenset()
        self._signature: inspect.Signature | None = None
        if parameters is not None:
            self._prepare(parameters)

    def _prepare(self, parameters: list[inspect.Parameter]) -> None:
        kinds = {parameter.kind for parameter in parameters}
        positional = [p for p in parameters if p.kind in _POSITIONAL]
        keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        needs_keyword = any(p.default is p.empty for p in keyword_only)
        required = [p for p in positional if p.default is p.empty]
        self._from = _NEVER if needs_keyword else len(required)
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            self._to = len(positional)
        if not kinds & {
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        }:
            named = [*positional, *keyword_only]
            self._names = {p.name: position for position, p in enumerate(named)}
            self._required = frozenset(
                position for position, p in enumerate(named) if p.default is p.empty
            )
        self._signature = inspect.Signature(parameters)

    @classmethod
    def of(cls, function: Any, *, skip_first: bool = False) -> CallSignature:
        """Make the signature of anything callable.

        Args:
            function: a function, method, class, partial or other callable. One that
                tells no signature, as some written in C, accepts every call.
            skip_first: leave out the first parameter, which is ``self``.
        """
        if function is object.__init__:
            # A class without a constructor of its own takes no arguments.
            return cls([])
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return cls(None)
        if skip_first and parameters and parameters[0].kind in _POSITIONAL:
            del parameters[0]
        return cls([_bare(parameter) for parameter in parameters])

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise ``TypeError`` unless the arguments fit.

        The text is Python's own: "too many positional arguments", "missing a required
        argument: 'x'", "got an unexpected keyword argument 'y'", "multiple values for
        argument 'x'".
        """
        count = len(args)
        if not kwargs:
            if self._from <= count <= self._to:
                return
        elif count <= self._to and self._fits(count, kwargs):
            return
        if self._signature is not None:
            self._signature.bind(*args, **kwargs)

    def _fits(self, count: int, kwargs: dict[str, Any]) -> bool:
        """Whether the arguments surely fit; False also means "cannot say"."""
        names = self._names
        given = 0
        required = self._required
        for name in kwargs:
            position = names.get(name, -1)
            if position < count:
                return False  # unknown here, or given twice
            if position in required:
                given += 1
        if not names:
            return False
        return given == sum(1 for position in required if position >= count)

    def __reduce__(self) -> tuple[Callable[..., CallSignature], tuple[Any, ...]]:
        if self._parameters is None:
            return CallSignature, (None,)
        return _rebuild, (
            tuple(
                (p.name, int(p.kind), p.default is not p.empty)
                for p in self._parameters
            ),
        )

    def __repr__(self) -> str:
        return f"CallSignature({self._signature})"


def _bare(parameter: inspect.Parameter) -> inspect.Parameter:
    return _parameter(
        parameter.name,
        int(parameter.kind),
        parameter.default is not parameter.empty,
    )


def _parameter(name: str, kind: int, has_default: bool) -> inspect.Parameter:
    default = _SOME_DEFAULT if has_default else inspect.Parameter.empty
    return inspect.Parameter(name, _KINDS[kind], default=default)


@functools.lru_cache(maxsize=1024)
def _rebuild(parameters: tuple[tuple[str, int, bool], ...]) -> CallSignature:
    return CallSignature([_parameter(*parameter) for parameter in parameters])


_KINDS = {
    int(kind): kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}
