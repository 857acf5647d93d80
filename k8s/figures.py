"""Figures with units: inputs, and what is computed from them with its arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

#: 365 days of 24 hours, a twelfth.
HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True)
class Input:
    """A figure that is not computed."""

    name: str
    value: float
    unit: str
    #: Where it stands in platform.yaml.
    path: str

    def to_json(self) -> dict[str, Any]:
        """As plain maps, lists and numbers."""
        kept = ("name", "value", "unit", "path")
        return {key: getattr(self, key) for key in kept}


@dataclass(frozen=True, slots=True)
class Size:
    """A figure that follows from others."""

    name: str
    value: float
    unit: str
    #: In names: "rows x epochs / rows per second / 3600".
    formula: str
    #: The same in figures: "150,000,000 x 12 / 160,000 / 3600".
    arithmetic: str
    inputs: tuple[Input | Size, ...]
    #: What it means for the platform; may be empty.
    note: str = ""

    def to_text(self) -> str:
        """One line: name, arithmetic, result, note."""
        note = f" ({self.note})" if self.note else ""
        result = amount(self.value, self.unit)
        steps = [self.name, self.arithmetic, result]
        if self.arithmetic == result:
            del steps[1]
        return f"{' = '.join(steps)}{note}"

    def to_json(self) -> dict[str, Any]:
        """As plain maps, lists and numbers."""
        kept = ("name", "value", "unit", "formula", "arithmetic", "note")
        found = {key: getattr(self, key) for key in kept}
        return {**found, "inputs": [one.to_json() for one in self.inputs]}


def figure(value: float) -> str:
    """A number for people: thousands apart, three digits or so behind the point.

    Example:
        >>> figure(150e6), figure(3.125), figure(727.2727), figure(0.55)
        ('150,000,000', '3.125', '727.27', '0.55')
    """
    size = abs(value)
    decimals = 5 if size < 0.1 else 3 if size < 10 else 2 if size < 10_000 else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def amount(value: float, unit: str) -> str:
    """A number with its unit; dollars stand before it, with cents if they matter.

    Example:
        >>> amount(8760, "$"), amount(3.125, "h"), amount(0.8, "$/h")
        ('$8,760', '3.125 h', '$0.80/h')
    """
    if not unit.startswith("$"):
        return f"{figure(value)} {unit}".rstrip()
    text = f"{value:,.0f}" if unit == "$" and abs(value) >= 100 else figure(value)
    point, _, cents = text.partition(".")
    if unit != "$" or cents:
        text = f"{point}.{cents.ljust(2, '0')}"
    return f"${text}{unit[1:]}"


def computed(
    name: str,
    value: float,
    unit: str,
    template: str,
    *,
    note: str = "",
    **parts: Input | Size,
) -> Size:
    """A size.

    Args:
        name: of it.
        value: what the formula gives.
        unit: of it.
        template: the formula, with the parts' names in braces.
        note: what it means.
        **parts: what it is computed from.
    """
    names = {key: part.name for key, part in parts.items()}
    figures = {key: amount(part.value, part.unit) for key, part in parts.items()}
    return Size(
        name,
        value,
        unit,
        template.format(**names),
        template.format(**figures),
        tuple(parts.values()),
        note,
    )


def whole(value: float) -> int:
    """The next whole number up; what binary fractions add at the end does not count.

    Example:
        >>> whole(30_000 / (8 / 0.011 * 0.55)), whole(7.5)
        (75, 8)
    """
    near = round(value)
    return near if math.isclose(value, near, rel_tol=1e-9) else math.ceil(value)


#: The month that prices are for.
MONTH = Input("month", HOURS_PER_MONTH, "h", "")
