"""The form of label selectors: ``{"region": "in(us, eu)", "spot": "!true"}``.

A key is a name of up to 63 characters (letters, digits, ``-_.``, a letter or digit at
both ends) with an optional domain before a slash. A value is such a name or empty, or a
list of them as ``in(a,b)`` or ``in(a, b)``; ``!`` before a name or list means all
others. This is the form of Kubernetes labels with Ray's operators.
"""

from __future__ import annotations

import re
from typing import Any

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}", re.I)
_VALUE = re.compile(rf"|!?(?:{_NAME}|in\({_NAME}(?:, ?{_NAME})*\))")


def check_label_selector(selector: dict[Any, Any]) -> None:
    """Check the form of a label selector.

    Raises:
        TypeError: a key or value is no text.
        ValueError: a key or value has a form that no label can have.
    """
    for key, value in selector.items():
        if value is None:
            raise ValueError(
                f"the label_selector has no value for {key!r}; write 'x', '!x', "
                "'in(x,y)' or '!in(x,y)'"
            )
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"a label_selector maps text to text, not {key!r} to {value!r}"
            )
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"Invalid label key name `{key}`: it needs 1 to 63 letters, digits, "
                "'-', '_' or '.', with a letter or digit at both ends, and may have a "
                "domain and a slash before it"
            )
        if not _VALUE.fullmatch(value):
            raise ValueError(
                f"Invalid label selector value `{value}`: it needs the form `x`, `!x`, "
                "`in(x,y)` or `!in(x,y)`, where x has up to 63 letters, digits, '-', "
                "'_' or '.', with a letter or digit at both ends"
            )


def check_fallback_strategy(strategy: list[Any]) -> None:
    """Check a list of ``{"label_selector": {...}}`` to try in turn.

    Raises:
        ValueError: an element has another form.
        TypeError: a label selector in it does not map text to text.
    """
    for option in strategy:
        if not isinstance(option, dict):
            raise ValueError(
                f"each element of fallback_strategy must be a dict, not {option!r}"
            )
        if not option:
            raise ValueError("Empty dictionary found in `fallback_strategy`.")
        for key, value in option.items():
            if key != "label_selector":
                raise ValueError(
                    f"Unsupported option found: {key!r}. An element of "
                    "fallback_strategy may have 'label_selector' only."
                )
            if not value:
                continue  # It asks for nothing: any node will do.
            if not isinstance(value, dict):
                raise ValueError(
                    'The value of "label_selector" in fallback_strategy must be a '
                    f"dictionary, not {value!r}"
                )
            check_label_selector(value)
