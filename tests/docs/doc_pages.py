"""What the tests need to know about a page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(text: str, info: str = "python") -> list[str]:
    """The code blocks of a language, in order."""
    return [code for found, code in _FENCE.findall(text) if found == info]


def sections(text: str) -> dict[str, str]:
    """Text below each heading of the third level, by heading."""
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)[1:]
    bodies = (re.split(r"^## ", body, flags=re.MULTILINE)[0] for body in parts[1::2])
    return dict(zip(parts[::2], bodies, strict=True))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", one).lower().replace(" ", "-") for one in headings}


def links(text: str) -> list[str]:
    """Targets of the links."""
    return re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", text))
