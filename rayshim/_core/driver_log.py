"""Changes, at run time, how the driver shows what its executors print."""

from __future__ import annotations

import dataclasses
from typing import Any

from rayshim._core import session
from rayshim._core.logprint import DriverLog


def driver_log(
    *,
    show: bool | None = None,
    fold: bool | None = None,
    fold_s: float | None = None,
    allow_regex: str | None = None,
    skip_regex: str | None = None,
    color: str | None = None,
    prefix: bool | None = None,
) -> DriverLog:
    """Say how this driver shows the lines of its executors, from now on.

    What is not given stays as it is. Ray has variables for that, which are read at
    ``init()``: ``RAY_DEDUP_LOGS``, ``RAY_DEDUP_LOGS_ALLOW_REGEX``,
    ``RAY_DEDUP_LOGS_SKIP_REGEX``, ``RAY_COLOR_PREFIX``.

    Args:
        show: whether anything is shown (``init(log_to_driver=)``).
        fold: whether lines that several processes print alike are folded.
        fold_s: seconds in which they are.
        allow_regex: lines in which this is found are never folded; empty: none.
        skip_regex: lines in which this is found are not shown; empty: none.
        color: colours of ``(name pid=N)`` on a terminal: "0" none, "1" one for each
            process, "" one for all.
        prefix: whether lines begin with ``(name pid=N)``.

    Returns:
        What holds now.

    Raises:
        RuntimeError: this process is no driver with a session.
        ValueError: a regular expression is none, or ``fold_s`` is not above 0.

    Example:
        >>> rayshim.driver_log(fold=False).fold  # doctest: +SKIP
        False
    """
    if session.session is None:
        raise RuntimeError("there is no session here: call init() before driver_log()")
    if fold_s is not None and not fold_s > 0:
        raise ValueError(f"fold_s must be above 0 seconds, not {fold_s!r}")
    printer = session.session.log_printer()
    given: dict[str, Any] = {
        "show": show,
        "fold": fold,
        "fold_s": fold_s,
        "allow_regex": allow_regex,
        "skip_regex": skip_regex,
        "color": color,
        "prefix": prefix,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not session.session.options.log_to_driver:
        # Asking alone shows nothing.
        session.session.options.log_to_driver = True
        changes = {"show": False, **changes}
    if changes:
        printer.change(dataclasses.replace(printer.options, **changes))
    return printer.options
