"""A process pool whose processes are actors, on all nodes of a cluster."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import rayshim
from rayshim._core.refs import ObjectRef
from rayshim.util.debug import log_once
from rayshim.util.multiprocessing.results import AsyncResult, IMapIterator
from rayshim.util.multiprocessing.worker import Call, Failure, PoolActor

__all__ = ["AsyncResult", "Failure", "IMapIterator", "Pool", "PoolActor"]

logger = logging.getLogger("rayshim")

#: Chunks for each process that `map` makes, as in the standard library: more would
#: cost more, fewer would leave processes idle at the end.
CHUNKS_PER_PROCESS = 4


class _Process:
    """One actor of a pool."""

    __slots__ = ("actor", "calls", "last")

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        #: Chunks given to it.
        self.calls = 0
        #: The last of them; when it is ready, all are.
        self.last: ObjectRef | None = None


class Pool:
    """The interface of `multiprocessing.pool.Pool`, over the nodes of a cluster.

    Joins the open session, or opens one.

    Args:
        processes: number of actors, >= 1; default: the CPUs of the cluster. They take
            no CPUs of the cluster unless ``ray_remote_args`` says so.
        initializer: called in each process when it starts.
        initargs: its arguments.
        maxtasksperchild: chunks of work after which a process is replaced.
        context: has no effect: processes are those of the cluster; warns.
        ray_address: cluster to join, where no session is open; default RAY_ADDRESS, or
            else a session on this machine.
        ray_remote_args: options of the actors, such as ``{"num_gpus": 1}``.

    Raises:
        ValueError: fewer processes than 1, or more than the cluster has CPUs.
        ActorDiedError: the initializer failed.

    Example:
        >>> from rayshim.util.multiprocessing import Pool
        >>> with Pool(2) as pool:
        ...     pool.map(abs, [-1, 2, -3])
        [1, 2, 3]
        >>> import rayshim
        >>> rayshim.shutdown()
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] | None = None,
        maxtasksperchild: int | None = None,
        context: Any = None,
        ray_address: str | None = None,
        ray_remote_args: dict[str, Any] | None = None,
    ) -> None:
        if context is not None and log_once("pool_context"):
            logger.warning(
                "Pool(context=...) has no effect: processes are those of the cluster, "
                "whose environment runtime_env sets. Leave it out."
            )
        self._initializer = initializer
        self._initargs = () if initargs is None else tuple(initargs)
        self._max_calls = maxtasksperchild or -1
        self._actor_class = rayshim.remote(num_cpus=0)(PoolActor).options(
            **(ray_remote_args or {})
        )
        #: Guards what follows: a pool may be used from several threads.
        self._lock = threading.Lock()
        self._closed = False
        self._next = 0
        #: Ready when a process that was told to end has done its work.
        self._ending: list[ObjectRef] = []
        count = _number_of_processes(processes, ray_address)
        self._processes = [self._start_process() for _ in range(count)]
        rayshim.get([process.actor.ping.remote() for process in self._processes])

    # -- calls -----------------------------------------------------------------------

    def apply(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function in a process and return its result.

        Raises:
            ValueError: the pool is closed.
            Exception: what the function raised.
        """
        return self.apply_async(func, args, kwargs).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """Call a function in a process.

        Args:
            func: the function.
            args: its positional arguments.
            kwargs: its keyword arguments.
            callback: takes the result, in a thread of this process.
            error_callback: takes what the function raised, likewise.
        """
        self._check_running()
        call: Call = (() if args is None else tuple(args), dict(kwargs or {}))
        ref = self._submit(func, [call])
        return AsyncResult([ref], callback, error_callback, single_result=True)

    def map(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
    ) -> list[Any]:
        """Call a function for each item; the results in order.

        Args:
            func: takes one item.
            iterable: is read to its end first.
            chunksize: items that a process takes at once, >= 1.
        """
        return list(self.map_async(func, iterable, chunksize).get())

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """`map` without waiting; see `apply_async` for the callbacks."""
        self._check_running()
        calls: list[Call] = [((item,), {}) for item in iterable]
        return self._map(func, calls, chunksize, callback, error_callback)

    def starmap(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[Any]:
        """`map` for a function that takes each item as its arguments."""
        result = self.starmap_async(func, iterable, chunksize=chunksize)
        return list(result.get())

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
        *,
        chunksize: int | None = None,
    ) -> AsyncResult:
        """`starmap` without waiting; see `apply_async` for the callbacks."""
        self._check_running()
        # An item that is no iterable fails in the process, as a call of its own.
        calls: list[Call] = [(item, {}) for item in iterable]
        return self._map(func, calls, chunksize, callback, error_callback)

    def imap(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator:
        """Results in order, as they are asked for.

        Args:
            func: takes one item.
            iterable: is read as far as processes have something to do.
            chunksize: items that a process takes at once, >= 1.

        Returns:
            An iterator, whose ``next(timeout)`` takes a time in seconds. An item whose
            call failed raises; the next ones still come.
        """
        return self._imap(func, iterable, chunksize, ordered=True)

    def imap_unordered(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator:
        """`imap` whose results come as they are ready."""
        return self._imap(func, iterable, chunksize, ordered=False)

    # -- life ------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more work; processes end when theirs is done."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for process in self._processes:
                self._end_process(process)

    def terminate(self) -> None:
        """End all processes at once; what they work on fails."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.last = None
                rayshim.kill(process.actor)

    def join(self) -> None:
        """Wait until the processes have ended; call `close` or `terminate` first.

        Raises:
            ValueError: the pool is still open.
        """
        if not self._closed:
            raise ValueError("Pool is still running")
        if self._ending:
            rayshim.wait(self._ending, num_returns=len(self._ending))
        self._ending = []

    def __enter__(self) -> Pool:
        self._check_running()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.terminate()

    # -- inside ----------------------------------------------------------------------

    def _check_running(self) -> None:
        if self._closed:
            raise ValueError("Pool not running")

    def _start_process(self) -> _Process:
        return _Process(self._actor_class.remote(self._initializer, self._initargs))

    def _end_process(self, process: _Process) -> None:
        """Let a process end behind its calls."""
        process.last = None
        self._ending.append(process.actor.__ray_terminate__.remote())

    def _submit(self, func: Any, calls: list[Call]) -> ObjectRef:
        """Give calls to an idle process, or to the next one in turn."""
        with self._lock:
            self._check_running()
            process = self._choose()
            if 0 < self._max_calls <= process.calls:
                self._end_process(process)
                replacement = self._start_process()
                self._processes[self._processes.index(process)] = replacement
                process = replacement
            process.calls += 1
            process.last = process.actor.run.remote(func, calls)
            return process.last

    def _choose(self) -> _Process:
        count = len(self._processes)
        first = self._next
        for index in range(first, first + count):
            process = self._processes[index % count]
            if process.last is None or rayshim.wait([process.last], timeout=0)[0]:
                break
        else:
            index = first
        self._next = (index + 1) % count
        return self._processes[index % count]

    def _map(
        self,
        func: Callable[..., Any],
        calls: list[Call],
        chunksize: int | None,
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> AsyncResult:
        if chunksize is None:
            slots = len(self._processes) * CHUNKS_PER_PROCESS
            chunksize = max(1, -(-len(calls) // slots))
        _check_chunksize(chunksize)
        chunks = range(0, len(calls), chunksize)
        # Pickled once, not for each chunk.
        shared = rayshim.put(func) if len(chunks) > 1 else func
        refs = [self._submit(shared, calls[at : at + chunksize]) for at in chunks]
        return AsyncResult(refs, callback, error_callback)

    def _imap(
        self, func: Any, iterable: Iterable[Any], chunksize: int, *, ordered: bool
    ) -> IMapIterator:
        self._check_running()
        _check_chunksize(chunksize)
        shared = rayshim.put(func)

        def submit(items: list[Any]) -> ObjectRef:
            return self._submit(shared, [((item,), {}) for item in items])

        return IMapIterator(
            submit, iter(iterable), chunksize, len(self._processes), ordered=ordered
        )


def _check_chunksize(chunksize: int) -> None:
    if chunksize < 1:
        raise ValueError(f"chunksize must be >= 1, not {chunksize}")


def _number_of_processes(processes: int | None, address: str | None) -> int:
    """Open a session if there is none; how many processes the pool has."""
    if processes is not None and processes <= 0:
        raise ValueError("Processes in the pool must be >0.")
    if not rayshim.is_initialized():
        address = address or os.environ.get("RAY_ADDRESS")
        if address:
            rayshim.init(address=address)
        else:
            rayshim.init(num_cpus=processes)
    cpus = int(rayshim.cluster_resources().get("CPU", 0))
    if processes is None:
        return max(1, cpus)
    if processes > cpus:
        raise ValueError(
            f"Tried to start a pool with {processes} processes on an existing ray "
            f"cluster, but there are only {cpus} CPUs in the ray cluster."
        )
    return processes
