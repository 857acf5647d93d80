from __future__ import annotations

import dataclasses
import pickle
import warnings
from typing import Any

import pytest

from rayshim._core.options import ActorOptions, MethodOptions, TaskOptions
from rayshim.util.annotations import RayDeprecationWarning

# What Ray's validation does with a set of values, found by trying them.
PROBES: list[Any] = [-2, -1, 0, 1e-05, 0.5, 1, 1.5, "x", "SPREAD", "detached"]
PROBES += ["dynamic", "streaming", True, {}, {"CPU": 1}, [], [ValueError], [1], None]
WORDS = ["'x'", "'SPREAD'", "'detached'", "'dynamic'", "'streaming'"]
AMOUNT = (["0", "0.5", "1", "1.5", "True", "None"], ["-2", "-1", "1e-05"])
TEXT = ([*WORDS, "None"], [])
FLAG = (["True", "None"], [])
FROM_MINUS_1 = (["-1", "0", "1", "True", "None"], ["-2"])
FROM_0 = (["0", "1", "True", "None"], ["-2", "-1"])
#: (options, keyword): values accepted, values refused with ValueError; others are
#: refused with TypeError.
TABLE: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
for kind in ("task", "actor"):
    TABLE |= {
        (kind, "num_cpus"): AMOUNT,
        (kind, "num_gpus"): AMOUNT,
        (kind, "memory"): AMOUNT,
        (kind, "resources"): (["{}", "None"], ["{'CPU': 1}"]),
        (kind, "accelerator_type"): TEXT,
        (kind, "name"): TEXT,
        (kind, "runtime_env"): (["{}", "{'CPU': 1}", "None"], []),
        (kind, "label_selector"): (["{}", "None"], []),
        (kind, "fallback_strategy"): (
            ["[]", "None"],
            ["[<class 'ValueError'>]", "[1]"],
        ),
        (kind, "scheduling_strategy"): TEXT,
        (kind, "placement_group"): TEXT,
        (kind, "placement_group_bundle_index"): (["-2", "-1", "0", "1", "True"], []),
        (kind, "placement_group_capture_child_tasks"): FLAG,
        (kind, "enable_task_events"): (["True"], []),
        (kind, "_labels"): (["{}", "{'CPU': 1}", "None"], []),
    }
TABLE |= {
    ("task", "num_returns"): (
        ["0", "1", "'dynamic'", "'streaming'", "True", "None"],
        ["-2", "-1"],
    ),
    ("task", "max_calls"): FROM_0,
    ("task", "max_retries"): FROM_MINUS_1,
    ("task", "retry_exceptions"): (["True", "[]", "[<class 'ValueError'>]"], ["[1]"]),
    ("task", "_generator_backpressure_num_objects"): (
        ["-2", "-1", "1", "True", "None"],
        ["0"],
    ),
    ("task", "_num_objects_per_yield"): (["1", "True", "None"], ["-2", "-1", "0"]),
    ("task", "object_store_memory"): (["None"], ["-2", "-1", "0", "1", "True"]),
    ("actor", "object_store_memory"): FROM_0,
    ("actor", "namespace"): TEXT,
    ("actor", "lifetime"): (
        ["'detached'", "None"],
        ["'x'", "'SPREAD'", "'dynamic'", "'streaming'"],
    ),
    ("actor", "max_restarts"): FROM_MINUS_1,
    ("actor", "max_task_retries"): FROM_MINUS_1,
    ("actor", "max_concurrency"): FROM_0,
    ("actor", "max_pending_calls"): FROM_MINUS_1,
    ("actor", "concurrency_groups"): (
        ["{}", "{'CPU': 1}", "[]", "[<class 'ValueError'>]", "[1]", "None"],
        [],
    ),
    ("actor", "allow_out_of_order_execution"): FLAG,
    ("actor", "enable_tensor_transport"): FLAG,
    ("actor", "_actor_generator_backpressure_num_objects"): (
        ["-1", "1", "True", "None"],
        ["-2", "0"],
    ),
}


def outcome(kind: str, keyword: str, value: Any) -> str:
    keywords: dict[str, Any] = {keyword: value}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RayDeprecationWarning)
        try:
            if kind == "task":
                TaskOptions.validated(is_generator=True, **keywords)
            else:
                ActorOptions.validated(**keywords)
        except (TypeError, ValueError) as error:
            assert keyword.strip("_") in str(error) or "resource" in str(error)
            return type(error).__name__
    return "accepted"


@pytest.mark.parametrize(
    ("kind", "keyword"), TABLE, ids=[" ".join(key) for key in TABLE]
)
def test_keyword_accepts_what_ray_accepts(kind: str, keyword: str) -> None:
    accepted, value_errors = TABLE[kind, keyword]
    expected = {
        repr(value): "accepted"
        if repr(value) in accepted
        else "ValueError"
        if repr(value) in value_errors
        else "TypeError"
        for value in PROBES
    }
    assert {repr(v): outcome(kind, keyword, v) for v in PROBES} == expected


def test_table_names_every_keyword() -> None:
    known = {("task", name) for name in TaskOptions._rules}
    known |= {("actor", name) for name in ActorOptions._rules}
    assert known - set(TABLE) == {("actor", "get_if_exists")}


def test_get_if_exists_needs_a_name() -> None:
    for keywords in ({"get_if_exists": True}, {"get_if_exists": True, "name": None}):
        with pytest.raises(ValueError, match="name must be specified"):
            ActorOptions.validated(**keywords)
    named = ActorOptions.validated(name="a")
    assert named.merge_validated(get_if_exists=True).get_if_exists
    with pytest.raises(TypeError, match="get_if_exists"):
        ActorOptions.validated(get_if_exists=1, name="a")


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        (TaskOptions, "unknown"),
        (TaskOptions, "max_restarts"),
        (TaskOptions, "generator_backpressure"),
        (ActorOptions, "num_returns"),
        (ActorOptions, "max_retries"),
        (ActorOptions, "max_calls"),
    ],
)
def test_keywords_of_another_kind_are_refused(options: Any, keyword: str) -> None:
    with pytest.raises(ValueError, match=f"Invalid option keyword {keyword} for"):
        options.validated(**{keyword: 1})
    with pytest.raises(ValueError, match=f"Invalid option keyword {keyword} for"):
        options().merge_validated(**{keyword: 1})


def test_some_keywords_belong_to_the_decorator() -> None:
    with pytest.raises(ValueError, match="'max_calls' is not supported in"):
        TaskOptions().merge_validated(max_calls=1)
    with pytest.raises(ValueError, match="'concurrency_groups' is not supported in"):
        ActorOptions().merge_validated(concurrency_groups={"a": 1})


def test_defaults_are_those_of_ray() -> None:
    task, actor = TaskOptions(), ActorOptions()
    assert (task.num_cpus, task.max_retries, task.max_calls) == (1, 3, 0)
    assert (task.num_returns, task.retry_exceptions) == (None, False)
    assert (task.placement_group, task.placement_group_bundle_index) == ("default", -1)
    assert (task.generator_backpressure, task.objects_per_yield) == (-1, 1)
    assert (actor.num_cpus, actor.max_restarts, actor.max_task_retries) == (None, 0, 0)
    assert (actor.max_concurrency, actor.max_pending_calls) == (None, -1)
    assert TaskOptions.validated() == task
    assert ActorOptions.validated() == actor


def test_merge_keeps_the_rest_and_the_original() -> None:
    first = TaskOptions.validated(num_cpus=2, name="a")
    second = first.merge_validated(name="b", num_returns=2)
    assert (second.num_cpus, second.name, second.num_returns) == (2, "b", 2)
    assert (first.name, first.num_returns) == ("a", None)
    assert first.merge(max_retries=0).max_retries == 0


def test_none_means_no_limit_where_the_field_is_a_number() -> None:
    made = TaskOptions.validated(
        _generator_backpressure_num_objects=None, _num_objects_per_yield=None
    )
    assert (made.generator_backpressure, made.objects_per_yield) == (-1, 1)


def test_options_are_frozen_and_survive_pickling() -> None:
    for options in (
        TaskOptions.validated(num_cpus=2),
        ActorOptions.validated(name="a"),
        MethodOptions.for_call(num_returns=2),
    ):
        assert pickle.loads(pickle.dumps(options)) == options
        with pytest.raises(dataclasses.FrozenInstanceError):
            options.name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("resources", "error"),
    [
        ({"a": -1}, ValueError),
        ({"a": 1e-5}, ValueError),
        ({"a": float("nan")}, ValueError),
        ({"a": float("inf")}, ValueError),
        ({"a": "x"}, TypeError),
        ({"a": None}, TypeError),
        ({"GPU": 1}, ValueError),
        ({1: 1}, TypeError),
    ],
)
def test_wrong_amounts_of_custom_resources(resources: Any, error: type) -> None:
    with pytest.raises(error):
        TaskOptions.validated(resources=resources)


def test_right_amounts_of_custom_resources() -> None:
    resources = {"a": 0, "b": 1.5, "memory": 1}
    assert TaskOptions.validated(resources=resources).resources == resources


@pytest.mark.parametrize(
    "values",
    [
        {"name": "\udcff"},
        {"resources": {"\udcff": 1}},
        {"num_cpus": 1e308},
        {"num_cpus": 10**400},
        {"memory": 10**15},
        {"resources": {"x": 1e15}},
        {"max_retries": 2**63},
        {"num_returns": 2**63},
    ],
)
def test_what_no_message_can_hold_is_refused_where_it_is_given(
    values: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=next(iter(values)) + "|UTF-8|resource x"):
        TaskOptions.validated(**values)


@pytest.mark.parametrize("value", ["streaming", "dynamic"])
def test_streams_need_a_generator(value: str) -> None:
    with (
        warnings.catch_warnings(),
        pytest.raises(ValueError, match="can only be used with generator functions"),
    ):
        warnings.simplefilter("ignore", RayDeprecationWarning)
        TaskOptions.validated(num_returns=value)
    with (
        warnings.catch_warnings(),
        pytest.raises(ValueError, match="can only be used with generator functions"),
    ):
        warnings.simplefilter("ignore", RayDeprecationWarning)
        TaskOptions().merge_validated(num_returns=value)


def test_dynamic_warns() -> None:
    with pytest.warns(RayDeprecationWarning, match="dynamic"):
        TaskOptions.validated(is_generator=True, num_returns="dynamic")


@pytest.mark.parametrize(
    "selector",
    [
        {"a": "b"},
        {"a": "!b"},
        {"a": "in(b,c)"},
        {"a": "!in(b, c)"},
        {"a": ""},
        {"ray.io/x": "b.c_d-e"},
        {"A.b/c": "b"},
    ],
)
def test_right_label_selectors(selector: dict[str, str]) -> None:
    assert TaskOptions.validated(label_selector=selector).label_selector == selector


@pytest.mark.parametrize(
    ("selector", "error"),
    [
        ({"a": 1}, TypeError),
        ({1: "b"}, TypeError),
        ({"a b": "c"}, ValueError),
        ({"": "c"}, ValueError),
        ({"x" * 64: "c"}, ValueError),
        ({"a": "b c"}, ValueError),
        ({"a": "in()"}, ValueError),
        ({"a": "x" * 64}, ValueError),
        ({"a": "-b"}, ValueError),
    ],
)
def test_wrong_label_selectors(selector: Any, error: type) -> None:
    with pytest.raises(error):
        TaskOptions.validated(label_selector=selector)
    with pytest.raises(error):
        TaskOptions.validated(fallback_strategy=[{"label_selector": selector}])


@pytest.mark.parametrize(
    "strategy", [[{}], [{"foo": 1}], [{"label_selector": 1}], ["x"]]
)
def test_wrong_fallback_strategies(strategy: Any) -> None:
    with pytest.raises(ValueError):
        ActorOptions.validated(fallback_strategy=strategy)


def test_strategy_objects_are_accepted_by_class_name() -> None:
    class NodeAffinitySchedulingStrategy:
        pass

    class Other:
        pass

    strategy = NodeAffinitySchedulingStrategy()
    made = TaskOptions.validated(scheduling_strategy=strategy)
    assert made.scheduling_strategy is strategy
    with pytest.raises(TypeError, match="scheduling_strategy"):
        TaskOptions.validated(scheduling_strategy=Other())


def test_environment_variables_must_be_text() -> None:
    with pytest.raises(TypeError, match="env_vars"):
        TaskOptions.validated(runtime_env={"env_vars": {"A": 1}})
    with pytest.raises(TypeError, match="env_vars"):
        ActorOptions().merge_validated(runtime_env={"env_vars": {"A": 1}})


def test_method_decorator_refuses_unknown_keywords() -> None:
    with pytest.raises(AssertionError, match="Unexpected keyword argument"):
        MethodOptions.for_decorator(foo=1)
    made = MethodOptions.for_decorator(num_returns=2, concurrency_group="io")
    assert (made.num_returns, made.concurrency_group) == (2, "io")
    assert made.max_task_retries is None


def test_method_call_refuses_unknown_keywords() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_cpus'"):
        MethodOptions.for_call(num_cpus=1)
    assert MethodOptions.for_call(name="n").name == "n"


@pytest.mark.parametrize(
    ("keyword", "value", "error"),
    [
        ("num_returns", -1, ValueError),
        ("num_returns", "x", TypeError),
        ("concurrency_group", 3, TypeError),
        ("_num_objects_per_yield", 0, ValueError),
        ("_generator_backpressure_num_objects", 0, ValueError),
        ("max_task_retries", "x", TypeError),
        ("retry_exceptions", [1], ValueError),
    ],
)
def test_wrong_options_of_methods(keyword: str, value: Any, error: type) -> None:
    for make in (MethodOptions.for_decorator, MethodOptions.for_call):
        with pytest.raises(error, match=keyword):
            make(**{keyword: value})


def test_a_resource_has_a_name() -> None:
    with pytest.raises(ValueError, match="without a name"):
        TaskOptions.validated(resources={"": 1})
