"""A Dask client of the session."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from distributed import Client, Future, wait

from rayshim._core import current
from rayshim._core import session as sessions
from rayshim._core.api import available_resources, get, kill, nodes, remote
from rayshim._core.custom_serializers import register_serializer
from rayshim.adapters.dask import comm
from rayshim.exceptions import RayError

logger = logging.getLogger("rayshim")

#: Seconds for the workers to leave.
_LEAVE_S = 10.0


class DaskClient(Client):
    """A ``distributed.Client`` with workers of its own, which end with it."""

    #: Address of a worker -> its actor.
    _actors: dict[str, Any]
    _peer: Any = None
    #: What the session calls before it ends.
    _closing: Any

    def reference(self, future: Future[Any]) -> Any:
        """The result of a future as an ObjectRef, without a copy if it is large.

        Waits until the result is there.

        Raises:
            ValueError: no worker of this client has the result.
            Exception: what the future's task raised.
        """
        wait([future])
        if future.status != "finished":
            future.result()
        for address in self.who_has([future])[future.key]:
            if address not in self._actors:
                self._look_up()
            actor = self._actors.get(address)
            if actor is not None:
                return get(actor.reference.remote(future.key))[0]
        raise ValueError(
            f"the result of Dask's future {future.key!r} is not at a worker of this "
            "client; was it lost, or is the future another client's?"
        )

    def _look_up(self) -> None:
        """Finds workers that were started again, at other addresses."""
        actors = list(self._actors.values())
        refs = [actor.address.remote() for actor in actors]
        self._actors = dict(zip(get(refs, timeout=_LEAVE_S), actors, strict=True))

    def close(self, *args: Any, **kwargs: Any) -> Any:
        """Close the connection and end the workers; their CPUs are free then."""
        actors, self._actors = dict(self.__dict__.get("_actors", {})), {}
        closing = self.__dict__.get("_closing")
        if closing in sessions.before_close:
            sessions.before_close.remove(closing)
        alive = current.peer is not None and current.peer is self._peer
        if alive and actors:
            refs = [actor.stop.remote() for actor in actors.values()]
            try:
                get(refs, timeout=_LEAVE_S)
            except (RayError, TimeoutError):
                logger.warning("Dask workers did not leave in time; they are killed")
        result = super().close(*args, **kwargs)
        if alive:
            for actor in actors.values():
                kill(actor)
        return result


def get_dask_client(
    num_workers: int | None = None,
    threads_per_worker: int = 1,
    *,
    set_as_default: bool = True,
    **client_options: Any,
) -> DaskClient:
    """A ``distributed.Client`` of the session's own Dask scheduler, with workers.

    The workers are actors that hold ``threads_per_worker`` CPUs each until the client
    is closed (``with get_dask_client() as client: ...``); one that dies is replaced.
    Results of 100 kB and more
    are in the shared store: workers, tasks and the driver see the same memory.
    Arguments of Dask's tasks may be ObjectRefs, and those of tasks and actors may be
    Dask's futures (the call is submitted when the future's result is there).

    Graphs that should share CPUs with tasks, call by call, are better run by
    `rayshim.util.dask.ray_dask_get`.

    Args:
        num_workers: >= 1; None: as many as CPUs are free, but for one, at least 1.
        threads_per_worker: tasks at a time in each worker, >= 1.
        set_as_default: collections are computed by this client from now on.
        client_options: as ``distributed.Client`` takes them.

    Raises:
        ValueError: not a positive number.

    Example:
        >>> with rayshim.get_dask_client(2) as client:  # doctest: +SKIP
        ...     client.submit(sum, [1, 2]).result()
        3
    """
    peer = current.require_peer()
    if threads_per_worker < 1 or (num_workers is not None and num_workers < 1):
        raise ValueError(
            f"get_dask_client(num_workers={num_workers}, "
            f"threads_per_worker={threads_per_worker}): both must be at least 1"
        )
    if num_workers is None:
        free = int(available_resources().get("CPU", 0))
        num_workers = max(1, (free - 1) // threads_per_worker)
    comm.use_token(str(Path(peer.session_dir) / "token"))
    address = str(peer.request("dask_address"))
    register_serializer(Future, serializer=_reference_of, deserializer=_value_of)
    actors = _start_workers(address, num_workers, threads_per_worker)
    client: DaskClient = DaskClient(
        address, set_as_default=set_as_default, **client_options
    )
    client._actors = actors
    client._peer = peer
    client.run_on_scheduler(extend_path, [path for path in sys.path if path])
    client._closing = client.close
    sessions.before_close.append(client._closing)
    return client


def extend_path(folders: list[str]) -> None:
    """Let this process import what the driver imports.

    Dask's scheduler unpickles graphs, and so imports the modules of their functions.
    """
    known = set(sys.path)
    sys.path += [path for path in folders if path not in known and Path(path).exists()]


def _start_workers(address: str, count: int, threads: int) -> dict[str, Any]:
    """Start workers and wait for them; address -> actor."""
    from rayshim.util.dask.workers import DaskWorker

    alone = sum(row["Alive"] for row in nodes()) == 1
    kind: Any = remote(DaskWorker)
    started = [
        kind.options(
            num_cpus=threads,
            max_concurrency=8,
            scheduling_strategy="SPREAD",
            max_restarts=-1,  # Dask itself gives up on tasks that kill their workers
        ).remote(address, threads, "127.0.0.1" if alone else None)
        for _ in range(count)
    ]
    addresses = get([actor.address.remote() for actor in started])
    return dict(zip(addresses, started, strict=True))


def _reference_of(future: Future[Any]) -> Any:
    client = future.client
    if not isinstance(client, DaskClient):
        raise TypeError(
            f"Dask's future {future.key!r} belongs to a client that was not made by "
            "get_dask_client(); pass future.result()"
        )
    wait([future])
    error = future.exception() if future.status == "error" else None
    return client.reference(future) if error is None else error


def _value_of(payload: Any) -> Any:
    if isinstance(payload, BaseException):
        raise payload
    return get(payload)
