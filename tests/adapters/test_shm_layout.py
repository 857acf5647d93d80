"""Size classes, layouts and the free list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim.adapters.shm.freelist import FreeList, Owned
from rayshim.adapters.shm.layout import capacity_for, is_within, plan


def test_parts_start_at_multiples_of_64_bytes():
    assert plan([3, 64, 0, 5]) == ([0, 3, 64, 64, 128, 0, 128, 5], 133)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=20))
def test_parts_never_overlap(sizes):
    layout, end = plan(sizes)

    at = 0
    for offset, size_bytes in zip(layout[::2], layout[1::2], strict=True):
        assert offset >= at and offset % 64 == 0 and offset - at < 64
        at = offset + size_bytes
    assert at == end
    assert layout[1::2] == sizes
    assert is_within(layout, end)
    assert not is_within(layout, end - 1) or end == 0 or sizes[-1] == 0


@pytest.mark.parametrize(
    ("size_bytes", "capacity"),
    [
        (0, 65536),
        (1, 65536),
        (65536, 65536),
        (65537, 131072),
        (524288, 524288),
        (524289, 589824),
        (1048576, 1048576),
        (1048577, 1179648),
        (1 << 28, 1 << 28),
        ((1 << 28) + 192, (1 << 28) + (1 << 25)),
    ],
)
def test_capacity_is_the_class_of_the_size(size_bytes, capacity):
    assert capacity_for(size_bytes) == capacity


@given(st.integers(1, 1 << 40))
def test_classes_waste_little_and_are_stable(size_bytes):
    capacity = capacity_for(size_bytes)

    assert capacity >= size_bytes
    assert capacity - size_bytes < max(65536, size_bytes / 7.9)
    assert capacity % 4096 == 0
    assert capacity_for(capacity) == capacity


@pytest.mark.parametrize(
    "layout", [[], [0], [0, 5, 64], [-64, 5], [0, -1], [0, 101], [64, 64]]
)
def test_layouts_that_leave_the_segment_are_found(layout):
    assert not is_within(layout, 100)


def owned(name, capacity):
    return Owned(name, capacity, capacity)


def test_free_list_gives_the_smallest_that_fits_within_a_quarter():
    free = FreeList()
    free.push(owned("a", capacity_for(1 << 20)))
    free.push(owned("b", capacity_for(5 << 18)))
    free.push(owned("c", capacity_for(2 << 20)))

    assert free.take(1_000_000).name == "a"
    assert free.take(1_000_000).name == "b"
    assert free.take(1_000_000) is None


def test_free_list_gives_the_warmest_and_evicts_the_coldest():
    free = FreeList()
    for name in "abc":
        free.push(owned(name, 65536))

    assert free.take(1).name == "c"
    assert free.evict().name == "a"
    assert (len(free), free.filled_bytes) == (1, 65536)
    assert free.evict().name == "b"
    assert free.evict() is None
