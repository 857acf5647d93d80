"""Making actors: constructors, their arguments and what can go wrong."""

from __future__ import annotations

import os
import threading

import pytest

import ray
from ray.exceptions import ActorDiedError, RayActorError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Point:
    def __init__(self, x, y=2, *, z=3):
        self.value = (x, y, z)

    def get(self):
        return self.value


@ray.remote
class Open:
    def __init__(self, *args, **kwargs):
        self.value = (args, kwargs)

    def get(self):
        return self.value


@ray.remote
class Bare:
    def ping(self):
        return "pong"


@ray.remote
class Bad:
    def __init__(self):
        raise RuntimeError("no way")

    def ping(self):
        return "pong"


@ray.remote
def fail():
    raise ValueError("argument failed")


@ray.remote
def seven():
    return 7


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {}, (1, 2, 3)),
        ((1, 5), {}, (1, 5, 3)),
        ((1,), {"y": 6}, (1, 6, 3)),
        ((), {"x": 1}, (1, 2, 3)),
        ((1, 2), {"z": 9}, (1, 2, 9)),
    ],
)
def test_constructor_takes_positional_default_and_keyword_arguments(
    args, kwargs, expected
):
    assert ray.get(Point.remote(*args, **kwargs).get.remote()) == expected


def test_constructor_with_star_arguments():
    actor = Open.remote(1, 2, a=3)
    assert ray.get(actor.get.remote()) == ((1, 2), {"a": 3})


@pytest.mark.parametrize(
    ("args", "kwargs", "fragment"),
    [
        ((), {}, "missing a required argument"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"w": 1}, "unexpected keyword argument"),
        ((1,), {"x": 1}, "multiple values for argument"),
    ],
)
def test_wrong_constructor_arguments_fail_in_the_caller(args, kwargs, fragment):
    with pytest.raises(TypeError, match=fragment):
        Point.remote(*args, **kwargs)


def test_class_without_constructor_takes_no_arguments():
    with pytest.raises(TypeError, match="too many positional arguments"):
        Bare.remote(1)
    assert ray.get(Bare.remote().ping.remote()) == "pong"


def test_empty_class_becomes_ready():
    @ray.remote
    class Empty:
        pass

    assert ray.get(Empty.remote().__ray_ready__.remote()) is True


def test_ref_argument_of_the_constructor_is_resolved():
    assert ray.get(Point.remote(seven.remote()).get.remote()) == (7, 2, 3)
    assert ray.get(Point.remote(1, z=ray.put(8)).get.remote()) == (1, 2, 8)


def test_nested_ref_argument_of_the_constructor_stays_a_ref():
    ref = ray.put(5)
    args, _ = ray.get(Open.remote([ref]).get.remote())
    assert args == ([ref],)
    assert ray.get(args[0][0]) == 5


def test_instantiating_directly_is_refused():
    with pytest.raises(TypeError, match="cannot be instantiated directly"):
        Bare()


def test_unserializable_constructor_argument_fails_at_the_call():
    with pytest.raises(TypeError, match="Could not serialize the argument"):
        Open.remote(threading.Lock())


def test_remote_returns_before_the_constructor_ran():
    @ray.remote
    class Waits:
        def __init__(self, gate):
            self.value = ray.get(gate[0])

        def get(self):
            return self.value

    @ray.remote
    class Gate:
        def __init__(self):
            self.event = threading.Event()

        def wait(self):
            self.event.wait(20)
            return "open"

        def open(self):
            self.event.set()

    gate = Gate.options(max_concurrency=2).remote()
    actor = Waits.remote([gate.wait.remote()])
    ref = actor.get.remote()
    assert ray.wait([ref], timeout=0.05) == ([], [ref])
    gate.open.remote()
    assert ray.get(ref) == "open"


def test_constructor_error_reaches_every_call():
    actor = Bad.remote()
    for _ in range(2):
        with pytest.raises(ActorDiedError) as caught:
            ray.get(actor.ping.remote())
        assert "error raised in its creation task" in str(caught.value)
        assert "RuntimeError: no way" in str(caught.value)


def test_constructor_error_is_not_the_users_type():
    with pytest.raises(RayActorError) as caught:
        ray.get(Bad.remote().ping.remote())
    assert not isinstance(caught.value, RuntimeError)
    assert "Bad.__init__" in str(caught.value)


def test_constructor_error_reaches_calls_sent_before_it_was_known():
    actor = Bad.remote()
    refs = [actor.ping.remote() for _ in range(5)]
    for ref in refs:
        with pytest.raises(ActorDiedError, match="creation task"):
            ray.get(ref)


def test_constructor_error_reaches_ray_ready():
    with pytest.raises(ActorDiedError, match="no way"):
        ray.get(Bad.remote().__ray_ready__.remote())


def test_constructor_error_is_not_restarted(tmp_path):
    @ray.remote(max_restarts=2)
    class Fails:
        def __init__(self, path):
            with open(path, "a") as file:
                file.write("x")
            raise RuntimeError("again")

        def ping(self):
            return 1

    path = tmp_path / "starts"
    with pytest.raises(ActorDiedError, match="again"):
        ray.get(Fails.remote(str(path)).ping.remote())
    assert path.read_text() == "x"


def test_constructor_that_exits_the_process():
    @ray.remote
    class Exits:
        def __init__(self):
            os._exit(1)

        def ping(self):
            return 1

    with pytest.raises(ActorDiedError, match="died unexpectedly"):
        ray.get(Exits.remote().ping.remote())


def test_failed_constructor_argument_kills_the_actor():
    actor = Point.remote(fail.remote())
    with pytest.raises(ActorDiedError) as caught:
        ray.get(actor.get.remote())
    assert "argument failed" in str(caught.value)
    assert "creation task" in str(caught.value)


def test_constructor_may_use_tasks_and_objects():
    @ray.remote
    class Loads:
        def __init__(self):
            self.value = ray.get(seven.remote()) + ray.get(ray.put(1))

        def get(self):
            return self.value

    assert ray.get(Loads.remote().get.remote()) == 8


def test_ray_remote_as_a_function_on_a_class():
    class Plain:
        def __init__(self, x):
            self.x = x

        def get(self):
            return self.x

    assert ray.get(ray.remote(Plain).remote(3).get.remote()) == 3
    sized = ray.remote(num_cpus=0, max_restarts=1)(Plain)
    assert ray.get(sized.remote(4).get.remote()) == 4
    assert Plain(5).get() == 5


@pytest.mark.parametrize("value", [3, "name", None, [1]])
def test_ray_remote_refuses_what_is_neither_function_nor_class(value):
    with pytest.raises((AssertionError, TypeError)):
        ray.remote(value)


def test_actor_created_by_a_task():
    @ray.remote
    def make():
        actor = Point.remote(1)
        return ray.get(actor.get.remote())

    assert ray.get(make.remote()) == (1, 2, 3)


def test_actor_created_by_an_actor():
    @ray.remote
    class Parent:
        def __init__(self):
            self.child = Point.remote(4)

        def ask(self):
            return ray.get(self.child.get.remote())

        def lend(self):
            return self.child

    parent = Parent.remote()
    assert ray.get(parent.ask.remote()) == (4, 2, 3)
    child = ray.get(parent.lend.remote())
    assert ray.get(child.get.remote()) == (4, 2, 3)


def test_actor_class_can_be_passed_to_a_task():
    @ray.remote
    def make(cls):
        return ray.get(cls.remote(9).get.remote())

    assert ray.get(make.remote(Point)) == (9, 2, 3)


def test_actor_class_defined_inside_a_task():
    @ray.remote
    def make():
        @ray.remote
        class Inner:
            def ping(self):
                return "inner"

        return ray.get(Inner.remote().ping.remote())

    assert ray.get(make.remote()) == "inner"


def test_one_class_made_into_two_actor_classes():
    class Plain:
        def ping(self):
            return 1

    first, second = ray.remote(Plain), ray.remote(Plain)
    assert first is not second
    assert ray.get([first.remote().ping.remote(), second.remote().ping.remote()]) == [
        1,
        1,
    ]


def test_an_actor_may_make_an_actor_of_its_own_class():
    @ray.remote(num_cpus=0)
    class Parent:
        def make(self):
            self.child = Parent.remote()
            return ray.get(self.child.last.remote())

        def last(self):
            return 1

    assert ray.get(Parent.remote().make.remote()) == 1
