"""The arithmetic behind every size, for people: ``rayshim k8s plan --explain``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rayshim.k8s.config import Platform
from rayshim.k8s.figures import Size


@dataclass(frozen=True, slots=True)
class Line:
    """One step."""

    text: str
    #: What it computes; None: only words.
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Steps under a heading."""

    title: str
    lines: tuple[Line, ...]

    def to_text(self) -> str:
        """For a terminal, ending in a line break."""
        raise NotImplementedError

    def to_markdown(self) -> str:
        """For the documentation, ending in a line break."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """As plain maps, lists and numbers."""
        raise NotImplementedError


def explain(platform: Platform) -> list[Section]:
    """All sizes of a platform, one after the other, from inputs to money."""
    raise NotImplementedError
