"""Values that travel in unusual ways, and values that cannot travel."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import pickle
import re
import threading
import types
import uuid

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


Pair = collections.namedtuple("Pair", "left right")


class Holder:
    """Cannot be pickled: it has a lock."""

    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()


@ray.remote
def echo(value):
    return value


@pytest.fixture
def holder_serializer():
    ray.util.register_serializer(
        Holder, serializer=lambda h: h.path, deserializer=lambda path: Holder(path)
    )
    yield
    ray.util.deregister_serializer(Holder)


@pytest.mark.parametrize(
    "value",
    [
        Color.RED,
        Point(1, 2),
        Pair(1, [2]),
        datetime.datetime(2020, 1, 2, 3, 4),
        datetime.timedelta(days=1),
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=5),
        pathlib.PurePosixPath("/a/b"),
        re.compile("a+"),
        collections.OrderedDict(a=1),
        collections.Counter("aab"),
        collections.deque([1, 2], maxlen=3),
        types.SimpleNamespace(a=1),
        slice(1, 2),
        len,
        ValueError,
        "é\n\0",
        float("inf"),
        -0.0,
    ],
    ids=lambda value: type(value).__name__,
)
def test_standard_values(value):
    assert ray.get(echo.remote(value)) == value
    assert ray.get(ray.put([value])) == [value]


def test_identity_inside_one_value_is_kept():
    shared = Point(1)
    a, b = ray.get(ray.put([shared, shared]))
    assert a is b


def test_cycle():
    value = []
    value.append(value)
    got = ray.get(ray.put(value))
    assert got[0] is got


def test_default_dict_with_a_lambda():
    value = collections.defaultdict(lambda: 7, a=1)
    assert ray.get(echo.remote(value))["missing"] == 7


def test_lambda_and_local_function():
    offset = 10

    def add(x):
        return x + offset

    assert ray.get(echo.remote(add))(1) == 11
    assert ray.get(echo.remote(lambda x: x * 2))(4) == 8


def test_local_class_and_its_instance():
    class Local:
        def value(self):
            return 5

    assert ray.get(echo.remote(Local))().value() == 5
    assert ray.get(echo.remote(Local())).value() == 5


def test_bound_method():
    class Counter:
        def __init__(self):
            self.n = 3

        def read(self):
            return self.n

    assert ray.get(echo.remote(Counter().read))() == 3


def test_module_as_a_value():
    import json

    assert ray.get(echo.remote(json)).dumps([1]) == "[1]"


def test_reduce_is_honoured():
    class Odd:
        def __reduce__(self):
            return (str, ("rebuilt",))

    assert ray.get(ray.put(Odd())) == "rebuilt"


def test_getstate_and_setstate_are_honoured():
    class Stateful:
        def __init__(self):
            self.lock = threading.Lock()
            self.n = 1

        def __getstate__(self):
            return {"n": self.n}

        def __setstate__(self, state):
            self.n = state["n"] + 1

    assert ray.get(ray.put(Stateful())).n == 2


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_out_of_band_buffer_is_read_only(size):
    class Blob:
        def __init__(self, data):
            self.data = data

        def __reduce_ex__(self, protocol):
            return Blob, (pickle.PickleBuffer(self.data),)

    blob = ray.get(ray.put(Blob(bytearray(b"z" * size))))
    view = memoryview(blob.data)
    assert view.readonly
    assert view.nbytes == size
    assert bytes(view[:3]) == b"zzz"


def test_memoryview_can_be_put():
    assert bytes(ray.get(ray.put(memoryview(b"abc")))) == b"abc"


def test_unpicklable_put_value():
    with pytest.raises(TypeError, match="Could not serialize the put value"):
        ray.put(threading.Lock())


def test_unpicklable_put_value_names_the_culprit():
    with pytest.raises(TypeError, match="lock") as caught:
        ray.put(Holder("p"))
    assert "cannot pickle '_thread.lock' object" in str(caught.value)


def test_unpicklable_argument():
    with pytest.raises(TypeError, match="Could not serialize the argument"):
        echo.remote(threading.Lock())


def test_unpicklable_keyword_argument():
    with pytest.raises(TypeError, match="Could not serialize the argument"):
        echo.remote(value=[threading.Lock()])


def test_unpicklable_argument_names_the_function():
    with pytest.raises(TypeError, match="echo"):
        echo.remote(threading.Lock())


def test_unpicklable_closure():
    lock = threading.Lock()

    @ray.remote
    def uses_lock():
        return lock

    with pytest.raises(TypeError, match="Could not serialize the function"):
        uses_lock.remote()


def test_unpicklable_closure_names_the_variable():
    forbidden_thing = threading.Lock()

    @ray.remote
    def uses_lock():
        return forbidden_thing

    with pytest.raises(TypeError, match="forbidden_thing"):
        uses_lock.remote()


def test_unpicklable_result():
    @ray.remote
    def makes_lock():
        return threading.Lock()

    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object"):
        ray.get(makes_lock.remote())


def test_unpicklable_result_of_several():
    @ray.remote(num_returns=2)
    def makes_lock():
        return 1, threading.Lock()

    with pytest.raises(TypeError):
        ray.get(makes_lock.remote()[1])


def test_error_while_unpickling():
    class Bomb:
        def __reduce__(self):
            return (int, ("not a number",))

    with pytest.raises(Exception, match="not a number"):
        ray.get(ray.put(Bomb()))


def test_error_while_unpickling_an_argument():
    class Bomb:
        def __reduce__(self):
            return (int, ("not a number",))

    with pytest.raises(ray.exceptions.RayError, match="not a number"):
        ray.get(echo.remote(Bomb()))


def test_registered_serializer(holder_serializer):
    got = ray.get(ray.put(Holder("p")))
    assert isinstance(got, Holder)
    assert got.path == "p"


def test_registered_serializer_inside_containers(holder_serializer):
    (got,) = ray.get(ray.put({"k": [Holder("p")]}))["k"]
    assert got.path == "p"


def test_registered_serializer_for_arguments(holder_serializer):
    path_of = ray.remote(lambda holder: holder.path)
    assert ray.get(path_of.remote(Holder("p"))) == "p"


def test_deregistered_serializer(holder_serializer):
    ray.util.deregister_serializer(Holder)
    with pytest.raises(TypeError):
        ray.put(Holder("p"))


def test_deregister_twice_is_harmless():
    ray.util.deregister_serializer(Holder)
    ray.util.deregister_serializer(Holder)


def test_serializer_registered_in_the_task():
    @ray.remote
    def make():
        ray.util.register_serializer(
            Holder, serializer=lambda h: h.path, deserializer=lambda path: Holder(path)
        )
        return Holder("from task")

    assert ray.get(make.remote()).path == "from task"


def test_inspect_serializability_of_a_good_value(capsys):
    assert ray.util.inspect_serializability([1, "a"]) == (True, set())


def test_inspect_serializability_finds_the_attribute(capsys):
    good, failures = ray.util.inspect_serializability(Holder("p"), name="holder")
    assert good is False
    (failure,) = failures
    assert failure.path == ("holder", "lock")
    assert isinstance(failure.parent, Holder)
    assert failure.obj is failure.parent.lock


def test_inspect_serializability_finds_the_captured_variable(capsys):
    captured = threading.Lock()

    def uses_lock():
        return captured

    good, failures = ray.util.inspect_serializability(uses_lock)
    assert good is False
    assert {failure.path[-1] for failure in failures} == {"captured"}


def test_inspect_serializability_prints_a_report(capsys):
    ray.util.inspect_serializability(Holder("p"), name="holder")
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "lock" in out


def test_inspect_serializability_writes_to_a_file():
    import io

    report = io.StringIO()
    ray.util.inspect_serializability(Holder("p"), print_file=report)
    assert "lock" in report.getvalue()


def test_ray_cloudpickle_module():
    assert ray.cloudpickle.loads(ray.cloudpickle.dumps(lambda: 5))() == 5


def test_huge_closure_is_refused():
    huge = bytes(100 * 1024 * 1024)

    @ray.remote
    def uses_huge():
        return len(huge)

    with pytest.raises(ValueError, match="too large"):
        uses_huge.remote()


def test_put_removed_owner_argument():
    with pytest.raises((ValueError, TypeError)):
        ray.put(1, _owner=3)
