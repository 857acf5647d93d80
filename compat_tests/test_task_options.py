"""Options of remote functions: accepted, refused, and what they do."""

from __future__ import annotations

import os
import time

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def one():
    return 1


@ray.remote
def variable(name):
    return os.environ.get(name)


@pytest.mark.parametrize(
    "options",
    [
        {"nope": 1},
        {"max_restarts": 1},
        {"lifetime": "detached"},
        {"max_concurrency": 2},
        {"get_if_exists": True},
        {"namespace": "x"},
        {"num_cpu": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_unknown_option_is_value_error(options):
    with pytest.raises(ValueError, match="Invalid option keyword"):
        one.options(**options)
    with pytest.raises(ValueError, match="Invalid option keyword"):
        ray.remote(**options)(lambda: 1)


@pytest.mark.parametrize(
    "options",
    [
        {"num_cpus": "1"},
        {"num_gpus": "1"},
        {"memory": "1"},
        {"num_returns": 1.5},
        {"max_retries": "x"},
        {"max_retries": 1.5},
        {"name": 3},
        {"resources": [1]},
        {"resources": "a"},
        {"runtime_env": 3},
        {"retry_exceptions": 3},
        {"scheduling_strategy": 3},
    ],
    ids=str,
)
def test_wrong_type_of_option_is_type_error(options):
    with pytest.raises(TypeError):
        one.options(**options)
    with pytest.raises(TypeError):
        ray.remote(**options)(lambda: 1)


@pytest.mark.parametrize(
    "options",
    [
        {"num_cpus": -1},
        {"num_gpus": -1},
        {"memory": -1},
        {"num_cpus": 0.00001},
        {"resources": {"a": -1}},
        {"resources": {"a": 0.00001}},
        {"resources": {"CPU": 1}},
        {"resources": {"GPU": 1}},
        {"num_returns": -1},
        {"max_retries": -2},
        {"retry_exceptions": [3]},
        {"retry_exceptions": [ValueError, "KeyError"]},
    ],
    ids=str,
)
def test_bad_value_of_option_is_value_error(options):
    with pytest.raises(ValueError):
        one.options(**options)
    with pytest.raises(ValueError):
        ray.remote(**options)(lambda: 1)


def test_max_calls_is_refused_in_options():
    with pytest.raises(ValueError, match="max_calls"):
        one.options(max_calls=1)


def test_negative_max_calls_is_value_error():
    with pytest.raises(ValueError, match="max_calls"):
        ray.remote(max_calls=-1)(lambda: 1)


def test_fraction_of_gpus_above_one_is_refused_at_the_call():
    task = one.options(num_gpus=1.5)
    with pytest.raises(ValueError, match="whole numbers"):
        task.remote()


def test_unknown_scheduling_strategy_is_refused_at_the_call():
    with pytest.raises(ValueError, match="scheduling_strategy"):
        one.options(scheduling_strategy="NOPE").remote()


@pytest.mark.parametrize("strategy", ["DEFAULT", "SPREAD"])
def test_scheduling_strategy_names(strategy):
    assert ray.get(one.options(scheduling_strategy=strategy).remote()) == 1


def test_streaming_of_a_plain_function_by_options():
    with pytest.raises(ValueError, match="streaming"):
        one.options(num_returns="streaming").remote()


@pytest.mark.parametrize("target", [3, "f", None, [1]], ids=repr)
def test_remote_of_a_wrong_target_is_assertion_error(target):
    with pytest.raises(AssertionError):
        ray.remote(target)


def test_remote_without_anything_is_assertion_error():
    with pytest.raises(AssertionError):
        ray.remote()


def test_remote_of_a_partial_is_type_error():
    import functools

    with pytest.raises(TypeError, match="function or a class"):
        ray.remote(functools.partial(int, "3"))


def test_options_do_not_change_the_original():
    @ray.remote
    def two():
        return 1, 2

    two.options(num_returns=2)
    assert ray.get(two.remote()) == (1, 2)


def test_options_object_can_be_reused():
    @ray.remote
    def two():
        return 1, 2

    task = two.options(num_returns=2)
    for _ in range(2):
        assert ray.get(task.remote()) == [1, 2]


def test_options_keep_those_of_the_decorator():
    @ray.remote(num_returns=2)
    def two():
        return 1, 2

    assert len(two.options(num_cpus=0.5).remote()) == 2


@pytest.mark.parametrize("num_cpus", [0, 0.5, 1, 2.0, 4, None])
def test_num_cpus(num_cpus):
    assert ray.get(one.options(num_cpus=num_cpus).remote()) == 1


@pytest.mark.parametrize(("num_cpus", "together"), [(0.5, 8), (1, 4), (2, 2), (4, 1)])
def test_num_cpus_bound_the_parallelism(num_cpus, together, tmp_path):
    @ray.remote(num_cpus=num_cpus)
    def overlap():
        mine = tmp_path / f"{os.getpid()}-{time.monotonic_ns()}"
        mine.touch()
        seen = len(list(tmp_path.iterdir()))
        time.sleep(0.1)
        seen = max(seen, len(list(tmp_path.iterdir())))
        mine.unlink()
        return seen

    seen = ray.get([overlap.remote() for _ in range(together + 2)])
    assert max(seen) <= together


def test_zero_cpu_tasks_run_while_all_cpus_are_taken(tmp_path, wait_until):
    started, gate = tmp_path / "started", tmp_path / "gate"

    @ray.remote(num_cpus=4)
    def holder():
        started.touch()
        while not gate.exists():
            time.sleep(0.01)

    ref = holder.remote()
    wait_until(started.exists)
    assert ray.get(one.options(num_cpus=0).remote(), timeout=20) == 1
    gate.touch()
    ray.get(ref, timeout=20)


def test_too_many_cpus_stay_pending():
    ref = one.options(num_cpus=1000).remote()
    assert ray.wait([ref], timeout=0.3) == ([], [ref])
    ray.cancel(ref)


def test_unknown_custom_resource_stays_pending():
    ref = one.options(resources={"unobtainium": 1}).remote()
    assert ray.wait([ref], timeout=0.3) == ([], [ref])
    ray.cancel(ref)


def test_pending_task_does_not_block_others():
    stuck = one.options(num_cpus=1000).remote()
    assert ray.get([one.remote() for _ in range(8)], timeout=20) == [1] * 8
    ray.cancel(stuck)


def test_name_is_the_task_name():
    name_of = ray.remote(lambda: ray.get_runtime_context().get_task_name())
    assert ray.get(name_of.options(name="hello").remote()) == "hello"


def test_default_task_name_is_the_functions_name():
    @ray.remote
    def bare_name():
        return ray.get_runtime_context().get_task_name()

    assert ray.get(bare_name.remote()) == "bare_name"


def test_assigned_resources():
    @ray.remote
    def assigned():
        return ray.get_runtime_context().get_assigned_resources()

    assert ray.get(assigned.options(num_cpus=2).remote())["CPU"] == 2.0
    assert ray.get(assigned.options(num_cpus=0.5).remote())["CPU"] == 0.5


def test_env_vars():
    task = variable.options(runtime_env={"env_vars": {"COMPAT_A": "1"}})
    assert ray.get(task.remote("COMPAT_A")) == "1"


def test_env_vars_do_not_leak_to_other_tasks():
    task = variable.options(runtime_env={"env_vars": {"COMPAT_B": "1"}})
    assert ray.get(task.remote("COMPAT_B")) == "1"
    assert ray.get([variable.remote("COMPAT_B") for _ in range(8)]) == [None] * 8
    assert "COMPAT_B" not in os.environ


def test_env_var_that_is_not_a_string_is_type_error():
    with pytest.raises(TypeError, match="env_vars"):
        one.options(runtime_env={"env_vars": {"A": 1}}).remote()


def test_unknown_runtime_env_key_is_accepted():
    assert ray.get(one.options(runtime_env={"nope": 1}).remote()) == 1


def test_empty_runtime_env():
    assert ray.get(one.options(runtime_env={}).remote()) == 1


def test_memory_option():
    assert ray.get(one.options(memory=1000 * 1000).remote()) == 1


def test_memory_of_the_whole_world_stays_pending():
    ref = one.options(memory=2**40).remote()
    assert ray.wait([ref], timeout=0.3) == ([], [ref])
    ray.cancel(ref)


def test_negative_num_returns_text_names_the_option():
    with pytest.raises(ValueError, match="num_returns"):
        one.options(num_returns=-1)
