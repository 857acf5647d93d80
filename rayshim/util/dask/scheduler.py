"""Runs Dask graphs as tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import dask
from dask.callbacks import local_callbacks, unpack_callbacks
from dask.core import flatten

from rayshim._core.api import get, put, remote
from rayshim._core.refs import ObjectRef
from rayshim.util.dask.callbacks import local_ray_callbacks, unpack_ray_callbacks
from rayshim.util.dask.graphs import (
    RESOURCES_ERROR,
    Graph,
    alias_of,
    references_in,
    value_of,
    with_values,
)

#: Constants of a graph are stored, not sent with each task that takes them, from this
#: size on, in bytes.
STORED_CONSTANT_BYTES = 100_000
#: What `ray_dask_get` takes beside the graph, its callbacks and options of tasks; Ray
#: submits from that many threads, here nothing waits while tasks are submitted.
_ACCEPTED = frozenset(
    ("num_workers", "pool", "optimize_graph", "rerun_exceptions_locally")
)


def enable_dask_on_ray(
    shuffle: str | None = "tasks", use_shuffle_optimization: bool | None = True
) -> Any:
    """Run all graphs by `ray_dask_get` from now on, or within ``with``.

    Args:
        shuffle: how Dask's frames shuffle.
        use_shuffle_optimization: see `dataframe_optimize`.

    Returns:
        A context manager that restores what was set before.
    """
    from rayshim.util.dask.optimizations import dataframe_optimize

    return dask.config.set(
        {
            "scheduler": ray_dask_get,
            "dataframe.shuffle.method": shuffle,
            "dataframe_optimize": (
                dataframe_optimize if use_shuffle_optimization else None
            ),
        }
    )


def disable_dask_on_ray() -> Any:
    """Run graphs as Dask does by default from now on, or within ``with``."""
    return dask.config.set(
        {
            "scheduler": None,
            "dataframe.shuffle.method": None,
            "dataframe_optimize": None,
        }
    )


def ray_dask_get(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Run a graph: each node is a task, and all are submitted at once.

    Args:
        dsk: the graph, or an expression of Dask's.
        keys: what is wanted, in lists of any depth.
        kwargs: ``ray_callbacks`` (RayDaskCallbacks instead of those in use);
            ``ray_remote_args`` (options of all tasks, which those of
            ``dask.annotate(ray_remote_args={...})`` go before); ``ray_persist``
            (give ObjectRefs); ``callbacks`` (Dask's own); ``num_workers`` and
            ``pool`` are Ray's, and change nothing here.

    Returns:
        The values, in tuples as deep as ``keys``.

    Raises:
        ValueError: ``resources`` are given by themselves.
        TypeError: an unknown parameter.
        RayTaskError: a task failed; also an instance of what it raised.

    Example:
        >>> ray_dask_get({"x": 1, "y": (abs, "x")}, "y")  # doctest: +SKIP
        1
    """
    return _run(dsk, keys, kwargs)


def ray_dask_get_sync(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """The same as `ray_dask_get`, which submits without threads here."""
    return _run(dsk, keys, kwargs)


def ray_dask_persist(*args: Any, **kwargs: Any) -> Any:
    """``dask.persist`` by `ray_dask_get`: collections that hold ObjectRefs.

    Args:
        args: collections.
        kwargs: as ``dask.persist`` takes them.
    """
    kwargs.setdefault("scheduler", ray_dask_get)
    return dask.persist(*args, **kwargs)


def _persist(
    collections: Sequence[Any], optimize_graph: bool = True, **kwargs: Any
) -> list[Any]:
    """What ``dask.persist`` asks a scheduler for: the collections, being computed."""
    from dask.base import collections_to_expr

    results: list[Any] = []
    for collection in collections:
        expr = collections_to_expr([collection], optimize_graph).optimize()
        keys = list(flatten(collection.__dask_keys__()))
        found = list(flatten(expr.__dask_keys__()))
        values = _run(expr, found, {**kwargs, "ray_persist": True})
        rebuild, arguments = collection.__dask_postpersist__()
        results.append(rebuild(dict(zip(keys, values, strict=True)), *arguments))
    return results


ray_dask_get.persist = _persist  # type: ignore[attr-defined]  # dask's protocol
ray_dask_get_sync.persist = _persist  # type: ignore[attr-defined]


def _run(dsk: Any, keys: Any, kwargs: dict[str, Any]) -> Any:
    callbacks = kwargs.pop("ray_callbacks", None)
    persist = kwargs.pop("ray_persist", False)
    remote_args = kwargs.pop("ray_remote_args", None) or {}
    dask_callbacks = kwargs.pop("callbacks", None)
    if kwargs.pop("_ray_enable_progress_bar", False):
        from rayshim.util.dask.callbacks import ProgressBarCallback

        callbacks = [*(callbacks or ()), ProgressBarCallback()]
    if "resources" in kwargs:
        raise ValueError(RESOURCES_ERROR)
    unknown = set(kwargs) - _ACCEPTED
    if unknown:
        raise TypeError(
            f"ray_dask_get() takes no {', '.join(sorted(unknown))}: options of tasks "
            "go into ray_remote_args={...}"
        )
    graph = Graph(dsk, remote_args)
    with (
        local_ray_callbacks(callbacks) as active,
        local_callbacks(dask_callbacks) as plain,
    ):
        return _Run(graph, unpack_ray_callbacks(active), plain).results(keys, persist)


class _Run:
    """One run of a graph."""

    def __init__(self, graph: Graph, ray_callbacks: Any, callbacks: Any) -> None:
        self._graph = graph
        self._callbacks = ray_callbacks
        start, start_state, pretask, posttask, finish = unpack_callbacks(callbacks)
        self._start, self._start_state = start, start_state
        self._pretask, self._posttask, self._finish = pretask, posttask, finish
        #: Key -> reference or value.
        self._known: dict[Any, Any] = {}

    def results(self, keys: Any, persist: bool) -> Any:
        """Submit all, and give what was asked for."""
        nodes = self._graph.nodes
        state: dict[str, Any] = {
            "cache": self._known,
            "ready": deque(self._graph.in_order()),
            "waiting": {},
            "running": set(),
            "finished": set(),
            "dependencies": {key: node.dependencies for key, node in nodes.items()},
        }
        for callback in self._start:
            callback(nodes)
        for callback in self._start_state:
            callback(nodes, state)
        failed = True
        try:
            while state["ready"]:
                key = state["ready"].popleft()
                for callback in self._pretask:
                    callback(key, nodes, state)
                self._known[key] = self._value(key, nodes[key])
                state["finished"].add(key)
                for callback in self._posttask:
                    callback(key, self._known[key], nodes, state, "ray")
            found = _nested(keys, self._known)
            for callback in self._callbacks.ray_postsubmit_all_cbs or ():
                callback(found, nodes)
            # Values that only tasks need are freed as those end.
            self._known.clear()
            nodes.clear()
            result = found if persist else _values(found)
            failed = False
        finally:
            for callback in self._finish:
                callback(nodes, state, failed)
        for callback in self._callbacks.ray_finish_cbs or ():
            callback(result)
        return result

    def _value(self, key: Any, node: Any) -> Any:
        alias = alias_of(node)
        if alias is not None:
            return self._known[alias]
        constant, value = value_of(node)
        if constant and not _holds_references(node):
            if _size_of(value) >= STORED_CONSTANT_BYTES:
                return put(value)
            return value
        if constant and isinstance(value, ObjectRef):
            return value
        deps = {name: self._known[name] for name in node.dependencies}
        for callback in self._callbacks.ray_presubmit_cbs or ():
            instead = callback(node, key, deps)
            if instead is not None:
                return instead
        ref = _execute.options(**self._graph.options(key)).remote(
            node,
            key,
            list(deps),
            self._callbacks.ray_pretask_cbs or (),
            self._callbacks.ray_posttask_cbs or (),
            *deps.values(),
            *references_in(node),
        )
        for callback in self._callbacks.ray_postsubmit_cbs or ():
            callback(node, key, deps, ref)
        return ref


@remote
def _execute(
    node: Any, key: Any, names: list[Any], before: Any, after: Any, *values: Any
) -> Any:
    """Run one node.

    Args:
        node: Dask's task.
        key: its key.
        names: keys of its dependencies, whose values come first in ``values``; then
            come those of the ObjectRefs in the node itself.
        before, after: functions to call around it.
    """
    count = len(names)
    states = [call and call(key, list(values)) for call in before]
    node = with_values(node, list(values[count:]))
    result = node(dict(zip(names, values[:count], strict=True)))
    for call, state in zip(after, states or [None] * len(after), strict=True):
        if call is not None:
            call(key, result, state)
    return result


def _holds_references(node: Any) -> bool:
    return bool(references_in(node))


def _size_of(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    usage = getattr(value, "memory_usage", None)
    if usage is not None and hasattr(value, "index"):
        total = usage()
        return int(total if isinstance(total, int) else total.sum())
    return len(value) if isinstance(value, (bytes, bytearray)) else 0


def _nested(keys: Any, known: dict[Any, Any]) -> Any:
    """What is known of keys, in tuples as deep as the lists."""
    if isinstance(keys, list):
        return tuple(_nested(key, known) for key in keys)
    return known[keys]


def _values(found: Any) -> Any:
    """The values of all references in nested tuples, fetched at once."""
    refs: dict[ObjectRef, None] = {}

    def collect(item: Any) -> None:
        if isinstance(item, ObjectRef):
            refs[item] = None
        elif type(item) is tuple:
            for part in item:
                collect(part)

    collect(found)
    values = dict(zip(refs, get(list(refs)), strict=True)) if refs else {}

    def replace(item: Any) -> Any:
        if isinstance(item, ObjectRef):
            return values[item]
        if type(item) is tuple:
            return tuple(replace(part) for part in item)
        return item

    return replace(found)
