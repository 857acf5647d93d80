"""Handles: identity, pickling, passing on, and what they print."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

import ray
from ray.actor import ActorHandle

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Counter:
    def __init__(self):
        self.value = 0

    def inc(self):
        self.value += 1
        return self.value

    def me(self):
        return ray.get_runtime_context().current_actor

    def echo(self, value):
        return value

    def call(self, others):
        return ray.get([other.inc.remote() for other in others])

    @ray.method(num_returns=2)
    def pair(self):
        return 1, 2


@ray.remote
def inc(counter):
    return ray.get(counter.inc.remote())


@ray.remote
def inc_first(container):
    return ray.get(container[0].inc.remote())


@pytest.fixture
def counter():
    return Counter.remote()


def test_repr_names_class_and_id(counter):
    assert re.fullmatch(r"Actor\(Counter, [0-9a-f]{32}\)", repr(counter))


def test_repr_of_the_actor_class_names_the_class():
    assert "Counter" in repr(Counter)


def test_handle_is_an_actor_handle(counter):
    assert isinstance(counter, ActorHandle)


def test_handle_passed_to_a_task(counter):
    assert ray.get(inc.remote(counter)) == 1
    assert ray.get(counter.inc.remote()) == 2


def test_handle_nested_in_an_argument(counter):
    assert ray.get(inc_first.remote([counter])) == 1


def test_handle_passed_to_an_actor(counter):
    other = Counter.remote()
    assert ray.get(other.call.remote([counter, counter])) == [1, 2]


def test_handle_stored_in_an_object(counter):
    ref = ray.put({"counter": counter})
    again = ray.get(ref)["counter"]
    assert again == counter
    assert ray.get(again.inc.remote()) == 1
    assert ray.get(inc_first.remote([ray.get(ref)["counter"]])) == 2


def test_handle_as_a_top_level_object(counter):
    ref = ray.put(counter)
    assert ray.get(inc.remote(ref)) == 1


def test_handle_returned_by_a_task():
    @ray.remote
    def make():
        return Counter.remote()

    counter = ray.get(make.remote())
    assert ray.get(counter.inc.remote()) == 1
    assert repr(counter).startswith("Actor(Counter, ")


def test_handle_in_the_closure_of_a_task(counter):
    @ray.remote
    def use():
        return ray.get(counter.inc.remote())

    assert ray.get(use.remote()) == 1


def test_equality_and_hash_survive_a_round_trip(counter):
    again = ray.get(counter.echo.remote(counter))
    assert again == counter
    assert hash(again) == hash(counter)
    assert {again, counter} == {counter}


def test_different_actors_are_not_equal(counter):
    assert counter != Counter.remote()
    assert counter != 1
    assert (counter == "text") is False


def test_self_handle_equals_the_callers_handle(counter):
    mine = ray.get(counter.me.remote())
    assert mine == counter
    assert ray.get(mine.inc.remote()) == 1
    assert repr(mine) == repr(counter)


def test_num_returns_of_methods_survives_the_trip(counter):
    @ray.remote
    def use(handle):
        first, second = handle.pair.remote()
        return ray.get([first, second])

    assert ray.get(use.remote(counter)) == [1, 2]


def test_unknown_method_on_a_received_handle(counter):
    @ray.remote
    def use(handle):
        try:
            handle.nope.remote()
        except AttributeError as error:
            return "nope" in str(error)

    assert ray.get(use.remote(counter))


def test_argument_check_on_a_received_handle(counter):
    @ray.remote
    def use(handle):
        try:
            handle.inc.remote(1)
        except TypeError as error:
            return str(error)

    assert "too many positional arguments" in ray.get(use.remote(counter))


@pytest.mark.parametrize(
    "clone",
    [
        copy.copy,
        copy.deepcopy,
        lambda handle: pickle.loads(pickle.dumps(handle)),
    ],
    ids=["copy", "deepcopy", "pickle"],
)
def test_clones_are_equal_and_work(counter, clone):
    again = clone(counter)
    assert again == counter
    assert ray.get(again.inc.remote()) == 1


def test_handles_as_dictionary_keys(counter):
    other = Counter.remote()
    names = {counter: "a", other: "b"}
    again = ray.get(ray.put(list(names)))
    assert [names[handle] for handle in again] == ["a", "b"]


def test_many_tasks_share_one_handle(counter):
    results = ray.get([inc.remote(counter) for _ in range(8)])
    assert sorted(results) == list(range(1, 9))


def test_handle_of_an_actor_given_to_its_own_child():
    @ray.remote
    class Child:
        def __init__(self, parent):
            self.parent = parent

        def ask(self):
            return ray.get(self.parent.value.remote())

    @ray.remote
    class Parent:
        def __init__(self):
            me = ray.get_runtime_context().current_actor
            self.child = Child.remote(me)

        def value(self):
            return 12

        def get_child(self):
            return self.child

    parent = Parent.remote()
    child = ray.get(parent.get_child.remote())
    assert ray.get(child.ask.remote()) == 12


def test_two_actors_call_each_other():
    @ray.remote(max_concurrency=2)
    class Player:
        def meet(self, other):
            self.other = other

        def hit(self, left):
            if left == 0:
                return 0
            return 1 + ray.get(self.other.hit.remote(left - 1))

    left, right = Player.remote(), Player.remote()
    ray.get([left.meet.remote(right), right.meet.remote(left)])
    assert ray.get(left.hit.remote(2)) == 2


def test_ids_of_handle_and_context_agree():
    @ray.remote
    class Who:
        def actor_id(self):
            return ray.get_runtime_context().get_actor_id()

    who = Who.remote()
    assert ray.get(who.actor_id.remote()) == who._actor_id.hex()
    assert who._actor_id.hex() in repr(who)


def test_ref_made_by_an_actor_is_readable_while_it_lives():
    @ray.remote
    class Owner:
        def __init__(self):
            self.refs = [ray.put(i) for i in range(3)]

        def get(self):
            return self.refs

    owner = Owner.remote()
    refs = ray.get(owner.get.remote())
    assert ray.get(refs) == [0, 1, 2]


def test_actor_method_ref_is_passed_on_by_a_third_party(counter):
    @ray.remote
    def read(refs):
        return ray.get(refs[0])

    assert ray.get(read.remote([counter.inc.remote()])) == 1
