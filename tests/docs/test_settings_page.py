"""The settings page names every setting, and no other."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from rayshim.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_lists_exactly_the_settings() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", PAGE.read_text(), re.M)
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert [name for name, _ in rows] == list(fields)
    for name, text in rows:
        shown = text.strip().replace(",", "")
        assert type(fields[name])(shown) == fields[name], name
