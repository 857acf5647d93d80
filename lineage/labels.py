"""Whether the labels of a node satisfy a selector.

A selector maps label names to conditions: ``x``, ``!x``, ``in(x,y)`` or ``!in(x,y)``
(the form is checked where users write it), or to several of them joined by ``&``, which
must all hold. A node without the label satisfies only the conditions with ``!``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Condition that any value satisfies; no selector that a user writes may have it.
ANY_VALUE = "*"


#: Joins conditions; no label that a user selects may have it.
_AND = "&"


def both(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """The selector that is satisfied where both are.

    Example:
        >>> both({"zone": "!north"}, {"zone": "!south", "tier": "gold"})
        {'zone': '!north&!south', 'tier': 'gold'}
    """
    joined = dict(one)
    for key, text in other.items():
        joined[key] = f"{joined[key]}{_AND}{text}" if key in joined else text
    return joined


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether ``labels`` satisfy every condition."""
    return all(_holds(text, labels.get(key)) for key, text in selector.items())


def rank(selectors: Sequence[Mapping[str, str]], labels: Mapping[str, str]) -> int:
    """Index of the first selector that ``labels`` satisfy, or -1; 0 without any."""
    if not selectors:
        return 0
    for index, selector in enumerate(selectors):
        if matches(selector, labels):
            return index
    return -1


def _holds(text: str, label: str | None) -> bool:
    if _AND in text:
        return all(_holds(part, label) for part in text.split(_AND))
    text = text.strip()
    if text.startswith("!"):
        return not _holds(text[1:], label)
    if text == ANY_VALUE:
        return label is not None
    if text.startswith("in(") and text.endswith(")"):
        return label in [part.strip() for part in text[3:-1].split(",")]
    return label == text
