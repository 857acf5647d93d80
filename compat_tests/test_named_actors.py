"""Names, namespaces, ``get_if_exists`` and detached actors."""

from __future__ import annotations

import gc
import uuid

import pytest

import ray
from ray.exceptions import ActorAlreadyExistsError, ActorDiedError
from ray.util import list_named_actors

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Holder:
    def __init__(self, value=0):
        self.value = value

    def get(self):
        return self.value

    def set(self, value):
        self.value = value

    def name(self):
        return ray.get_runtime_context().get_actor_name()

    def namespace(self):
        return ray.get_runtime_context().namespace

    def leave(self):
        ray.actor.exit_actor()


@pytest.fixture
def name():
    """A name that no other test uses."""
    return f"actor-{uuid.uuid4().hex[:8]}"


def is_free(name, namespace=None):
    """Tell whether no living actor has the name."""
    try:
        ray.get_actor(name, namespace=namespace)
    except ValueError:
        return True
    return False


def test_get_actor_finds_the_actor(name):
    holder = Holder.options(name=name).remote(1)
    found = ray.get_actor(name)
    assert found == holder
    assert ray.get(found.get.remote()) == 1
    ray.get(found.set.remote(2))
    assert ray.get(holder.get.remote()) == 2


def test_name_in_the_decorator(name):
    @ray.remote(name=name)
    class Named:
        def ping(self):
            return "pong"

    named = Named.remote()
    assert ray.get(ray.get_actor(name).ping.remote()) == "pong"
    assert named == ray.get_actor(name)


def test_name_is_known_as_soon_as_remote_returned(name):
    holder = Holder.options(name=name).remote()
    assert ray.get_actor(name) == holder


def test_found_handle_checks_calls(name):
    holder = Holder.options(name=name).remote()
    found = ray.get_actor(name)
    with pytest.raises(TypeError, match="too many positional arguments"):
        found.get.remote(1)
    with pytest.raises(AttributeError, match="nope"):
        found.nope.remote()
    assert ray.get(holder.get.remote()) == 0


def test_tasks_and_actors_find_the_actor(name):
    @ray.remote
    def read():
        return ray.get(ray.get_actor(name).get.remote())

    @ray.remote
    class Reader:
        def read(self):
            return ray.get(ray.get_actor(name).get.remote())

    holder = Holder.options(name=name).remote(5)
    assert ray.get([read.remote(), Reader.remote().read.remote()]) == [5, 5]
    assert ray.get(holder.get.remote()) == 5


def test_actor_knows_its_name(name):
    holder = Holder.options(name=name).remote()
    assert ray.get(holder.name.remote()) == name
    assert ray.get(Holder.remote().name.remote()) == ""


@pytest.mark.parametrize("missing", ["absent", "", None])
def test_absent_or_empty_name_is_a_value_error(missing):
    with pytest.raises(ValueError):
        ray.get_actor(missing)


def test_absent_name_is_in_the_message(name):
    with pytest.raises(ValueError, match="Failed to look up actor") as caught:
        ray.get_actor(name)
    assert name in str(caught.value)


def test_name_of_another_type_is_a_type_error():
    with pytest.raises(TypeError):
        ray.get_actor(3)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"name": ""}, ValueError),
        ({"name": "q", "namespace": ""}, ValueError),
        ({"name": 3}, TypeError),
        ({"name": "q", "namespace": 3}, TypeError),
    ],
)
def test_bad_names_are_refused(options, kind):
    with pytest.raises(kind):
        Holder.options(**options).remote()


def test_duplicate_name_is_refused(name):
    holder = Holder.options(name=name).remote()
    with pytest.raises(ActorAlreadyExistsError, match="already taken"):
        Holder.options(name=name).remote()
    with pytest.raises(ValueError):
        Holder.options(name=name).remote()
    assert ray.get(holder.get.remote()) == 0


def test_get_if_exists_returns_the_old_actor(name):
    first = Holder.options(name=name, get_if_exists=True).remote(1)
    second = Holder.options(name=name, get_if_exists=True).remote(2)
    assert first == second
    assert ray.get(second.get.remote()) == 1


def test_get_if_exists_without_a_name_is_refused():
    with pytest.raises(ValueError, match="name"):
        Holder.options(get_if_exists=True).remote()


def test_get_if_exists_races_make_one_actor(name):
    @ray.remote
    def open_it(value):
        holder = Holder.options(
            name=name, get_if_exists=True, lifetime="detached"
        ).remote(value)
        return ray.get(holder.get.remote())

    values = ray.get([open_it.remote(i) for i in range(4)])
    assert len(set(values)) == 1
    ray.kill(ray.get_actor(name))


def test_name_can_be_used_again_after_a_kill(name, wait_until):
    holder = Holder.options(name=name).remote(1)
    ray.get(holder.get.remote())
    ray.kill(holder)
    wait_until(lambda: is_free(name))
    again = Holder.options(name=name).remote(2)
    assert ray.get(ray.get_actor(name).get.remote()) == 2
    assert again != holder


def test_name_can_be_used_again_after_exit_actor(name, wait_until):
    holder = Holder.options(name=name).remote(1)
    with pytest.raises(ActorDiedError):
        ray.get(holder.leave.remote())
    wait_until(lambda: name not in list_named_actors())
    # Real Ray keeps the name of an actor that ended itself until its handles go.
    del holder
    gc.collect()
    wait_until(lambda: is_free(name))
    again = Holder.options(name=name).remote(2)
    assert ray.get(ray.get_actor(name).get.remote()) == 2
    assert ray.get(again.get.remote()) == 2


def test_failed_constructor_frees_the_name(name, wait_until):
    @ray.remote
    class Bad:
        def __init__(self):
            raise RuntimeError("no")

    bad = Bad.options(name=name).remote()
    with pytest.raises(ActorDiedError):
        ray.get(bad.__ray_ready__.remote())
    assert name not in list_named_actors()
    del bad
    gc.collect()
    wait_until(lambda: is_free(name))


def test_namespaces_separate_names(name):
    here = Holder.options(name=name).remote(1)
    there = Holder.options(name=name, namespace="elsewhere").remote(2)
    assert ray.get(ray.get_actor(name).get.remote()) == 1
    found = ray.get_actor(name, namespace="elsewhere")
    assert ray.get(found.get.remote()) == 2
    assert found == there
    assert found != here


def test_name_of_another_namespace_is_not_found(name):
    there = Holder.options(name=name, namespace="elsewhere").remote()
    assert is_free(name)
    assert is_free(name, "third")
    assert not is_free(name, "elsewhere")
    assert ray.get(there.get.remote()) == 0


def test_get_if_exists_looks_in_the_given_namespace(name):
    options = {"name": name, "namespace": "elsewhere", "get_if_exists": True}
    first = Holder.options(**options).remote(1)
    assert Holder.options(**options).remote(2) == first
    assert is_free(name)


def test_list_named_actors_of_this_namespace(name):
    here = Holder.options(name=name).remote()
    there = Holder.options(name=name + "-b", namespace="elsewhere").remote()
    ray.get([here.get.remote(), there.get.remote()])
    names = list_named_actors()
    assert name in names
    assert name + "-b" not in names


def test_list_named_actors_of_all_namespaces(name):
    there = Holder.options(name=name, namespace="elsewhere").remote()
    ray.get(there.get.remote())
    entry = {"name": name, "namespace": "elsewhere"}
    assert entry in list_named_actors(all_namespaces=True)


def test_dead_actor_leaves_the_list(name, wait_until):
    holder = Holder.options(name=name).remote()
    ray.get(holder.get.remote())
    assert name in list_named_actors()
    ray.kill(holder)
    wait_until(lambda: name not in list_named_actors())


def test_named_actor_ends_with_its_last_handle(name, wait_until):
    holder = Holder.options(name=name).remote()
    ray.get(holder.get.remote())
    del holder
    gc.collect()
    wait_until(lambda: is_free(name))


def test_detached_actor_outlives_its_handle(name, wait_until):
    holder = Holder.options(name=name, lifetime="detached").remote(3)
    ray.get(holder.get.remote())
    del holder
    gc.collect()
    assert ray.get(ray.get_actor(name).get.remote()) == 3
    assert name in list_named_actors()
    ray.kill(ray.get_actor(name))
    wait_until(lambda: is_free(name))


def test_detached_actor_outlives_the_task_that_made_it(name):
    @ray.remote
    def make():
        holder = Holder.options(name=name, lifetime="detached").remote(4)
        ray.get(holder.get.remote())

    ray.get(make.remote())
    found = ray.get_actor(name)
    assert ray.get(found.get.remote()) == 4
    ray.kill(found)


def test_bad_lifetime_is_refused(name):
    with pytest.raises(ValueError, match="lifetime"):
        Holder.options(name=name, lifetime="forever")


def test_namespace_of_init(ray_fresh, name):
    ray_fresh(num_cpus=2, namespace="home")
    assert ray.get_runtime_context().namespace == "home"
    holder = Holder.options(name=name).remote()
    assert ray.get(holder.namespace.remote()) == "home"
    assert ray.get_actor(name, namespace="home") == holder
    assert {"name": name, "namespace": "home"} in list_named_actors(all_namespaces=True)


def test_default_namespace_is_anonymous():
    assert uuid.UUID(ray.get_runtime_context().namespace)
