"""Serialization of values."""

from __future__ import annotations

import collections
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim._core.custom_serializers import deregister_serializer, register_serializer
from rayshim._core.serialization import (
    IMMUTABLE,
    _is_plain,
    collector,
    deserialize,
    serialize,
)


def round_trip(value):
    made = serialize(value)
    return deserialize(made.stream, [bytes(view) for view in made.buffers])


class FakeRef:
    """Takes part in pickling as an ObjectRef does."""

    def __reduce__(self):
        if collector.refs is not None:
            collector.refs.append(self)
        return FakeRef, ()


class Celsius:
    def __init__(self, degrees):
        self.degrees = degrees
        self.lock = threading.Lock()  # cannot be pickled


class SubCelsius(Celsius):
    pass


@pytest.fixture
def celsius():
    register_serializer(
        Celsius,
        serializer=lambda value: value.degrees,
        deserializer=lambda degrees: Celsius(degrees),
    )
    yield
    deregister_serializer(Celsius)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=60,
)


@given(plain)
def test_plain_values_come_back_with_their_types(value):
    back = round_trip(value)

    assert back == value and type(back) is type(value)


def test_immutable_types_are_the_contract():
    assert IMMUTABLE == {int, float, str, bytes, bool, type(None)}


def test_size_counts_stream_and_buffers():
    made = serialize(b"x" * 200_000)

    assert made.total_bytes == len(made.stream) + 200_000
    assert len(made.stream) < 200


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("size_bytes", [0, 10, 200_000])
def test_binary_values_keep_their_type(kind, size_bytes):
    back = round_trip(kind(b"x" * size_bytes))

    assert type(back) is kind and back == b"x" * size_bytes


def test_large_bytes_are_not_copied_while_serializing():
    value = b"x" * 200_000

    made = serialize(value)

    assert made.buffers[0].obj is value


def test_shared_and_recursive_lists_keep_their_shape():
    inner = [1]
    value = [inner, inner]
    value.append(value)

    back = round_trip(value)

    assert back[0] is back[1] and back[2] is back


def test_functions_and_classes_of_main_travel_by_value(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import subprocess, sys
            from rayshim._core.serialization import serialize

            def double(x):
                return 2 * x

            class Point:
                def __init__(self, x):
                    self.x = double(x)

            value = {"f": double, "p": Point(4), "c": Point, "l": (double,)}
            reader = (
                "import sys, pickle; v = pickle.loads(sys.stdin.buffer.read());"
                "print(v['f'](3), v['p'].x, v['c'](1).x, v['l'][0](5))"
            )
            stream = serialize(value).stream
            subprocess.run([sys.executable, "-c", reader], input=stream, check=True)
            """
        )
    )

    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )

    assert done.stdout.split() == ["6", "8", "2", "10"]


def test_importable_classes_travel_by_reference():
    assert b"OrderedDict" in serialize(collections.OrderedDict).stream
    assert round_trip(collections.OrderedDict) is collections.OrderedDict
    assert len(serialize(textwrap.dedent).stream) < 100


def test_lambdas_and_closures_travel():
    offset = 3

    assert round_trip(lambda x: x + offset)(4) == 7


def test_references_are_collected_and_the_collector_is_restored():
    ref = FakeRef()

    made = serialize({"a": [ref], "b": ref, "c": (1, FakeRef())})

    assert [type(found) for found in made.refs] == [FakeRef, FakeRef]
    assert made.refs[0] is ref
    assert collector.refs is None


def test_nested_serialization_keeps_the_references_apart():
    inner = []

    class Outer:
        def __reduce__(self):
            inner.append(serialize([FakeRef()]))
            return (list, ())

    made = serialize([FakeRef(), Outer(), FakeRef()])

    assert len(inner[0].refs) == 1
    assert len(made.refs) == 2


def test_errors_are_the_original_ones_and_leave_the_collector_clean():
    with pytest.raises(TypeError, match="lock"):
        serialize([FakeRef(), threading.Lock()])

    assert collector.refs is None


def test_custom_serializer_applies_nested_and_at_the_top(celsius):
    assert round_trip(Celsius(3)).degrees == 3
    back = round_trip({"a": [Celsius(4)], "b": (Celsius(5), 1)})
    assert (back["a"][0].degrees, back["b"][0].degrees) == (4, 5)


def test_custom_serializer_leaves_subclasses_alone(celsius):
    with pytest.raises(TypeError, match="lock"):
        serialize(SubCelsius(1))


def test_custom_serializer_works_in_other_processes():
    class Local:
        pass

    register_serializer(
        Local, serializer=lambda _: 5, deserializer=lambda x: ("got", x)
    )
    try:
        stream = serialize([Local()]).stream
    finally:
        deregister_serializer(Local)

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pickle; print(pickle.loads(sys.stdin.buffer.read()))",
        ],
        input=stream,
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == b"[('got', 5)]"


def test_custom_serializer_may_return_references_and_arrays():
    np = pytest.importorskip("numpy")
    register_serializer(
        SubCelsius,
        serializer=lambda value: (FakeRef(), np.full(1000, value.degrees)),
        deserializer=lambda parts: parts[1].sum(),
    )
    try:
        made = serialize([SubCelsius(2)])
    finally:
        deregister_serializer(SubCelsius)

    assert len(made.refs) == 1 and len(made.buffers) == 1
    assert deserialize(made.stream, made.buffers) == [2000]


def test_deregistering_ends_it_and_may_be_repeated(celsius):
    deregister_serializer(Celsius)
    deregister_serializer(Celsius)

    with pytest.raises(TypeError, match="lock"):
        serialize(Celsius(1))


def test_custom_serializer_of_an_array_class_takes_precedence():
    np = pytest.importorskip("numpy")
    register_serializer(
        np.ndarray, serializer=lambda a: a.tolist(), deserializer=lambda v: ("list", v)
    )
    try:
        assert round_trip(np.arange(3)) == ("list", [0, 1, 2])
        assert round_trip([np.arange(2)]) == [("list", [0, 1])]
    finally:
        deregister_serializer(np.ndarray)


def test_reducers_registered_with_copyreg_are_honoured():
    import copyreg

    class Plain:
        pass

    copyreg.pickle(Plain, lambda value: (int, (7,)))
    try:
        assert round_trip([Plain()]) == [7]
    finally:
        del copyreg.dispatch_table[Plain]


class TestNumpy:
    @pytest.fixture(autouse=True)
    def numpy(self):
        self.np = pytest.importorskip("numpy")

    def same(self, array, *, buffers, writeable=False):
        made = serialize(array)
        back = deserialize(made.stream, [bytes(view) for view in made.buffers])
        self.np.testing.assert_array_equal(back, array)
        assert back.dtype == array.dtype and back.shape == array.shape
        assert len(made.buffers) == buffers
        assert back.flags.writeable is writeable
        return back

    def test_contiguous_arrays_leave_the_stream_uncopied_and_read_only(self):
        array = self.np.arange(12.0).reshape(3, 4)

        self.same(array, buffers=1)

        assert self.np.shares_memory(
            self.np.frombuffer(serialize(array).buffers[0]), array
        )

    def test_fortran_order_is_kept(self):
        array = self.np.asfortranarray(self.np.arange(12).reshape(3, 4))

        assert self.same(array, buffers=1).flags.f_contiguous

    @pytest.mark.parametrize("dtype", ["?", "i1", ">f8", "c16", "S5", "U3", "i4,f8"])
    def test_dtypes_are_kept(self, dtype):
        self.same(self.np.zeros(5, dtype), buffers=1)

    def test_zero_size_and_zero_dimensions(self):
        self.same(self.np.ones((0, 3)), buffers=1)
        self.same(self.np.array(3.0), buffers=1)

    def test_strided_arrays_are_copied_into_the_stream(self):
        self.same(self.np.arange(100.0)[::2], buffers=0, writeable=True)

    def test_object_and_time_arrays(self):
        self.same(self.np.array([1, "a", None], object), buffers=0, writeable=True)
        self.same(self.np.zeros(3, "M8[ns]"), buffers=0, writeable=True)

    def test_object_arrays_may_hold_references_and_lambdas(self):
        made = serialize(self.np.array([FakeRef(), lambda: 5], object))

        assert len(made.refs) == 1
        assert deserialize(made.stream, made.buffers)[1]() == 5

    def test_subclasses_keep_their_type(self):
        back = round_trip(self.np.ma.array([1, 2], mask=[0, 1]))

        assert type(back) is self.np.ma.MaskedArray and back.mask.tolist() == [0, 1]

    def test_nested_arrays_leave_the_stream(self):
        made = serialize({"a": [self.np.ones(1000)], "b": (self.np.ones(5), 1)})

        assert [view.nbytes for view in made.buffers] == [8000, 40]

    def test_scalars(self):
        assert round_trip(self.np.float32(1.5)) == self.np.float32(1.5)


def test_arrow_tables_leave_the_stream():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": range(1000), "s": ["x"] * 1000})

    made = serialize(table)

    assert len(made.stream) < 2000 and made.total_bytes > 12_000
    assert deserialize(made.stream, made.buffers) == table


def test_slices_of_arrow_tables_do_not_carry_the_whole():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": range(100_000)}).slice(5, 10)

    made = serialize(table)

    assert made.total_bytes < 5000
    assert deserialize(made.stream, made.buffers) == table


def test_data_frames_leave_the_stream():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": range(10_000), "b": 1.5, "s": "x"})

    made = serialize(frame)

    assert len(made.stream) < 3000
    back = deserialize(made.stream, [bytes(view) for view in made.buffers])
    pd.testing.assert_frame_equal(back, frame)


def test_importing_loads_neither_numpy_nor_cloudpickle():
    script = (
        "import sys, rayshim._core.serialization as s, rayshim.adapters.shm.store;"
        "s.deserialize(s.serialize([1, {'a': b'x'}]).stream);"
        "print([m for m in ('numpy', 'pyarrow', 'cloudpickle') if m in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=30
    )

    assert done.stdout.strip() == b"[]"


def test_streams_may_be_views():
    made = serialize({"a": {1, 2}})

    assert deserialize(memoryview(made.stream)) == {"a": {1, 2}}
    assert pickle.loads(made.stream) == {"a": {1, 2}}


def test_deep_and_wide_lists_leave_the_fast_path_early():
    value = [1]
    for _ in range(6):
        value = [value] * 30

    assert _is_plain([[1, (2, {"a": None})], "x"])
    assert not _is_plain(value)
    assert not _is_plain([[[[[1]]]]])
    assert not _is_plain({"a": [object()]})
    assert not _is_plain({(1, object()): 2})
