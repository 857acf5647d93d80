"""Arrays, tables and frames: read-only views, shared memory, copies."""

from __future__ import annotations

import numpy as np
import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")

SMALL, BIG = 5, 500_000


@ray.remote
def write(array):
    array[0] = 1


@ray.remote
def total(array):
    return float(array.sum())


@ray.remote
def ones(n):
    return np.ones(n)


@pytest.mark.parametrize("size", [SMALL, BIG])
def test_got_array_is_read_only(size):
    array = ray.get(ray.put(np.zeros(size)))
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize("size", [SMALL, BIG])
@pytest.mark.parametrize("by_ref", [True, False], ids=["by ref", "by value"])
def test_array_argument_is_read_only(size, by_ref):
    array = np.zeros(size)
    with pytest.raises(ValueError, match="read-only"):
        ray.get(write.remote(ray.put(array) if by_ref else array))


@pytest.mark.parametrize("size", [SMALL, BIG])
def test_result_array_is_read_only(size):
    assert not ray.get(ones.remote(size)).flags.writeable


@pytest.mark.parametrize("size", [SMALL, BIG])
def test_copy_is_writable(size):
    array = ray.get(ray.put(np.zeros(size))).copy()
    array[0] = 1
    assert array[0] == 1


def test_arrays_inside_containers_are_read_only():
    got = ray.get(ray.put({"a": np.zeros(SMALL), "b": [np.zeros(BIG)]}))
    assert not got["a"].flags.writeable
    assert not got["b"][0].flags.writeable


def test_big_array_is_shared_between_two_gets():
    ref = ray.put(np.zeros(BIG))
    assert np.shares_memory(ray.get(ref), ray.get(ref))


def test_array_is_a_snapshot_of_the_put():
    array = np.zeros(BIG)
    ref = ray.put(array)
    array[:] = 1
    assert ray.get(ref).sum() == 0


def test_small_array_argument_is_a_snapshot():
    array = np.zeros(SMALL)
    ref = total.remote(array)
    array[:] = 1
    assert ray.get(ref) == 0


def test_array_outlives_its_ref():
    import gc

    ref = ray.put(np.full(BIG, 3.0))
    array = ray.get(ref)
    del ref
    gc.collect()
    for _ in range(3):
        ray.put(np.zeros(BIG))
    assert array[0] == array[-1] == 3.0


def test_slice_outlives_ref_and_array():
    import gc

    ref = ray.put(np.arange(BIG, dtype=float))
    part = ray.get(ref)[100:200]
    del ref
    gc.collect()
    for _ in range(3):
        ray.put(np.zeros(BIG))
    assert part[0] == 100.0


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint16",
        "int32",
        "int64",
        "float16",
        "float32",
        "complex128",
        "datetime64[s]",
        "U5",
        "S5",
    ],
)
def test_dtypes(dtype):
    array = np.array(["1", "0", "1"]).astype("int8").astype(dtype)
    got = ray.get(ray.put(array))
    assert got.dtype == array.dtype
    assert (got == array).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((0, 3)),
        lambda: np.array(5.0),
        lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        lambda: np.arange(20.0).reshape(4, 5)[::2, ::2],
        lambda: np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        lambda: np.broadcast_to(np.arange(3), (4, 3)),
        lambda: np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        lambda: np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
        lambda: np.matrix([[1, 2], [3, 4]]),
    ],
    ids=[
        "empty",
        "0-d",
        "fortran",
        "strided",
        "transposed",
        "broadcast",
        "struct",
        "masked",
        "matrix",
    ],
)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_layouts(make):
    array = make()
    got = ray.get(ray.put(array))
    assert type(got) is type(array)
    assert got.shape == array.shape
    np.testing.assert_array_equal(got, array)


def test_fortran_order_is_kept():
    got = ray.get(ray.put(np.asfortranarray(np.ones((100, 200)))))
    assert got.flags.f_contiguous


def test_object_array():
    array = np.array([1, "a", None], dtype=object)
    assert ray.get(ray.put(array)).tolist() == [1, "a", None]


def test_object_array_is_writable():
    array = ray.get(ray.put(np.array([1, "a", None], dtype=object)))
    array[0] = 2
    assert array[0] == 2


def test_numpy_scalar_keeps_its_type():
    assert type(ray.get(ray.put(np.float32(1.5)))) is np.float32


def test_array_in_task_and_back():
    array = np.arange(BIG, dtype=float)
    got = ray.get(ray.remote(lambda x: x * 2).remote(array))
    np.testing.assert_array_equal(got, array * 2)


def test_one_big_object_for_many_tasks():
    ref = ray.put(np.ones(BIG))
    assert ray.get([total.remote(ref) for _ in range(8)]) == [float(BIG)] * 8


def test_bytes_of_any_size():
    for size in (0, 1, 1000, 99_999, 100_001, 3_000_000):
        data = bytes(size)
        assert ray.get(ray.put(data)) == data


def test_memory_is_aligned():
    assert ray.get(ray.put(np.ones(BIG))).ctypes.data % 64 == 0


def test_arrow_table():
    pa = pytest.importorskip("pyarrow")
    table = pa.table(
        {"a": list(range(1000)), "b": ["x"] * 1000, "c": [None, 1.5] * 500}
    )
    got = ray.get(ray.put(table))
    assert got.equals(table)
    assert got.schema == table.schema


def test_arrow_table_is_shared_between_two_gets():
    pa = pytest.importorskip("pyarrow")
    ref = ray.put(pa.table({"a": list(range(100_000))}))
    addresses = {ray.get(ref).column(0).chunk(0).buffers()[1].address for _ in range(2)}
    assert len(addresses) == 1


def test_arrow_table_through_a_task():
    pa = pytest.importorskip("pyarrow")

    @ray.remote
    def rows(table):
        return table.num_rows

    assert ray.get(rows.remote(pa.table({"a": list(range(50_000))}))) == 50_000


def test_arrow_slice():
    pa = pytest.importorskip("pyarrow")
    part = pa.table({"a": list(range(100_000))}).slice(10, 5)
    assert ray.get(ray.put(part)).to_pydict() == {"a": [10, 11, 12, 13, 14]}


@pytest.mark.parametrize("kind", ["array", "chunked", "batch", "schema", "scalar"])
def test_other_arrow_values(kind):
    pa = pytest.importorskip("pyarrow")
    value = {
        "array": lambda: pa.array([1, None, 3]),
        "chunked": lambda: pa.chunked_array([[1], [2, 3]]),
        "batch": lambda: pa.record_batch({"a": [1, 2]}),
        "schema": lambda: pa.schema([("a", pa.int64())]),
        "scalar": lambda: pa.scalar(5),
    }[kind]()
    assert ray.get(ray.put(value)).equals(value)


def test_data_frame():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": range(1000), "y": ["a", "b"] * 500})
    got = ray.get(ray.put(frame))
    pd.testing.assert_frame_equal(got, frame)


def test_data_frame_takes_new_columns():
    pd = pytest.importorskip("pandas")
    frame = ray.get(ray.put(pd.DataFrame({"x": range(10)})))
    frame["y"] = 1
    assert list(frame.columns) == ["x", "y"]


def test_data_frame_column_is_read_only():
    pd = pytest.importorskip("pandas")
    frame = ray.get(ray.put(pd.DataFrame({"x": np.arange(100_000)})))
    assert not frame["x"].to_numpy().flags.writeable
