"""Dask workers in actors.

A worker takes the CPUs of its actor's lease, and joins the scheduler of the session.
Its tasks run in threads of the actor's process; there they may call everything that
tasks may.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import dask
from distributed import Worker

from rayshim._core import current
from rayshim._core.api import get
from rayshim.adapters.dask import comm
from rayshim.adapters.dask.servers import NodeWorker
from rayshim.util.dask import shared_values
from rayshim.util.dask.graphs import references_in, with_values

#: Seconds for a worker to join and to leave.
_LIMIT_S = 60.0
#: Nobody but the session's store acts on memory, and nothing runs for nothing.
_SETTINGS = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "5s",
}


class SharedWorker(NodeWorker):
    """A worker whose large results are in the shared store."""

    # Dask looks for the parameter's name.
    async def get_data(
        self,
        comm: Any,
        keys: Any,
        who: str | None = None,
        serializers: list[str] | None = None,
    ) -> Any:
        """Send what is asked for; of large values the reference."""
        with shared_values.as_references():
            return await super().get_data(comm, keys, who, serializers)

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Run a task, with values in the place of ObjectRefs."""
        task = self.state.tasks.get(key)
        if task is not None and task.run_spec is not None:
            if references_in(task.run_spec):
                resolved: Any = _Resolved(task.run_spec)
                task.run_spec = resolved
        return await super().execute(key, stimulus_id=stimulus_id)


class _Resolved:
    """A task with ObjectRefs; they are fetched in the thread that runs it."""

    is_coro = False

    def __init__(self, task: Any) -> None:
        self._task = task

    def __call__(self, values: Any = ()) -> Any:
        # A copy of its own: a task may run again.
        task = self._task.copy()
        return with_values(task, get(references_in(task)))(values)

    def __repr__(self) -> str:
        return repr(self._task)


class DaskWorker:
    """The actor around a worker.

    Args:
        address: the scheduler's.
        threads: tasks at a time.
        host: address to listen on; None is the node's.
    """

    def __init__(self, address: str, threads: int, host: str | None) -> None:
        shared_values.keep_references()
        logging.getLogger("distributed").setLevel(logging.WARNING)
        peer = current.require_peer()
        folder = Path(peer.session_dir)
        comm.use_token(str(folder / "token"))
        scratch = folder / "dask"
        scratch.mkdir(exist_ok=True)
        dask.config.set({**_SETTINGS, "temporary-directory": str(scratch)})
        self._data = shared_values.SharedData()
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=self._loop.run_forever, name="dask-worker", daemon=True
        ).start()
        self._worker: Worker = self._run(
            self._start(address, threads, host or peer.node_ip)
        )

    async def _start(self, address: str, threads: int, host: str) -> Worker:
        worker: Worker = await SharedWorker(
            address,
            protocol=comm.SCHEME,
            host=host,
            nthreads=threads,
            data=self._data,
            dashboard=False,
            memory_limit=0,
        )
        return worker

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_LIMIT_S)

    def address(self) -> str:
        """Where the worker listens."""
        return str(self._worker.address)

    def reference(self, key: Any) -> list[Any]:
        """The object of a key that this worker holds, in a list."""
        return [self._data.reference(key)]

    def stop(self) -> None:
        """Leave the scheduler, which moves what only this worker has."""
        self._run(self._worker.close(nanny=False))
