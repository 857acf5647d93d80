"""Options of actor classes are checked when they are given."""

from __future__ import annotations

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


class Plain:
    def __init__(self, value=0):
        self.value = value

    def get(self):
        return self.value

    def resources(self):
        return ray.get_runtime_context().get_assigned_resources()


Actor = ray.remote(Plain)

WRONG_VALUES = [
    ({"num_cpus": -1}, "num_cpus cannot be negative"),
    ({"num_cpus": 0.00001}, "0.0001"),
    ({"num_gpus": -1}, "num_gpus cannot be negative"),
    ({"memory": -1}, "memory cannot be negative"),
    ({"resources": {"CPU": 1}}, "num_cpus"),
    ({"resources": {"GPU": 1}}, "num_gpus"),
    ({"resources": {"a": -1}}, "cannot be negative"),
    ({"max_restarts": -2}, "max_restarts"),
    ({"max_task_retries": -2}, "max_task_retries"),
    ({"max_concurrency": -1}, "max_concurrency"),
    ({"max_pending_calls": -2}, "max_pending_calls"),
    ({"lifetime": "foo"}, "lifetime"),
    ({"get_if_exists": True}, "name must be specified"),
    ({"bogus": 1}, "Invalid option keyword"),
    ({"max_calls": 1}, "Invalid option keyword"),
    ({"max_retries": 1}, "Invalid option keyword"),
    ({"retry_exceptions": True}, "Invalid option keyword"),
    ({"num_returns": 1}, "Invalid option keyword"),
]

WRONG_TYPES = [
    {"num_cpus": "a"},
    {"num_gpus": "a"},
    {"memory": "a"},
    {"resources": []},
    {"max_restarts": 1.5},
    {"max_task_retries": "a"},
    {"max_concurrency": "a"},
    {"max_pending_calls": "a"},
    {"name": 3},
    {"namespace": 3},
    {"runtime_env": 3},
    {"concurrency_groups": 3},
    {"label_selector": 3},
    {"accelerator_type": 3},
    {"enable_task_events": 3},
    {"get_if_exists": 3},
]


def option_id(value):
    """Name a case after its option."""
    if isinstance(value, dict):
        return "-".join(f"{key}={item}" for key, item in value.items())
    return ""


@pytest.mark.parametrize(("options", "fragment"), WRONG_VALUES, ids=option_id)
def test_wrong_value_is_refused_by_decorator_and_options(options, fragment):
    with pytest.raises(ValueError, match=fragment):
        ray.remote(**options)(Plain)
    with pytest.raises(ValueError, match=fragment):
        Actor.options(**options)


@pytest.mark.parametrize("options", WRONG_TYPES, ids=option_id)
def test_wrong_type_is_refused_by_decorator_and_options(options):
    with pytest.raises(TypeError, match=next(iter(options))):
        ray.remote(**options)(Plain)
    with pytest.raises(TypeError, match=next(iter(options))):
        Actor.options(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_cpus": 0},
        {"num_cpus": 0.5},
        {"max_restarts": -1},
        {"max_task_retries": -1},
        {"max_pending_calls": -1},
        {"max_concurrency": 0},
        {"lifetime": None},
        {"lifetime": "non_detached"},
        {"name": None},
        {"resources": None},
        {"scheduling_strategy": "SPREAD"},
        {"memory": 1.5},
        {"enable_task_events": False},
    ],
    ids=option_id,
)
def test_valid_option_is_accepted_by_options(options):
    Actor.options(**options)


def test_decorator_without_arguments_in_parentheses_is_refused():
    with pytest.raises(AssertionError):
        ray.remote()


def test_class_and_options_together_are_refused():
    with pytest.raises((AssertionError, TypeError)):
        ray.remote(Plain, num_cpus=1)


def test_fractional_gpus_above_one_are_refused_at_remote():
    wrapper = Actor.options(num_gpus=1.5)
    with pytest.raises(ValueError, match="whole numbers"):
        wrapper.remote()


def test_unknown_scheduling_strategy_is_refused_at_remote():
    wrapper = Actor.options(scheduling_strategy="foo")
    with pytest.raises(ValueError, match="scheduling_strategy"):
        wrapper.remote()


def test_concurrency_groups_are_refused_in_options():
    with pytest.raises(ValueError, match="concurrency_groups"):
        Actor.options(concurrency_groups={"io": 1})


def test_options_leave_the_class_alone():
    half = Actor.options(num_cpus=0.5)
    assert ray.get(half.remote(1).resources.remote()) == {"CPU": 0.5}
    assert ray.get(Actor.remote(1).resources.remote()) == {}


def test_options_override_the_decorator():
    sized = ray.remote(num_cpus=1)(Plain)
    assert ray.get(sized.remote().resources.remote()) == {"CPU": 1}
    assert ray.get(sized.options(num_cpus=2).remote().resources.remote()) == {"CPU": 2}


def test_options_wrapper_makes_several_actors():
    wrapper = Actor.options(num_cpus=0)
    first, second = wrapper.remote(1), wrapper.remote(2)
    assert ray.get([first.get.remote(), second.get.remote()]) == [1, 2]
    assert first != second


def test_options_wrapper_checks_constructor_arguments():
    with pytest.raises(TypeError, match="too many positional arguments"):
        Actor.options(num_cpus=0).remote(1, 2)


def test_method_options_can_be_kept_and_reused():
    actor = Actor.remote(5)
    named = actor.get.options(name="reader")
    assert ray.get([named.remote(), named.remote()]) == [5, 5]


def test_env_vars_reach_the_actor():
    import os

    @ray.remote(runtime_env={"env_vars": {"COMPAT_COLOUR": "green"}})
    class Env:
        def get(self, name):
            return os.environ.get(name)

    assert ray.get(Env.remote().get.remote("COMPAT_COLOUR")) == "green"
    other = Env.options(runtime_env={"env_vars": {"COMPAT_COLOUR": "blue"}}).remote()
    assert ray.get(other.get.remote("COMPAT_COLOUR")) == "blue"
    assert "COMPAT_COLOUR" not in os.environ
