"""``ObjectRef``: identity, hashing, pickling, nesting, mistakes."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest

import ray
import ray.cloudpickle as cloudpickle

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


@ray.remote
def make_ref(value):
    return ray.put(value)


def test_hex_and_binary():
    ref = ray.put(1)
    assert len(ref.binary()) == 28
    assert len(ref.hex()) == 56
    assert bytes.fromhex(ref.hex()) == ref.binary()


def test_repr_and_str_hold_the_hex():
    ref = ray.put(1)
    assert repr(ref) == f"ObjectRef({ref.hex()})"
    assert str(ref) == repr(ref)


def test_equality_and_hash_by_id():
    ref = ray.put(1)
    twin = ray.ObjectRef(ref.binary())
    assert twin == ref
    assert hash(twin) == hash(ref)
    assert {ref: "v"}[twin] == "v"
    assert ref != ray.put(1)
    assert ref != 1
    assert (ref == ref.hex()) is False


def test_ref_built_from_its_binary_can_be_got():
    ref = ray.put("x")
    assert ray.get(ray.ObjectRef(ref.binary())) == "x"


def test_ref_is_true():
    assert bool(ray.put(0)) is True


@pytest.mark.parametrize(
    "mistake",
    [iter, len, lambda ref: ref[0], lambda ref: ref < ref, lambda ref: ref + 1, float],
    ids=["iter", "len", "index", "less", "plus", "float"],
)
def test_ref_used_as_a_value_is_type_error(mistake):
    with pytest.raises(TypeError):
        mistake(ray.put([1]))


def test_attribute_of_the_value_is_attribute_error():
    with pytest.raises(AttributeError):
        ray.put([1]).append  # noqa: B018


def test_unpacking_a_ref_is_type_error():
    with pytest.raises(TypeError):
        _a, _b = echo.remote((1, 2))


@pytest.mark.parametrize("bad", [b"", b"abc", b"x" * 29])
def test_wrong_length_of_id_is_value_error(bad):
    with pytest.raises(ValueError, match="28"):
        ray.ObjectRef(bad)


def test_nil():
    assert ray.ObjectRef.nil().is_nil()
    assert not ray.put(1).is_nil()
    assert ray.ObjectRef.nil().hex() == "f" * 56


def test_task_and_job_id():
    first = echo.remote(1)
    assert first.job_id() == ray.get_runtime_context().job_id
    assert first.task_id() != echo.remote(1).task_id()
    assert first.hex().startswith(first.task_id().hex())


def test_results_of_one_task_share_its_task_id():
    a, b = echo.options(num_returns=2).remote((1, 2))
    assert a.task_id() == b.task_id()
    assert a != b


def test_generic_alias():
    assert "int" in str(ray.ObjectRef[int])


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy])
def test_copies_are_equal(clone):
    ref = ray.put("x")
    twin = clone(ref)
    assert twin == ref
    assert ray.get(twin) == "x"


@pytest.mark.parametrize("module", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_pickled_outside_of_a_value(module):
    ref = ray.put("x")
    twin = module.loads(module.dumps(ref))
    assert twin == ref
    assert ray.get(twin) == "x"


def test_task_returning_a_ref_is_not_flattened():
    inner = ray.get(make_ref.remote("x"))
    assert isinstance(inner, ray.ObjectRef)
    assert ray.get(inner) == "x"


def test_task_returning_the_ref_of_another_task():
    @ray.remote
    def starts():
        return echo.remote("later")

    assert ray.get(ray.get(starts.remote())) == "later"


def test_ref_to_ref_to_ref():
    ref = ray.put("deep")
    for _ in range(3):
        ref = ray.put([ref])
    for _ in range(3):
        (ref,) = ray.get(ref)
    assert ray.get(ref) == "deep"


def test_inner_ref_is_alive_after_the_outer_is_got():
    outer = ray.put([ray.put("kept")])
    (inner,) = ray.get(outer)
    del outer
    gc.collect()
    assert ray.get(inner) == "kept"


def test_inner_ref_is_kept_by_the_outer_object():
    inner = ray.put(b"x" * 300_000)
    outer = ray.put({"inner": inner})
    del inner
    gc.collect()
    assert len(ray.get(ray.get(outer)["inner"])) == 300_000


def test_ref_is_kept_by_a_pending_task(tmp_path):
    @ray.remote
    def waits(gate, refs):
        import time

        while not gate.exists():
            time.sleep(0.01)
        return ray.get(refs[0])

    gate = tmp_path / "gate"
    inner = ray.put(b"y" * 300_000)
    ref = waits.remote(gate, [inner])
    del inner
    gc.collect()
    gate.touch()
    assert len(ray.get(ref, timeout=20)) == 300_000


def test_dropped_argument_of_a_queued_task_is_kept():
    big = ray.put(b"z" * 300_000)
    length = ray.remote(lambda data: len(data))
    refs = [length.remote(big) for _ in range(10)]
    del big
    gc.collect()
    assert ray.get(refs) == [300_000] * 10


def test_ref_captured_in_a_closure():
    captured = ray.put("captured")

    @ray.remote
    def read():
        return ray.get(captured)

    assert ray.get(read.remote()) == "captured"


def test_ref_made_in_a_task_outlives_it():
    refs = [ray.get(make_ref.remote(i)) for i in range(3)]
    assert ray.get(refs) == [0, 1, 2]


def test_ref_passed_through_several_tasks():
    @ray.remote
    def hand_on(box, hops):
        if hops == 0:
            return ray.get(box[0])
        return ray.get(hand_on.remote(box, hops - 1))

    assert ray.get(hand_on.remote([ray.put("parcel")], 3)) == "parcel"


def test_object_of_many_refs():
    refs = [ray.put(i) for i in range(500)]
    got = ray.get(ray.put(refs))
    assert got == refs
    assert ray.get(got) == list(range(500))


def test_refs_as_dict_keys_in_a_value():
    ref = ray.put("k")
    got = ray.get(echo.remote([{ref: 1}]))
    assert got == [{ref: 1}]


def test_same_ref_twice_in_a_value_stays_equal():
    ref = ray.put(1)
    a, b = ray.get(ray.put((ref, ref)))
    assert a == b == ref


def test_future_gives_the_value():
    import concurrent.futures

    future = echo.remote("x").future()
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(timeout=20) == "x"


def test_future_gives_the_error():
    future = ray.remote(lambda: 1 / 0).remote().future()
    with pytest.raises(ZeroDivisionError):
        future.result(timeout=20)
    assert isinstance(future.exception(), ZeroDivisionError)


def test_future_times_out():
    import time

    future = ray.remote(lambda: time.sleep(0.5)).remote().future()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    assert future.result(timeout=20) is None


def test_future_callbacks():
    import threading

    called = threading.Event()
    echo.remote(1).future().add_done_callback(lambda future: called.set())
    assert called.wait(20)


def test_futures_as_completed():
    import concurrent.futures

    futures = [echo.remote(i).future() for i in range(5)]
    done = concurrent.futures.as_completed(futures, timeout=20)
    assert sorted(future.result() for future in done) == list(range(5))
