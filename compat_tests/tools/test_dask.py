"""Dask's graphs and collections on the cluster."""

from __future__ import annotations

import os

import numpy as np
import pytest

import ray

dask = pytest.importorskip("dask")

from dask.callbacks import Callback  # noqa: E402

from ray.util.dask import (  # noqa: E402
    ProgressBarCallback,
    RayDaskCallback,
    dataframe_optimize,
    disable_dask_on_ray,
    enable_dask_on_ray,
    local_ray_callbacks,
    ray_dask_get,
    ray_dask_get_sync,
    ray_dask_persist,
    unpack_ray_callbacks,
)

pytestmark = [
    pytest.mark.usefixtures("ray_start"),
    pytest.mark.filterwarnings("ignore"),
]


def increment(value):
    return value + 1


def total(values):
    return sum(values)


def test_a_graph():
    graph = {"a": 1, "b": (increment, "a"), "c": (increment, "b")}
    assert ray_dask_get(graph, "c") == 3


@pytest.mark.differs("dask-get-sync")
def test_the_synchronous_get():
    graph = {"a": 1, "b": (increment, "a"), "c": (increment, "b")}
    assert ray_dask_get_sync(graph, "c") == 3


def test_several_keys():
    graph = {"a": 1, "b": (increment, "a"), "c": (total, ["a", "b"])}
    assert tuple(ray_dask_get(graph, ["a", "b", "c"])) == (1, 2, 3)


def test_keys_in_lists():
    graph = {"a": 1, "b": (increment, "a"), "c": (increment, "b")}
    first, second = ray_dask_get(graph, [["a", "b"], ["c"]])
    assert (list(first), list(second)) == ([1, 2], [3])


def test_delayed_functions():
    one = dask.delayed(increment)(0)
    values = [dask.delayed(increment)(one) for _ in range(4)]
    assert dask.delayed(total)(values).compute(scheduler=ray_dask_get) == 8


def test_nodes_are_tasks_of_the_cluster():
    pid = dask.delayed(os.getpid)().compute(scheduler=ray_dask_get)
    assert pid != os.getpid()


def test_arrays():
    import dask.array as da

    values = da.arange(10_000, chunks=1000)
    with dask.config.set(scheduler=ray_dask_get):
        assert (values + 1).sum().compute() == 50_005_000
        assert np.array_equal((values * 2).compute(), np.arange(10_000) * 2)


def test_bags():
    import dask.bag as db

    bag = db.from_sequence(range(10), npartitions=3)
    assert bag.map(increment).sum().compute(scheduler=ray_dask_get) == 55


def test_references_as_arguments():
    ref = ray.put(np.arange(4))
    node = dask.delayed(increment)(ref)
    assert node.compute(scheduler=ray_dask_get).tolist() == [1, 2, 3, 4]


def test_references_of_tasks_as_arguments():
    @ray.remote
    def make():
        return 5

    node = dask.delayed(increment)(make.remote())
    assert node.compute(scheduler=ray_dask_get) == 6


def test_references_in_a_graph():
    graph = {"a": ray.put(1), "b": (increment, "a")}
    assert ray_dask_get(graph, "b") == 2


def test_errors_of_nodes():
    def divide(value):
        return 1 / value

    node = dask.delayed(increment)(dask.delayed(divide)(0))
    with pytest.raises(ZeroDivisionError):
        node.compute(scheduler=ray_dask_get)


def test_enable_within_a_block():
    node = dask.delayed(os.getpid)()
    with enable_dask_on_ray():
        assert dask.config.get("scheduler") is ray_dask_get
        assert node.compute() != os.getpid()
    assert node.compute(scheduler="sync") == os.getpid()


def test_disable_within_a_block():
    with enable_dask_on_ray():
        with disable_dask_on_ray():
            assert dask.config.get("scheduler") is None
        assert dask.config.get("scheduler") is ray_dask_get


def test_options_of_all_tasks():
    def resources():
        return ray.get_runtime_context().get_assigned_resources()

    node = dask.delayed(resources)()
    found = node.compute(scheduler=ray_dask_get, ray_remote_args={"num_cpus": 2})
    assert found["CPU"] == 2


def test_options_by_annotation():
    def resources():
        return ray.get_runtime_context().get_assigned_resources()

    with dask.annotate(ray_remote_args={"num_cpus": 3}):
        node = dask.delayed(resources)()
    found = node.compute(scheduler=ray_dask_get, optimize_graph=False)
    assert found["CPU"] == 3


def test_resources_by_themselves_are_refused():
    node = dask.delayed(increment)(1)
    with pytest.raises(ValueError, match="ray_remote_args"):
        node.compute(scheduler=ray_dask_get, resources={"custom": 1})


def test_persist_gives_references():
    refs = ray_dask_get({"a": (increment, 1)}, ["a"], ray_persist=True)
    assert isinstance(refs[0], ray.ObjectRef)
    assert ray.get(refs[0]) == 2


def test_callbacks_of_submission():
    calls = []

    class Notes(RayDaskCallback):
        def _ray_presubmit(self, task, key, deps):
            calls.append(("presubmit", key, sorted(deps)))

        def _ray_postsubmit(self, task, key, deps, object_ref):
            calls.append(("postsubmit", key, isinstance(object_ref, ray.ObjectRef)))

        def _ray_postsubmit_all(self, object_refs, dsk):
            calls.append(("all", len(object_refs)))

        def _ray_finish(self, result):
            calls.append(("finish", result[0]))

    with Notes():
        ray_dask_get({"a": (increment, 1), "b": (increment, "a")}, ["b"])
    assert calls == [
        ("presubmit", "a", []),
        ("postsubmit", "a", True),
        ("presubmit", "b", ["a"]),
        ("postsubmit", "b", True),
        ("all", 1),
        ("finish", 3),
    ]


def test_a_callback_may_give_the_result():
    def presubmit(task, key, deps):
        return 41 if key == "a" else None

    graph = {"a": (increment, 1), "b": (increment, "a")}
    with RayDaskCallback(ray_presubmit=presubmit):
        assert ray_dask_get(graph, ["b"])[0] == 42


def test_callbacks_in_the_tasks():
    @ray.remote
    class Log:
        def __init__(self):
            self.lines = []

        def add(self, *line):
            self.lines.append(line)

        def read(self):
            return self.lines

    log = Log.remote()

    def pretask(key, object_refs):
        ray.get(log.add.remote("pre", key))
        return "state"

    def posttask(key, result, pre_state):
        ray.get(log.add.remote("post", key, result, pre_state))

    with RayDaskCallback(ray_pretask=pretask, ray_posttask=posttask):
        ray_dask_get({"a": (increment, 1)}, ["a"])
    assert ray.get(log.read.remote()) == [("pre", "a"), ("post", "a", 2, "state")]


def test_callbacks_of_one_run():
    calls = []
    callback = RayDaskCallback(ray_finish=calls.append)
    with callback:
        pass
    ray_dask_get({"a": (increment, 1)}, ["a"])
    assert calls == []
    ray_dask_get({"a": (increment, 1)}, ["a"], ray_callbacks=[callback._ray_callback])
    assert len(calls) == 1


def test_callbacks_for_all_runs():
    calls = []

    class Notes(RayDaskCallback):
        def _ray_finish(self, result):
            calls.append(result[0])

    notes = Notes()
    notes.register()
    try:
        assert notes._ray_callback in RayDaskCallback.ray_active
        ray_dask_get({"a": (increment, 1)}, ["a"])
    finally:
        notes.unregister()
    ray_dask_get({"a": (increment, 1)}, ["a"])
    assert calls == [2]


def test_callbacks_are_unpacked_by_kind():
    callback = RayDaskCallback(ray_finish=print)
    with callback, local_ray_callbacks() as active:
        assert unpack_ray_callbacks(active).ray_finish_cbs == [print]
        assert not RayDaskCallback.ray_active
    assert tuple(unpack_ray_callbacks(())) == ((),) * 6


def test_callbacks_of_dask():
    keys = []
    with Callback(pretask=lambda key, dsk, state: keys.append(key)):
        ray_dask_get({"a": (increment, 1), "b": (increment, "a")}, ["b"])
    assert keys == ["a", "b"]


def test_no_shuffle_optimization_for_this_dask():
    assert dataframe_optimize({}, []) is None


def test_names_that_exist():
    assert callable(ray_dask_persist)
    assert issubclass(ProgressBarCallback, RayDaskCallback)
