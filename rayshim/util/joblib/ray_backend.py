"""The joblib back end: each batch of calls is a task.

Executors stay with their tasks' class, so batches do not pay for the start of
processes, and take more nodes as the cluster grows. Large arguments (a data set that
each of a hundred fits takes) are stored once for a `Parallel` call and shared.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import rayshim

#: Bytes from which an argument is stored once instead of being sent with each batch.
SHARED_BYTES = 1 << 20


def run_batch(batch: Any, shared: list[Any]) -> Any:
    """Run a batch of calls in an executor.

    Args:
        batch: joblib's batch, with a `_Shared` in the place of what is shared.
        shared: references of the shared arguments.
    """
    values = rayshim.get(shared)
    if values:
        batch.items = [
            (
                func,
                [_restore(arg, values) for arg in args],
                {name: _restore(arg, values) for name, arg in kwargs.items()},
            )
            for func, args, kwargs in batch.items
        ]
    return batch()


class _Shared:
    """Stands for an argument that was stored."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def _restore(argument: Any, values: list[Any]) -> Any:
    return values[argument.index] if type(argument) is _Shared else argument


class SharedArguments:
    """Stores large arguments, each object once."""

    def __init__(self) -> None:
        #: id of an argument -> (the argument, which keeps its id, its reference).
        self._stored: dict[int, tuple[Any, Any]] = {}

    def replace(self, batch: Any) -> tuple[Any, list[Any]]:
        """A batch to send, and the references that it needs."""
        refs: list[Any] = []
        items = []
        for func, args, kwargs in batch.items:
            new_args = [self._replace(arg, refs) for arg in args]
            new_kwargs = {
                name: self._replace(arg, refs) for name, arg in kwargs.items()
            }
            items.append((func, new_args, new_kwargs))
        if not refs:
            return batch, refs
        return _with_items(batch, items), refs

    def clear(self) -> None:
        """Let go of what was stored."""
        self._stored.clear()

    def _replace(self, argument: Any, refs: list[Any]) -> Any:
        if _size_bytes(argument) < SHARED_BYTES:
            return argument
        found = self._stored.get(id(argument))
        if found is None:
            found = (argument, rayshim.put(argument))
            self._stored[id(argument)] = found
        if found[1] not in refs:
            refs.append(found[1])
        return _Shared(refs.index(found[1]))


def _with_items(batch: Any, items: list[Any]) -> Any:
    import copy

    replaced = copy.copy(batch)
    replaced.items = items
    return replaced


def _size_bytes(argument: Any) -> int:
    """Bytes of an array, matrix or frame; 0 for other things."""
    if type(argument) in (int, float, str, bool, type(None)):
        return 0
    size = getattr(argument, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(argument, (bytes, bytearray)):
        return len(argument)
    data = getattr(argument, "data", None)  # a sparse matrix
    size = getattr(data, "nbytes", None)
    if isinstance(size, int):
        return size
    if hasattr(argument, "memory_usage"):  # a frame of pandas
        usage = argument.memory_usage()
        return int(usage.sum() if hasattr(usage, "sum") else usage)
    return 0


@cache
def make_backend_class() -> type[Any]:
    """The class that joblib is told of; made here, since joblib is optional."""
    from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

    class RayBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
        """Runs joblib's batches as tasks.

        Args:
            nesting_level: given by joblib.
            ray_remote_args: options of the tasks, such as ``{"num_cpus": 2}``.
            **backend_kwargs: passed to joblib.
        """

        supports_retrieve_callback = True
        supports_return_generator = True
        supports_timeout = True
        uses_threads = False
        supports_sharedmem = False
        default_n_jobs = -1

        def __init__(
            self,
            nesting_level: int | None = None,
            ray_remote_args: dict[str, Any] | None = None,
            **backend_kwargs: Any,
        ) -> None:
            super().__init__(nesting_level=nesting_level, **backend_kwargs)
            self._remote_args = dict(ray_remote_args or {})
            self._shared = SharedArguments()
            #: References of the batches under way.
            self._running: set[Any] = set()
            #: Runs joblib's callbacks, which submit more batches: not for a thread
            #: that reads channels.
            self._callbacks: ThreadPoolExecutor | None = None

        def __reduce__(self) -> tuple[Any, ...]:
            return (_rebuild, (self.nesting_level, self._remote_args))

        def configure(
            self, n_jobs: int = 1, parallel: Any = None, **kwargs: Any
        ) -> int:
            """Get ready for a `Parallel` call; the number of jobs at once."""
            n_jobs = self.effective_n_jobs(n_jobs)
            self.parallel = parallel
            if self._callbacks is None:
                self._callbacks = ThreadPoolExecutor(1, "rayshim-joblib")
            options = {"num_cpus": 1, **self._remote_args}
            self._task = rayshim.remote(**options)(run_batch)
            return n_jobs

        def effective_n_jobs(self, n_jobs: int | None) -> int:
            """Number of jobs at once; negative counts back from all CPUs."""
            if n_jobs == 0:
                raise ValueError("n_jobs == 0 in Parallel has no meaning")
            if n_jobs is None:
                return 1
            if n_jobs > 0:
                return n_jobs
            if not rayshim.is_initialized():
                rayshim.init()
            cpus = int(rayshim.cluster_resources().get("CPU", 1))
            return max(1, cpus + 1 + n_jobs)

        def submit(
            self, func: Any, callback: Callable[[Any], None] | None = None
        ) -> Any:
            """Start a batch; ``callback`` takes its future when it has ended."""
            batch, refs = self._shared.replace(func)
            ref = self._task.remote(batch, refs)
            future: Future[Any] = ref.future()
            self._running.add(ref)

            def ended(future: Future[Any]) -> None:
                self._running.discard(ref)
                if callback is not None and self._callbacks is not None:
                    self._callbacks.submit(callback, future)

            future.add_done_callback(ended)
            return future

        def retrieve_result_callback(self, out: Any) -> Any:
            """The results of a batch, from what ``callback`` was given."""
            try:
                return out.result()
            except rayshim.exceptions.RayTaskError as error:
                raise error.cause if error.cause is not None else error from None

        def abort_everything(self, ensure_ready: bool = True) -> None:
            """Cancel what is under way: a batch failed, or the user interrupted."""
            for ref in list(self._running):
                rayshim.cancel(ref)
            self._running.clear()
            if ensure_ready:
                self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)

        def terminate(self) -> None:
            """Let go of what a `Parallel` call used."""
            self._shared.clear()
            callbacks, self._callbacks = self._callbacks, None
            if callbacks is not None:
                callbacks.shutdown(wait=False)

    return RayBackend


def _rebuild(nesting_level: int | None, remote_args: dict[str, Any]) -> Any:
    return make_backend_class()(
        nesting_level=nesting_level, ray_remote_args=remote_args
    )
