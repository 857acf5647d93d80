"""What the page on compatibility says of rayshim holds."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rayshim
from doc_pages import DOCS
from rayshim import exceptions
from rayshim.cluster_utils import Cluster

PAGE = (DOCS / "compatibility.md").read_text()
Test = Callable[..., None]
MISSING = re.findall(r"^\| `ray\.([\w.]+)` \| \d+ \|$", PAGE, re.MULTILINE)


def is_there(dotted: str) -> bool:
    """Whether ``rayshim.<dotted>`` is a name or a module."""
    found: object = rayshim
    path = "rayshim"
    for part in dotted.split("."):
        path += f".{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(path)
            except ModuleNotFoundError:
                return False
    return True


def test_the_list_of_missing_names_is_read() -> None:
    assert "serve.dag.InputNode" in MISSING
    assert is_there("actor.ActorHandle")


@pytest.mark.parametrize("name", MISSING)
def test_name_is_missing(name: str) -> None:
    assert not is_there(name), "it is there now: take it off the list"


def test_version_is_that_of_ray_and_names_rayshim() -> None:
    expected = f"2.60.0+rayshim.{rayshim.RAYSHIM_VERSION}"

    assert rayshim.__version__ == expected


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:6379"])
def test_a_cluster_that_is_not_there_is_an_error(address: str) -> None:
    # A folder of its own, since other clusters of this user may be running; short,
    # since the path of a socket is.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        with pytest.raises(ConnectionError, match=address):
            rayshim.init(address=address, _temp_dir=folder)


@pytest.mark.parametrize(
    "parameters",
    [
        {"enable_resource_isolation": True},
        {"runtime_env": {"java_jars": ["x"]}},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_parameters_of_later_stages_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(NotImplementedError, match=next(iter(parameters))):
        rayshim.init(**parameters)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"runtime_env": 3}, TypeError),
        ({"_system_config": {"unknown": 1}}, ValueError),
    ],
)
def test_wrong_parameters_raise(
    parameters: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        rayshim.init(**parameters)


def test_a_node_refuses_what_has_no_effect() -> None:
    with pytest.raises(TypeError, match="plasma_directory"):
        Cluster().add_node(plasma_directory="/tmp")


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    rayshim.init(num_cpus=2, log_to_driver=False)
    yield
    rayshim.shutdown()


def with_session(test: Test) -> Test:
    """Marks a test that needs processes."""
    return pytest.mark.slow(pytest.mark.usefixtures("session")(test))


@with_session
def test_cancel_interrupts_a_sleep(tmp_path: Path) -> None:
    @rayshim.remote
    def nap() -> None:
        (tmp_path / "began").touch()
        time.sleep(20)

    @rayshim.remote
    class Napper:
        def nap(self) -> None:
            (tmp_path / "method").touch()
            time.sleep(20)

        def value(self) -> int:
            return 1

    napper = Napper.remote()
    for ref, sign in ((nap.remote(), "began"), (napper.nap.remote(), "method")):
        wait_for(tmp_path / sign)
        rayshim.cancel(ref)
        with pytest.raises(exceptions.TaskCancelledError):
            rayshim.get(ref, timeout=10)
    assert rayshim.get(napper.value.remote()) == 1


@with_session
def test_cancelled_queued_call_does_not_run(tmp_path: Path) -> None:
    @rayshim.remote
    class Keeper:
        def __init__(self) -> None:
            self.done: list[str] = []

        def run(self, name: str) -> list[str]:
            (tmp_path / name).touch()
            while name == "first" and not (tmp_path / "go").exists():
                time.sleep(0.01)
            self.done.append(name)
            return self.done

    keeper = Keeper.remote()
    first = keeper.run.remote("first")
    wait_for(tmp_path / "first")
    second = keeper.run.remote("second")
    rayshim.cancel(second)
    with pytest.raises(exceptions.TaskCancelledError):
        rayshim.get(second, timeout=10)
    (tmp_path / "go").touch()

    assert rayshim.get(first) == ["first"]
    assert rayshim.get(keeper.run.remote("third")) == ["first", "third"]


def wait_for(path: Path) -> None:
    """Waits until a call has made a file."""
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@with_session
def test_values_keep_type_and_identity() -> None:
    plain = [1]
    first, second = rayshim.get(rayshim.put([plain, plain]))

    assert first is second
    assert type(rayshim.get(rayshim.put(bytearray(b"x")))) is bytearray


@with_session
def test_reference_is_made_from_hex() -> None:
    ref = rayshim.put(5)

    assert rayshim.get(rayshim.ObjectRef.from_hex(ref.hex())) == 5


@with_session
def test_error_of_a_task_is_plain_and_pickles() -> None:
    @rayshim.remote
    def fail() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError) as caught:
        rayshim.get(fail.remote())

    assert "\x1b" not in str(caught.value)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ValueError)


@with_session
def test_yield_from_works_in_a_stream() -> None:
    @rayshim.remote
    def count() -> Iterator[int]:
        yield from range(3)

    assert [rayshim.get(ref) for ref in count.remote()] == [0, 1, 2]


@with_session
def test_documentation_of_a_remote_function_is_its_own() -> None:
    @rayshim.remote
    def add() -> None:
        """Adds."""

    assert add.__doc__ == "Adds."


@with_session
def test_unknown_concurrency_group_costs_the_call_only() -> None:
    @rayshim.remote
    class Worker:
        def value(self) -> int:
            return 1

        def bases(self) -> int:
            return len(type(self).__mro__)

    worker = Worker.remote()
    with pytest.raises(ValueError, match="unknown"):
        rayshim.get(worker.value.options(concurrency_group="unknown").remote())

    assert rayshim.get(worker.value.remote()) == 1
    assert rayshim.get(worker.bases.remote()) == 2


@with_session
def test_coroutines_start_in_order() -> None:
    @rayshim.remote
    class Keeper:
        def __init__(self) -> None:
            self.seen: list[int] = []

        async def see(self, number: int) -> None:
            self.seen.append(number)

        async def all(self) -> list[int]:
            await asyncio.sleep(0)
            return self.seen

    keeper = Keeper.remote()
    rayshim.get([keeper.see.remote(number) for number in range(50)])

    assert rayshim.get(keeper.all.remote()) == list(range(50))


@with_session
def test_wait_returns_the_first_ready_ones() -> None:
    @rayshim.remote
    def same(value: int) -> int:
        return value

    refs = [same.remote(value) for value in range(6)]
    rayshim.get(refs)

    assert rayshim.wait(refs, num_returns=2)[0] == refs[:2]


@with_session
def test_a_timeout_that_is_no_number_raises() -> None:
    ref = rayshim.put(1)

    with pytest.raises(TypeError):
        rayshim.get(ref, timeout="1")  # type: ignore[arg-type]  # the point of it.
