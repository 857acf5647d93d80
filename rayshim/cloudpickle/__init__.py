"""The cloudpickle library under the name that Ray programs use."""

from __future__ import annotations

from typing import Any

from cloudpickle import (
    DEFAULT_PROTOCOL,
    CloudPickler,
    Pickler,
    cloudpickle,
    dump,
    dumps,
    load,
    loads,
    register_pickle_by_value,
    unregister_pickle_by_value,
)

__all__ = [
    "DEFAULT_PROTOCOL",
    "CloudPickler",
    "Pickler",
    "cloudpickle",
    "dump",
    "dump_debug",
    "dumps",
    "dumps_debug",
    "load",
    "loads",
    "register_pickle_by_value",
    "unregister_pickle_by_value",
]


def dumps_debug(obj: Any, *args: Any, **kwargs: Any) -> bytes:
    """Like ``dumps``; where it fails, the error tells the way to the culprit.

    Raises:
        TypeError: ``obj`` does not pickle.
    """
    try:
        return bytes(dumps(obj, *args, **kwargs))
    except (TypeError, OverflowError) as error:
        raise _explained(obj, error) from error


def dump_debug(obj: Any, *args: Any, **kwargs: Any) -> None:
    """Like ``dump``; where it fails, the error tells the way to the culprit.

    Raises:
        TypeError: ``obj`` does not pickle.
    """
    try:
        dump(obj, *args, **kwargs)
    except (TypeError, OverflowError) as error:
        raise _explained(obj, error) from error


def _explained(obj: Any, error: Exception) -> TypeError:
    from rayshim._core.unpicklable import describe_failure

    return TypeError(
        f"Could not serialize {obj!r:.200}: {describe_failure(obj, error)}"
    )
