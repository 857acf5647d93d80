"""Functions and classes as they travel: pickled once, named, measured."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from rayshim._core.calls import FunctionRecord
from rayshim._core.serialization import serialize_code
from rayshim._core.unpicklable import describe_failure, size_report
from rayshim.adapters.wire.codec import as_text
from rayshim.settings import Settings

logger = logging.getLogger("rayshim")


def pickle_function(
    function: Any, qualified: str, settings: Settings, kind: str = "function"
) -> FunctionRecord:
    """Pickle a function or class by value, as it is now.

    Args:
        function: what user code decorated.
        qualified: ``module.name`` for messages.
        settings: the limits of its size.
        kind: "function" or "actor class".

    Raises:
        TypeError: it cannot be pickled; the text leads to the culprit.
        ValueError: it is larger than ``function_limit_bytes``.
    """
    try:
        blob, refs = serialize_code(function)
    except Exception as error:
        raise TypeError(
            f"Could not serialize the {kind} {qualified}: "
            f"{describe_failure(function, error)}"
        ) from error
    if len(blob) > settings.function_warn_bytes:
        report = size_report(function)
        size = len(blob) / 2**20
        if len(blob) > settings.function_limit_bytes:
            raise ValueError(
                f"The {kind} {qualified} is too large ({size:.0f} MiB; the limit is "
                f"{settings.function_limit_bytes / 2**20:.0f} MiB). It captures: "
                f"{report}. Put large values in the store with put() and pass the "
                "reference."
            )
        logger.warning(
            "The %s %s is very large (%.0f MiB pickled). It captures: %s. Put large "
            "values in the store with put() and pass the reference.",
            kind,
            qualified,
            size,
            report,
        )
    key = hashlib.blake2b(blob, digest_size=16).digest()
    name = getattr(function, "__name__", qualified)
    return FunctionRecord(key, blob, as_text(name), as_text(qualified), refs)
