"""Chaos tests: real processes, real SIGKILLs, figures on the screen (``-s``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder, and give it time."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Returns a function that prints one measured line, named by its test."""
    name = request.node.name

    def show(text: str) -> None:
        print(f"\n[{name}] {text}")

    return show
