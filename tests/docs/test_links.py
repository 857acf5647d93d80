"""Links between pages lead somewhere, and the index knows every page."""

from __future__ import annotations

from pathlib import Path

import pytest

from doc_pages import DOCS, ROOT, anchors, links

#: Source of a generated page.
SOURCES = {"state-machines.in.md"}
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.glob("*.md")) if page.name not in SOURCES),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (
            anchor and anchor not in anchors(target.read_text())
        ):
            broken.append(link)

    assert not broken


def test_index_links_every_page() -> None:
    linked = set(links((DOCS / "index.md").read_text()))

    assert {page.name for page in PAGES} - {"README.md", "index.md"} <= linked
