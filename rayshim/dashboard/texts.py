"""Numbers, times and ids as people read them; the filters of the templates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: Resources that are amounts of memory.
_MEMORY = frozenset({"memory", "object_store_memory"})
#: Digits of an id that a table shows.
ID_DIGITS = 12
#: Words of states -> how they look; see ``style.css``.
_TONES = {
    "good": "ALIVE FINISHED SUCCEEDED CREATED GRANTED IDLE TRUE",
    "busy": "RUNNING BUSY STARTING LEASED",
    "wait": "PENDING WAITING PENDING_CREATION RESTARTING RESCHEDULING SUSPECT "
    "DRAINING PLACING "
    "PENDING_ARGS_AVAIL PENDING_NODE_ASSIGNMENT PENDING_OBJ_STORE_MEM_AVAIL "
    "PENDING_ARGS_FETCH SUBMITTED_TO_WORKER DEPENDENCIES_UNREADY JOINING",
    "bad": "FAILED INFEASIBLE OUT_OF_MEMORY LOST",
    "gone": "DEAD REMOVED STOPPED NIL FALSE",
}
_TONE = {word: tone for tone, words in _TONES.items() for word in words.split()}


def size(value: Any) -> str:
    """Bytes with a unit.

    Example:
        >>> size(1536), size(3 << 30), size(None)
        ('1.5 KiB', '3.0 GiB', '–')
    """
    if not isinstance(value, int | float):
        return "–"
    amount = float(value)
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def share(used: Any, total: Any) -> str:
    """Bytes of a total, with the unit once where it is the same.

    Example:
        >>> share(3 << 30, 4 << 30), share(5, 1 << 20)
        ('3.0 of 4.0 GiB', '5 B of 1.0 MiB')
    """
    first, last = size(used), size(total)
    if first.partition(" ")[2] == last.partition(" ")[2]:
        first = first.partition(" ")[0]
    return f"{first} of {last}"


def amount(value: Any, name: str = "") -> str:
    """The amount of a resource.

    Example:
        >>> amount(2.0, "CPU"), amount(0.5, "GPU"), amount(1 << 30, "memory")
        ('2', '0.5', '1.0 GiB')
    """
    if not isinstance(value, int | float):
        return "–"
    return size(value) if name in _MEMORY else f"{round(value, 4):,g}"


def resources(value: Any) -> str:
    """Resources with their amounts.

    Example:
        >>> resources({"CPU": 1.0, "memory": 1024.0}), resources({})
        ('CPU 1, memory 1.0 KiB', '–')
    """
    if not isinstance(value, Mapping) or not value:
        return "–"
    return ", ".join(f"{name} {amount(one, name)}" for name, one in value.items())


def count(value: Any) -> str:
    """A whole number with its thousands apart.

    Example:
        >>> count(10000), count(None)
        ('10,000', '–')
    """
    return f"{value:,.0f}" if isinstance(value, int | float) else "–"


def duration(seconds: Any) -> str:
    """A span of time.

    Example:
        >>> duration(0.0042), duration(3.21), duration(75), duration(7265)
        ('4.2 ms', '3.21 s', '1 min 15 s', '2 h 1 min')
    """
    if not isinstance(seconds, int | float):
        return "–"
    seconds = max(0.0, float(seconds))
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def took(seconds: Any) -> str:
    """How long a call took; its times are known to a millisecond.

    Example:
        >>> took(0.0), took(0.25)
        ('< 1 ms', '0.25 s')
    """
    return "< 1 ms" if seconds == 0 else duration(seconds)


def clock(at_ms: Any) -> str:
    """A time of the day, in the time zone of the head.

    Args:
        at_ms: milliseconds since 1970.
    """
    if not isinstance(at_ms, int | float) or at_ms <= 0:
        return "–"
    then = time.localtime(at_ms / 1000)
    is_today = then[:3] == time.localtime()[:3]
    form = "%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, then)


def exact_clock(at_ms: Any) -> str:
    """A date and time with milliseconds."""
    if not isinstance(at_ms, int | float) or at_ms <= 0:
        return "–"
    then = time.localtime(at_ms / 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', then)}.{int(at_ms % 1000):03d}"


def short(value: Any) -> str:
    """The beginning of an id.

    Example:
        >>> short("03658353d45a2394ffff")
        '03658353d45a'
    """
    return str(value)[:ID_DIGITS] if value else "–"


def tone(state: Any) -> str:
    """How a state looks: good, busy, wait, bad, gone or plain.

    Example:
        >>> tone("RUNNING"), tone("whatever")
        ('busy', 'plain')
    """
    return _TONE.get(str(state).upper(), "plain")


def words(state: Any) -> str:
    """A state in words.

    Example:
        >>> words("PENDING_ARGS_AVAIL")
        'pending args avail'
    """
    return str(state or "–").replace("_", " ").lower()


def last_line(text: Any) -> str:
    """Where a traceback says what went wrong.

    Example:
        >>> last_line("Traceback:\\n  File x\\nValueError: no\\n")
        'ValueError: no'
    """
    lines = str(text or "").strip().splitlines()
    return lines[-1].strip() if lines else ""


def percent(used: Any, total: Any) -> float:
    """Share of a total in percent, 0 to 100; 0 if it is not known.

    Example:
        >>> percent(1, 4), percent(1, 0)
        (25.0, 0.0)
    """
    if not isinstance(used, int | float) or not isinstance(total, int | float):
        return 0.0
    return round(min(100.0, max(0.0, 100.0 * used / total)), 1) if total else 0.0


#: Name in templates -> function.
FILTERS = {
    "share": share,
    "size": size,
    "amount": amount,
    "resources": resources,
    "count": count,
    "duration": duration,
    "last_line": last_line,
    "took": took,
    "clock": clock,
    "exact_clock": exact_clock,
    "short": short,
    "tone": tone,
    "words": words,
}
