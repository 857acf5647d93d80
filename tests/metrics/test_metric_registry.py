"""What a process counts, and what it tells."""

from __future__ import annotations

import threading

import msgspec
import pytest

from rayshim._core import metric_registry
from rayshim._core.metric_registry import Registry

TAGS = (("a", "1"),)


def told(registry: Registry, *, everything: bool = False) -> dict[str, object]:
    found = {}
    for family in registry.families.values():
        report = family.take_changes(everything)
        if report is not None:
            found[report.name] = [(s.tags, s.value, s.buckets) for s in report.samples]
    return found


def test_counters_add_up() -> None:
    registry = Registry()
    family = registry.family("n", "counter", "", [])
    family.add((), 1)
    family.add((), 2.5)
    family.add(TAGS, 4)
    assert family.values == {(): 3.5, TAGS: 4.0}


def test_only_changes_are_told() -> None:
    registry = Registry()
    family = registry.family("n", "gauge", "", [])
    family.put((), 1)
    family.put(TAGS, 2)
    told(registry)
    family.put(TAGS, 3)
    assert told(registry) == {"n": [({"a": "1"}, 3, [])]}
    assert told(registry) == {}


def test_all_is_told_to_a_new_session() -> None:
    registry = Registry()
    registry.family("n", "gauge", "", []).put((), 1)
    told(registry)
    assert told(registry, everything=True) == {"n": [({}, 1, [])]}


@pytest.mark.parametrize(
    ("value", "counts"),
    [(0.5, [1, 0, 0]), (1, [1, 0, 0]), (1.5, [0, 1, 0]), (99, [0, 0, 1])],
)
def test_bounds_belong_to_the_bucket_below(value: float, counts: list[int]) -> None:
    registry = Registry()
    registry.family("h", "histogram", "", [1.0, 2.0]).observe((), value)
    assert told(registry) == {"h": [({}, value, counts)]}


def test_a_name_has_one_kind() -> None:
    registry = Registry()
    registry.family("n", "gauge", "", [])
    with pytest.raises(ValueError, match=r"gauge.*give the counter another name"):
        registry.family("n", "counter", "", [])


def test_a_name_is_one_family() -> None:
    registry = Registry()
    assert registry.family("n", "gauge", "x", []) is registry.family(
        "n", "gauge", "y", []
    )


def test_too_many_combinations_of_tags_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metric_registry, "MAX_SERIES", 2)
    registry = Registry()
    family = registry.family("n", "counter", "", [])
    for number in range(5):
        family.add((("a", str(number)),), 1)
    family.add((("a", "0"),), 1)
    assert len(family.values) == 2
    assert family.values[(("a", "0"),)] == 2
    assert caplog.text.count("combinations of tags") == 1


def test_threads_lose_no_counts() -> None:
    registry = Registry()
    family = registry.family("n", "counter", "", [])

    def count() -> None:
        for _ in range(2000):
            family.add((), 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert family.values[()] == 8000


def test_nothing_is_armed_without_a_session() -> None:
    registry = Registry()
    registry.family("n", "counter", "", []).add((), 1)
    assert not registry.armed
    registry.flush()


def test_whatever_is_counted_can_be_told() -> None:
    registry = Registry()
    family = registry.family("g", "gauge", "no text \udcff", [])
    family.put((("file", "\udcff"),), 1)
    family.put((("n", "large"),), 10**400)
    family.put((("n", "small"),), -(10**400))
    report = family.take_changes(True)
    msgspec.msgpack.encode(report)
    assert report is not None
    assert {sample.value for sample in report.samples} == {
        1.0,
        float("inf"),
        float("-inf"),
    }
