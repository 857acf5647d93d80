"""Sizes that follow from the service levels of a platform, each with its formula."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Input:
    """A figure that is not computed."""

    name: str
    value: float
    unit: str
    #: Where it stands in platform.yaml; empty: a constant.
    path: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """A figure that follows from others."""

    name: str
    value: float
    unit: str
    #: In names, as "rows x epochs / rows per second".
    formula: str
    inputs: tuple[Input | Size, ...]
    #: What it means for the platform; may be empty.
    note: str = ""
