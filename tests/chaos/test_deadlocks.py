"""Planted deadlocks: each is reported, with its cycle, in a few seconds.

What waits in a circle would wait for ever (as in Ray); here its ``get`` raises
``DeadlockError``. ``test_waits_that_end.py`` has the shapes that only look like it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster
from rayshim.exceptions import DeadlockError, RayError
from rayshim.util.placement_group import placement_group, remove_placement_group
from rayshim.util.scheduling_strategies import PlacementGroupSchedulingStrategy

pytestmark = pytest.mark.slow

#: Every deadlock is reported within this time.
REPORT_S = 5.0
#: So that a test that fails does not wait for ever. The waits inside of the calls,
#: which make the deadlocks, have no timeout.
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.init(
        num_cpus=4,
        num_gpus=1,
        resources={"slot": 2},
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"dask": "off"},
    )
    yield
    ray.shutdown()


@pytest.fixture
def one_cpu() -> Iterator[None]:
    ray.shutdown()
    ray.init(
        num_cpus=1,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"dask": "off", "prestart_executors": 0},
    )
    yield
    ray.shutdown()


def find(ref: Any, *names: str) -> str:
    """Wait for a deadlock; its text names everything in ``names``."""
    begun = time.monotonic()
    with pytest.raises(DeadlockError) as caught:
        ray.get(ref, timeout=LIMIT_S)
    assert time.monotonic() - begun < REPORT_S
    text = str(caught.value)
    assert isinstance(caught.value, RayError)
    assert "Deadlock: " in text
    for name in (*names, "pid ", "node "):
        assert name in text
    return text


@ray.remote(num_cpus=0)
class Box:
    """A place to leave references in."""

    def __init__(self) -> None:
        self.refs: list[Any] = []

    def put(self, refs: list[Any]) -> None:
        self.refs = refs

    def take(self) -> list[Any]:
        return self.refs


def taken(box: Any) -> Any:
    while not (refs := ray.get(box.take.remote())):
        time.sleep(0.01)
    return ray.get(refs[0])


@ray.remote(num_cpus=0)
def waits_for_what_is_in(box: Any) -> Any:
    return taken(box)


@ray.remote(num_cpus=0)
class Link:
    """Calls the next one of a chain."""

    def __init__(self) -> None:
        self.next: Any = None

    def join(self, other: Any) -> None:
        self.next = other

    def ask(self) -> Any:
        return ray.get(self.next.ask.remote())

    def ask_twice(self) -> Any:
        return ray.get([self.next.ready.remote(), self.next.ask.remote()])

    def ready(self) -> bool:
        return True

    def ask_later(self) -> Any:
        time.sleep(1.0)
        return ray.get(self.next.ready.remote())

    def echo(self, value: Any) -> Any:
        return value

    def read(self, refs: list[Any]) -> Any:
        return ray.get(refs[0])

    def ask_myself(self) -> Any:
        return ray.get(ray.get_runtime_context().current_actor.ready.remote())

    def ask_through_task(self) -> Any:
        me = ray.get_runtime_context().current_actor
        return ray.get(asks_ready.remote(me))

    def items(self) -> Iterator[Any]:
        for ref in self.next.items.options(num_returns="streaming").remote():
            yield ray.get(ref)


@ray.remote(num_cpus=0)
def asks_ready(link: Any) -> Any:
    return ray.get(link.ready.remote())


def ring(count: int, **options: Any) -> list[Any]:
    links = [Link.options(**options).remote() for _ in range(count)]
    ray.get([link.join.remote(links[i - 1]) for i, link in enumerate(links)])
    return links


def test_task_that_waits_for_itself(session: None) -> None:
    box = Box.remote()
    ref = waits_for_what_is_in.remote(box)
    ray.get(box.put.remote([ref]))
    text = find(ref, "waits_for_what_is_in", ref.hex()[:16])
    assert text.count("waits for Object") == 1


def test_two_tasks_that_wait_for_each_other(session: None) -> None:
    boxes = [Box.remote(), Box.remote()]
    refs = [waits_for_what_is_in.remote(box) for box in boxes]
    ray.get([boxes[0].put.remote([refs[1]]), boxes[1].put.remote([refs[0]])])
    assert find(refs[0]).count("waits for Object") == 2


def test_actor_that_calls_itself(session: None) -> None:
    find(Link.remote().ask_myself.remote(), "Link.ask_myself", "Link.ready")


def test_actor_that_calls_itself_through_a_task(session: None) -> None:
    text = find(Link.remote().ask_through_task.remote(), "asks_ready", "Link.ready")
    assert text.count("waits for Object") == 2


@pytest.mark.parametrize("count", [2, 3, 5])
def test_ring_of_actors(session: None, count: int) -> None:
    text = find(ring(count)[0].ask.remote(), "Link.ask")
    assert text.count("waits for Object") == count


def test_two_actors_called_at_once(session: None) -> None:
    first, second = ring(2)
    refs = [first.ask.remote(), second.ask.remote()]
    for ref in refs:
        find(ref)


def test_wait_for_several_of_which_one_never_comes(session: None) -> None:
    find(ring(2)[0].ask_twice.remote())


def test_named_actors(session: None) -> None:
    links = [Link.options(name=name).remote() for name in ("left", "right")]
    ray.get([links[0].join.remote(ray.get_actor("right"))])
    ray.get([links[1].join.remote(ray.get_actor("left"))])
    find(ray.get_actor("left").ask.remote(), "'left'", "'right'")


def test_task_and_actor_that_wait_for_each_other(session: None) -> None:
    box = Box.remote()
    link = Link.remote()
    task = waits_for_what_is_in.remote(box)
    answer = link.read.remote([task])
    ray.get(box.put.remote([answer]))
    find(task, "Link.read", "waits_for_what_is_in")


def test_argument_that_waits_for_its_own_use(session: None) -> None:
    """The task waits for a call whose argument is the task's value."""
    box = Box.remote()
    task = waits_for_what_is_in.remote(box)
    use = Link.remote().echo.remote(task)
    ray.get(box.put.remote([use]))
    find(task, "which needs")


def test_call_behind_one_whose_argument_never_comes(session: None) -> None:
    """Calls of one caller start in order, so the second waits for the first."""
    box = Box.remote()
    task = waits_for_what_is_in.remote(box)
    link = Link.remote()
    first = link.echo.remote(task)
    second = link.ready.remote()
    ray.get(box.put.remote([second]))
    find(task, "which needs")
    del first


def test_nested_get_on_the_only_gpu(session: None) -> None:
    @ray.remote(num_cpus=0, num_gpus=1)
    def inner() -> int:
        return 1

    @ray.remote(num_cpus=0, num_gpus=1)
    def outer() -> int:
        return ray.get(inner.remote())

    find(outer.remote(), "outer", "inner", "GPU: 1")


def test_nested_get_on_full_slots(session: None) -> None:
    """Two tasks hold a slot each; what each waits for needs one more."""

    @ray.remote(num_cpus=0, resources={"slot": 1})
    def inner() -> int:
        return 1

    @ray.remote(num_cpus=0, resources={"slot": 1})
    def holder() -> int:
        time.sleep(0.3)
        return ray.get(inner.remote())

    refs = [holder.remote(), holder.remote()]
    find(refs[0], "holder", "inner", "slot: 1")


def test_function_that_calls_itself_on_full_slots(session: None) -> None:
    @ray.remote(num_cpus=0, resources={"slot": 2})
    def down(depth: int) -> int:
        return ray.get(down.remote(depth - 1)) if depth else 0

    find(down.remote(1), "down")


def test_threaded_actor_with_all_threads_stuck(session: None) -> None:
    box = Box.remote()
    link = Link.options(max_concurrency=3).remote()
    task = waits_for_what_is_in.remote(box)
    refs = [link.read.remote([task]) for _ in range(3)]
    ray.wait(refs, timeout=0.5)
    ray.get(box.put.remote([link.ready.remote()]))
    find(refs[0], "Link.read", "waits_for_what_is_in", "cannot start")


@ray.remote(num_cpus=0)
class Loop:
    """An asyncio actor."""

    def __init__(self) -> None:
        self.next: Any = None

    async def join(self, other: Any) -> None:
        self.next = other

    async def ask(self) -> Any:
        return await self.next.ask.remote()

    async def ask_blocking(self) -> Any:
        return ray.get(ray.get_runtime_context().current_actor.ready.remote())

    async def ask_other(self, link: Any) -> Any:
        return await link.ask.remote()

    async def ready(self) -> bool:
        return True


def test_async_actors_with_all_slots_stuck(session: None) -> None:
    first, second = [Loop.options(max_concurrency=1).remote() for _ in range(2)]
    ray.get([first.join.remote(second), second.join.remote(first)])
    find(first.ask.remote(), "Loop.ask")


def test_async_actor_and_plain_actor(session: None) -> None:
    loop, link = Loop.options(max_concurrency=1).remote(), Link.remote()
    ray.get([loop.join.remote(link), link.join.remote(loop)])
    find(loop.ask.remote(), "Loop.ask", "Link.ask")


def test_async_actor_whose_loop_is_blocked(session: None) -> None:
    find(Loop.remote().ask_blocking.remote(), "Loop.ask_blocking")


def test_generators_that_wait_for_each_other(session: None) -> None:
    first, _ = ring(2)
    stream = first.items.options(num_returns="streaming").remote()
    begun = time.monotonic()
    with pytest.raises(DeadlockError, match=r"Link\.items"):
        ray.get(stream._next_sync(LIMIT_S), timeout=LIMIT_S)
    assert time.monotonic() - begun < REPORT_S


def test_constructor_that_calls_its_own_actor(session: None) -> None:
    @ray.remote(num_cpus=0)
    class Early:
        def __init__(self) -> None:
            me = ray.get_runtime_context().current_actor
            ray.get(me.ready.remote())

        def ready(self) -> bool:
            return True

    begun = time.monotonic()
    with pytest.raises(ray.exceptions.ActorDiedError, match="Deadlock"):
        ray.get(Early.remote().ready.remote(), timeout=LIMIT_S)
    assert time.monotonic() - begun < REPORT_S


def test_error_can_be_caught_and_the_actor_goes_on(session: None) -> None:
    @ray.remote(num_cpus=0)
    class Careful:
        def work(self) -> str:
            me = ray.get_runtime_context().current_actor
            try:
                return ray.get(me.value.remote())
            except ray.exceptions.RayError as error:
                return type(error).__name__

        def value(self) -> str:
            return "value"

    careful = Careful.remote()
    assert ray.get(careful.work.remote()) == "DeadlockError"
    assert ray.get(careful.value.remote()) == "value"


def test_actor_that_holds_every_cpu(one_cpu: None) -> None:
    @ray.remote
    def child() -> int:
        return 1

    @ray.remote(num_cpus=1)
    class Parent:
        def work(self) -> int:
            return ray.get(child.remote())

    find(Parent.remote().work.remote(), "Parent.work", "child", "CPU: 1")


def test_actor_whose_actor_cannot_be_placed(one_cpu: None) -> None:
    @ray.remote(num_cpus=1)
    class Child:
        def size(self) -> int:
            return 1

    @ray.remote(num_cpus=1)
    class Parent:
        def work(self) -> int:
            self.child = Child.remote()
            return ray.get(self.child.size.remote())

    find(Parent.remote().work.remote(), "Parent.work", "Child.size")


def test_placement_group_that_holds_everything(one_cpu: None) -> None:
    @ray.remote(num_cpus=1)
    def outside() -> int:
        return 1

    @ray.remote(num_cpus=1)
    def inside() -> int:
        return ray.get(outside.remote())

    group = placement_group([{"CPU": 1}])
    ray.get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(group)
    begun = time.monotonic()
    with pytest.raises(DeadlockError, match="outside"):
        # Only a driver that waits for ever does not remove the group.
        ray.get(inside.options(scheduling_strategy=strategy).remote())
    assert time.monotonic() - begun < REPORT_S
    remove_placement_group(group)


@pytest.fixture
def two_nodes() -> Iterator[Cluster]:
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1, resources={"second": 1})
    ray.init(
        address=cluster.address,
        namespace="deadlocks",
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def across() -> None:
    """Two named actors on two nodes that know each other."""
    names = {"here": {}, "there": {"second": 0.5}}
    links = [Link.options(name=n, resources=r).remote() for n, r in names.items()]
    ray.get([links[i].join.remote(links[1 - i]) for i in range(2)])


def test_actors_on_two_nodes(two_nodes: Cluster) -> None:
    across()
    text = find(ray.get_actor("here").ask.remote(), "'here'", "'there'")
    nodes = {line.split("node ")[1][:8] for line in text.split("\n") if "node " in line}
    assert len(nodes) == 2


SECOND_DRIVER = """
import sys
import rayshim as ray
ray.init(address=sys.argv[1], namespace="deadlocks", log_to_driver=False)
link = ray.get_actor("there")
print("begun", flush=True)
try:
    ray.get(link.ask_later.remote(), timeout=10)
except ray.exceptions.DeadlockError:
    print("deadlock", flush=True)
ray.shutdown()
"""


def test_circle_that_two_drivers_close(two_nodes: Cluster) -> None:
    """Neither program alone makes a circle: each asks one of the actors."""
    across()
    second = subprocess.Popen(
        [sys.executable, "-c", SECOND_DRIVER, two_nodes.address],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert second.stdout is not None
        assert second.stdout.readline() == "begun\n"
        find(ray.get_actor("here").ask_later.remote(), "Link.ask_later")
        assert second.communicate(timeout=20)[0] == "deadlock\n"
    finally:
        second.kill()
        second.wait()
