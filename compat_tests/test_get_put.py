"""``ray.get`` and ``ray.put``: forms, timeouts and mistakes."""

from __future__ import annotations

import time

import pytest

import ray
from ray.exceptions import GetTimeoutError, RayError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


@ray.remote
def nap(seconds):
    time.sleep(seconds)
    return seconds


@ray.remote
def fail(text):
    raise ValueError(text)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        2**100,
        1.5,
        "text",
        "",
        b"bytes",
        b"",
        [1, [2, 3]],
        (1, 2),
        {"a": {"b": 1}},
        {1, 2},
        frozenset([1]),
        1 + 2j,
        range(5),
        ...,
        int,
        b"x" * 300_000,
        list(range(20_000)),
    ],
    ids=lambda value: f"{type(value).__name__}-{str(value)[:8]}",
)
def test_value_survives_put_and_a_task(value):
    assert ray.get(ray.put(value)) == value
    assert ray.get(echo.remote(value)) == value


def test_get_of_list_keeps_order():
    refs = [ray.put(i) for i in range(10)]
    assert ray.get(refs) == list(range(10))


def test_get_of_empty_list_is_empty_list():
    assert ray.get([]) == []


def test_get_accepts_duplicates():
    ref = ray.put("x")
    assert ray.get([ref, ref, ref]) == ["x", "x", "x"]


def test_get_twice_gives_equal_but_distinct_objects():
    ref = ray.put([1, 2])
    first, second = ray.get(ref), ray.get(ref)
    assert first == second
    assert first is not second


def test_put_value_is_a_snapshot():
    value = [1]
    ref = ray.put(value)
    value.append(2)
    assert ray.get(ref) == [1]


def test_changing_a_got_value_does_not_change_the_object():
    ref = ray.put({"a": 1})
    ray.get(ref)["a"] = 2
    assert ray.get(ref) == {"a": 1}


def test_put_of_same_value_twice_gives_two_refs():
    assert ray.put(1) != ray.put(1)


def test_get_timeout_raises_get_timeout_error():
    ref = nap.remote(3)
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.05)
    ray.cancel(ref, force=True)


def test_get_timeout_error_is_builtin_timeout_and_ray_error():
    assert issubclass(GetTimeoutError, RayError)
    assert issubclass(GetTimeoutError, TimeoutError)


def test_get_timeout_zero_polls():
    ref = nap.remote(3)
    started = time.monotonic()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0)
    assert time.monotonic() - started < 2
    ray.cancel(ref, force=True)


def test_get_timeout_zero_of_ready_value():
    assert ray.get(ray.put(5), timeout=0) == 5


def test_get_timeout_of_list_needs_all():
    slow = nap.remote(3)
    with pytest.raises(GetTimeoutError):
        ray.get([ray.put(1), slow], timeout=0.1)
    ray.cancel(slow, force=True)


def test_get_works_after_a_timeout():
    ref = nap.remote(0.3)
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.01)
    assert ray.get(ref, timeout=20) == 0.3


@pytest.mark.parametrize("timeout", [1, 1.0, 20])
def test_get_accepts_int_and_float_timeouts(timeout):
    assert ray.get(ray.put("v"), timeout=timeout) == "v"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda ref: 1,
        lambda ref: "ref",
        lambda ref: None,
        lambda ref: (ref,),
        lambda ref: {ref},
        lambda ref: {"a": ref},
        lambda ref: (r for r in [ref]),
    ],
    ids=["int", "str", "none", "tuple", "set", "dict", "generator"],
)
def test_get_of_wrong_container_is_value_error(wrap):
    with pytest.raises(ValueError, match="Invalid type of object refs"):
        ray.get(wrap(ray.put(1)))


@pytest.mark.parametrize("bad", [1, "x", None, [1]], ids=repr)
def test_get_of_list_with_a_non_ref_is_type_error(bad):
    with pytest.raises(TypeError, match="get"):
        ray.get([ray.put(1), bad])


def test_get_of_non_ref_in_list_names_the_value():
    with pytest.raises(TypeError, match="on the value 1"):
        ray.get([1])


def test_get_with_two_failures_raises_the_first_in_list_order():
    late, early = fail.remote("first in list"), fail.remote("second in list")
    ray.wait([late, early], num_returns=2)
    with pytest.raises(ValueError, match="first in list"):
        ray.get([late, early])


def test_get_of_list_raises_when_one_failed():
    with pytest.raises(ValueError, match="boom"):
        ray.get([ray.put(1), fail.remote("boom"), ray.put(2)])


def test_failed_ref_raises_every_time():
    ref = fail.remote("again")
    for _ in range(3):
        with pytest.raises(ValueError, match="again"):
            ray.get(ref)


def test_put_of_ref_is_type_error():
    with pytest.raises(TypeError, match="not allowed"):
        ray.put(ray.put(1))


def test_put_of_list_with_ref_keeps_the_ref():
    inner = ray.put("inner")
    (got,) = ray.get(ray.put([inner]))
    assert isinstance(got, ray.ObjectRef)
    assert got == inner
    assert ray.get(got) == "inner"


def test_put_of_an_exception_gives_it_back_without_raising():
    got = ray.get(ray.put(ValueError("plain value")))
    assert isinstance(got, ValueError)
    assert str(got) == "plain value"


def test_put_inside_a_task():
    @ray.remote
    def make():
        return ray.put("made inside")

    assert ray.get(ray.get(make.remote())) == "made inside"


def test_put_without_value_is_type_error():
    with pytest.raises(TypeError):
        ray.put()


def test_get_in_a_thread():
    import threading

    ref = nap.remote(0.1)
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(ray.get(ref))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [0.1] * 4


def test_many_small_objects():
    refs = [ray.put(i) for i in range(1000)]
    assert ray.get(refs) == list(range(1000))
    assert len(set(refs)) == 1000
