"""Functions that are called as a graph is submitted and run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from dask.callbacks import Callback

#: What a `RayDaskCallback` may define, by the name of its parameter.
CALLBACKS = (
    "ray_presubmit",
    "ray_postsubmit",
    "ray_pretask",
    "ray_posttask",
    "ray_postsubmit_all",
    "ray_finish",
)


class RayCallback(NamedTuple):
    """The functions of one `RayDaskCallback`; None for those that it has not."""

    ray_presubmit: Any = None
    ray_postsubmit: Any = None
    ray_pretask: Any = None
    ray_posttask: Any = None
    ray_postsubmit_all: Any = None
    ray_finish: Any = None


class RayCallbacks(NamedTuple):
    """The functions of several, by kind.

    Those of ``ray_pretask`` and ``ray_posttask`` are in step: None stands for one that
    is missing.
    """

    ray_presubmit_cbs: Any = ()
    ray_postsubmit_cbs: Any = ()
    ray_pretask_cbs: Any = ()
    ray_posttask_cbs: Any = ()
    ray_postsubmit_all_cbs: Any = ()
    ray_finish_cbs: Any = ()


class RayDaskCallback(Callback):
    """Hooks into graphs that `ray_dask_get` runs; a context manager.

    Args:
        kwargs: functions for any of ``ray_presubmit(task, key, deps)``, whose result
            stands for the task's unless it is None; ``ray_postsubmit(task, key, deps,
            object_ref)``; ``ray_pretask(key, object_refs)`` and ``ray_posttask(key,
            result, pre_state)``, which run in the task; ``ray_postsubmit_all(refs,
            dsk)``; ``ray_finish(result)``; and Dask's own hooks. Subclasses may define
            methods instead, with an underscore before their name.

    Example:
        >>> with RayDaskCallback(ray_finish=print):  # doctest: +SKIP
        ...     array.sum().compute(scheduler=ray_dask_get)
    """

    #: Those in use now.
    ray_active: ClassVar[set[RayCallback]] = set()

    def __init__(self, **kwargs: Any) -> None:
        for name in CALLBACKS:
            function = kwargs.pop(name, None)
            if function is not None:
                setattr(self, "_" + name, function)
        super().__init__(**kwargs)

    @property
    def _ray_callback(self) -> RayCallback:
        return RayCallback(*[self._own("_" + name) for name in CALLBACKS])

    def _own(self, name: str) -> Any:
        """A hook that was given or defined; None for those below, which do nothing."""
        if name not in self.__dict__:
            if getattr(type(self), name) is getattr(RayDaskCallback, name):
                return None
        return getattr(self, name)

    def __enter__(self) -> RayDaskCallback:
        self._entered = self._ray_callback
        RayDaskCallback.ray_active.add(self._entered)
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        RayDaskCallback.ray_active.discard(self._entered)

    def register(self) -> None:
        """Use it for all graphs from now on."""
        RayDaskCallback.ray_active.add(self._ray_callback)
        super().register()

    def unregister(self) -> None:
        """Use it no more."""
        RayDaskCallback.ray_active.remove(self._ray_callback)
        super().unregister()

    def _ray_presubmit(self, task: Any, key: Any, deps: dict[Any, Any]) -> Any:
        """Before a task is submitted; a result that is not None stands for its own.

        Args:
            task: Dask's task.
            key: its key.
            deps: key -> reference or value of what it takes.
        """

    def _ray_postsubmit(
        self, task: Any, key: Any, deps: dict[Any, Any], object_ref: Any
    ) -> None:
        """When a task was submitted; ``object_ref`` is its result."""

    def _ray_pretask(self, key: Any, object_refs: list[Any]) -> Any:
        """In the task, before it runs; ``object_refs`` are the values that it takes."""

    def _ray_posttask(self, key: Any, result: Any, pre_state: Any) -> None:
        """In the task, after it ran; ``pre_state`` is what `_ray_pretask` gave."""

    def _ray_postsubmit_all(self, object_refs: Any, dsk: Any) -> None:
        """When all tasks were submitted; ``object_refs`` are the results of the run."""

    def _ray_finish(self, result: Any) -> None:
        """When the run has ended; ``result`` are its values."""


def unpack_ray_callbacks(cbs: Iterable[RayCallback] | None) -> RayCallbacks:
    """The functions of several callbacks by kind."""
    found = list(cbs or ())
    if not found:
        return RayCallbacks()
    kinds: list[Any] = []
    for name, functions in zip(CALLBACKS, zip(*found, strict=True), strict=True):
        kept = name in ("ray_pretask", "ray_posttask")
        kinds.append([one for one in functions if one is not None or kept] or None)
    return RayCallbacks(*kinds)


@contextlib.contextmanager
def local_ray_callbacks(callbacks: Any = None) -> Iterator[Any]:
    """The callbacks of a run; those in use are not used by runs within this one.

    Args:
        callbacks: RayDaskCallbacks to use instead.
    """
    if callbacks is not None:
        if isinstance(callbacks, (RayDaskCallback, RayCallback)):
            callbacks = [callbacks]
        yield [_normalized(callback) for callback in callbacks]
        return
    active = RayDaskCallback.ray_active
    RayDaskCallback.ray_active = set()
    try:
        yield active
    finally:
        RayDaskCallback.ray_active = active


def _normalized(callback: Any) -> RayCallback:
    if isinstance(callback, RayDaskCallback):
        return callback._ray_callback
    if isinstance(callback, RayCallback):
        return callback
    raise TypeError(
        "Callbacks must be either 'RayDaskCallback' or 'RayCallback' namedtuple, not "
        f"{type(callback).__name__}"
    )


class ProgressBarCallback(RayDaskCallback):
    """Shows how many nodes of a graph are done, by tqdm.

    Raises:
        ImportError: tqdm is not installed, when a graph runs.
    """

    #: Seconds between two looks.
    _PERIOD_S = 0.1

    def __init__(self) -> None:
        super().__init__()
        self._refs: list[Any] = []

    def _ray_postsubmit(self, task: Any, key: Any, deps: Any, object_ref: Any) -> None:
        self._refs.append(object_ref)

    def _ray_postsubmit_all(self, object_refs: Any, dsk: Any) -> None:
        from rayshim._core.api import wait

        try:
            from tqdm import tqdm
        except ImportError:
            raise ImportError(
                "ProgressBarCallback needs tqdm: pip install tqdm"
            ) from None
        pending, self._refs = self._refs, []
        began = time.monotonic()
        with tqdm(total=len(pending)) as bar:
            while pending:
                done, pending = wait(
                    pending,
                    num_returns=len(pending),
                    timeout=self._PERIOD_S,
                    fetch_local=False,
                )
                bar.update(len(done))
            bar.set_postfix_str(f"{time.monotonic() - began:.1f} s")

    def _ray_finish(self, result: Any) -> None:
        print("All tasks are completed.")
