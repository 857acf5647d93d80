"""The page on errors knows every error, and its examples raise them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rayshim
from doc_pages import DOCS, blocks, sections
from rayshim import exceptions

PAGE = (DOCS / "errors.md").read_text()
SECTIONS = sections(PAGE)
CLASSES = {
    name: getattr(exceptions, name)
    for name in exceptions.__all__
    if issubclass(getattr(exceptions, name), BaseException)
}
EXAMPLES = {name: code for name, text in SECTIONS.items() for code in blocks(text)}


def test_every_error_has_its_section() -> None:
    assert sorted(SECTIONS) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_section_says_when_and_what_to_do(name: str) -> None:
    assert "**When:** " in SECTIONS[name]
    assert "**Do:** " in SECTIONS[name]


@pytest.fixture(scope="module")
def session() -> Iterator[dict[str, Any]]:
    start = blocks(PAGE)[0]
    names: dict[str, Any] = {}
    exec(compile(start, "errors.md", "exec"), names)
    yield names
    rayshim.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_raises_the_error(name: str, session: dict[str, Any]) -> None:
    code = compile(EXAMPLES[name], f"errors.md#{name.lower()}", "exec")

    with pytest.raises(CLASSES[name]):
        exec(code, dict(session))
