"""``ray.wait``: order, counts, timeouts and mistakes."""

from __future__ import annotations

import time

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def nap(seconds):
    time.sleep(seconds)
    return seconds


@ray.remote
def fail():
    raise ValueError("boom")


@pytest.fixture
def slow():
    ref = nap.remote(5)
    yield ref
    ray.cancel(ref, force=True)


def test_wait_of_empty_list():
    assert ray.wait([]) == ([], [])


def test_wait_default_returns_one(slow):
    fast = ray.put(1)
    assert ray.wait([slow, fast]) == ([fast], [slow])


def test_wait_returns_lists(slow):
    ready, pending = ray.wait([ray.put(1), slow])
    assert type(ready) is list
    assert type(pending) is list


def test_wait_never_returns_more_than_num_returns():
    refs = [ray.put(i) for i in range(5)]
    ready, pending = ray.wait(refs, num_returns=2)
    assert len(ready) == 2
    assert len(pending) == 3
    assert set(ready) | set(pending) == set(refs)


def test_wait_keeps_input_order_in_both_lists(slow):
    done = [ray.put(i) for i in range(3)]
    other = nap.remote(5)
    refs = [done[2], slow, done[0], other, done[1]]
    ready, pending = ray.wait(refs, num_returns=3, timeout=10)
    assert ready == [done[2], done[0], done[1]]
    assert pending == [slow, other]
    ray.cancel(other, force=True)


def test_wait_for_all():
    refs = [nap.remote(0.05) for _ in range(4)]
    ready, pending = ray.wait(refs, num_returns=4)
    assert ready == refs
    assert pending == []


def test_wait_timeout_may_return_fewer(slow):
    fast = ray.put(1)
    ready, pending = ray.wait([fast, slow], num_returns=2, timeout=0.1)
    assert ready == [fast]
    assert pending == [slow]


def test_wait_timeout_with_nothing_ready(slow):
    assert ray.wait([slow], timeout=0.05) == ([], [slow])


def test_wait_timeout_zero_polls(slow):
    started = time.monotonic()
    assert ray.wait([slow], timeout=0) == ([], [slow])
    assert time.monotonic() - started < 2


def test_wait_timeout_none_waits():
    ref = nap.remote(0.2)
    assert ray.wait([ref], timeout=None) == ([ref], [])


def test_failed_ref_counts_as_ready(slow):
    failed = fail.remote()
    ready, pending = ray.wait([slow, failed], num_returns=1, timeout=20)
    assert ready == [failed]
    assert pending == [slow]


def test_wait_does_not_consume_the_value():
    ref = nap.remote(0)
    ray.wait([ref])
    ray.wait([ref])
    assert ray.get(ref) == 0


@pytest.mark.parametrize("fetch_local", [True, False])
def test_wait_fetch_local(fetch_local):
    ref = nap.remote(0)
    assert ray.wait([ref], fetch_local=fetch_local) == ([ref], [])


def test_wait_loop_drains_everything():
    pending = [nap.remote(0.01 * i) for i in range(8)]
    seen = []
    while pending:
        ready, pending = ray.wait(pending)
        seen += ray.get(ready)
    assert sorted(seen) == [0.01 * i for i in range(8)]


def test_wait_inside_a_task():
    @ray.remote
    def waits(refs):
        ready, pending = ray.wait(refs, num_returns=len(refs))
        return len(ready), len(pending)

    assert ray.get(waits.remote([nap.remote(0) for _ in range(3)])) == (3, 0)


@pytest.mark.parametrize(
    "wrap",
    [lambda ref: ref, lambda ref: (ref,), lambda ref: {ref}, lambda ref: 1],
    ids=["ref", "tuple", "set", "int"],
)
def test_wait_of_non_list_is_type_error(wrap):
    with pytest.raises(TypeError):
        ray.wait(wrap(ray.put(1)))


@pytest.mark.parametrize("bad", [1, None, "x"], ids=repr)
def test_wait_of_list_with_non_ref_is_type_error(bad):
    with pytest.raises(TypeError):
        ray.wait([ray.put(1), bad])


def test_wait_of_duplicates_is_value_error():
    ref = ray.put(1)
    with pytest.raises(ValueError, match="unique"):
        ray.wait([ref, ref])


@pytest.mark.parametrize("num_returns", [0, -1, 3])
def test_wait_num_returns_out_of_range_is_value_error(num_returns):
    with pytest.raises(ValueError):
        ray.wait([ray.put(1), ray.put(2)], num_returns=num_returns)


def test_wait_negative_timeout_is_value_error():
    with pytest.raises(ValueError, match="timeout"):
        ray.wait([ray.put(1)], timeout=-1)


def test_wait_options_are_keyword_only():
    with pytest.raises(TypeError):
        ray.wait([ray.put(1)], 1)
