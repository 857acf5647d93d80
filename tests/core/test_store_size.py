"""How large the store is, and the warning when shared memory is too small."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rayshim._core import store_size
from rayshim._core.store_size import store_limit

GB = 10**9


def test_what_was_asked_for_is_what_the_store_holds():
    assert store_limit(2 * GB, 16 * GB, 8 * GB, 9 * GB) == 2 * GB


def test_without_a_wish_most_of_the_free_memory():
    assert store_limit(None, 16 * GB, 10 * GB, 9 * GB) == 6 * GB
    assert store_limit(None, 16 * GB, 10 * GB, None) == 6 * GB


@pytest.fixture
def warnings(monkeypatch):
    lines = []
    recorder = SimpleNamespace(warning=lambda text, *args: lines.append(text % args))
    monkeypatch.setattr(store_size, "logger", recorder)
    return lines


def test_small_shared_memory_limits_the_store_and_says_how_to_enlarge_it(warnings):
    limit = store_limit(2 * GB, 16 * GB, 8 * GB, 64 * 10**6)

    assert limit == 60_800_000
    (text,) = warnings
    assert "limited to 60 MB instead of 2000 MB" in text
    assert "docker run --shm-size=2g" in text and "smaller object_store_memory" in text


def test_a_poor_default_warns_and_a_fair_one_does_not(warnings):
    assert store_limit(None, 16 * GB, 10 * GB, 4 * GB) == 3_800_000_000
    assert not warnings
    store_limit(None, 16 * GB, 10 * GB, 64 * 10**6)
    assert "--shm-size=6g" in warnings[0]


def test_more_than_the_machine_has_is_refused():
    with pytest.raises(ValueError, match="object_store_memory is 17,000,000,000"):
        store_limit(17 * GB, 16 * GB, 8 * GB, 9 * GB)
