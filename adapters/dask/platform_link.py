"""Dask's own scheduler as the platform's cluster (runtime "dask").

The link gives the scheduler functions of its own to answer with
(:mod:`~rayshim.adapters.dask.scheduler_facts`). Whoever reaches a scheduler without TLS
can run code in it likewise: Dask has no token. So it belongs behind TLS, or on a
network that only the platform's own pods reach.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import cloudpickle
from distributed.core import rpc

from rayshim.adapters.dask import scheduler_facts
from rayshim.adapters.dask.certificates import security_of
from rayshim.adapters.dask.platform_demand import RETIRING, demand_of, has_left, is_busy
from rayshim.adapters.wire.tls import Credentials
from rayshim.lineage.demand import Demand

logger = logging.getLogger(__name__)

_Value = TypeVar("_Value")

#: Seconds for one answer.
LIMIT_S = 5.0
#: Seconds in which what a worker holds has to be elsewhere; then it is asked again.
RETIRE_LIMIT_S = 600.0


class DaskLink:
    """A cluster of Dask, in place of the control service (see ``autoscaler.control``).

    Node ids are the addresses of workers.

    Args:
        address: of the scheduler (``tcp://HOST:PORT`` or ``tls://HOST:PORT``); its name
            is looked up for each question.
        labels_of: labels of the node of a worker's name.
        tls: files for TLS; needed for ``tls://``.
        limit_s: seconds for one answer.

    Raises:
        ValueError: the files cannot be used.

    Thread safety: any thread. It has a thread of its own, until :meth:`close`.
    """

    def __init__(
        self,
        address: str,
        *,
        labels_of: Callable[[str], Mapping[str, str]] = lambda name: {},
        tls: Credentials | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        if tls is not None:
            tls.check()
        self.address = address
        self._labels_of = labels_of
        self._limit_s = limit_s
        self._security = security_of(tls)
        #: Id of the scheduler that knows the requests.
        self._equipped = ""
        #: Address of a worker -> since when it has had no work (monotonic).
        self._idle_since: dict[str, float] = {}
        #: Shape of waiting tasks -> since when some wait (monotonic).
        self._waits_since: dict[Any, float] = {}
        self._draining: dict[str, asyncio.Task[None]] = {}
        self._notes: dict[str, str] = {}
        #: What the autoscaler told last; Dask has no place for it.
        self.last_report: Mapping[str, Any] = {}
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="rayshim-dask-link", daemon=True
        )
        self._thread.start()

    # As the control service.

    def demand(self) -> Demand:
        """What waits, and what each worker does.

        Raises:
            ConnectionError: the scheduler does not answer.
        """
        return self._run(self._demand())

    def drain(self, node_id: str, reason: str) -> bool:
        """Has a worker leave if it has no tasks; what it holds is moved meanwhile.

        Returns:
            False if there is no such worker. That it refused is in :meth:`drain_notes`.

        Raises:
            ConnectionError: the scheduler does not answer.
        """
        return self._run(self._drain(node_id, reason))

    def drain_notes(self) -> dict[str, str]:
        """Address -> what its drain waits for, or why it was refused."""
        return dict(self._notes)

    def report(self, report: Mapping[str, Any]) -> None:
        """Keeps it as :attr:`last_report`."""
        self.last_report = dict(report)

    def close(self) -> None:
        """Ends the thread; retirements that are under way go on. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # In the thread's loop.

    def _run(self, asked: Coroutine[Any, Any, _Value]) -> _Value:
        if self._is_closed:
            asked.close()
            raise RuntimeError(f"the link to {self.address} was closed")

        async def limited() -> _Value:
            async with asyncio.timeout(2 * self._limit_s):
                return await asked

        future = asyncio.run_coroutine_threadsafe(limited(), self._loop)
        try:
            return future.result()
        except OSError as error:  # Dask's errors of connections, and timeouts, are some
            raise ConnectionError(
                f"the head at {self.address} does not answer: {error or 'in time'}"
            ) from error

    async def _demand(self) -> Demand:
        facts = await self._ask(scheduler_facts.FACTS)
        now = time.monotonic()
        workers = {one["address"]: one for one in facts["workers"]}
        self._idle_since = {
            address: self._idle_since.get(address, now)
            for address, one in workers.items()
            if not is_busy(one)
        }
        for address, one in workers.items():
            if one["status"] == RETIRING and not is_busy(one) and not has_left(one):
                # Whoever retired it is gone, or a late task has left a value there.
                self._begin(address)
        self._notes = {k: v for k, v in self._notes.items() if k in workers}
        seen: set[Any] = set()

        def oldest_s(key: Any) -> float:
            seen.add(key)
            return now - self._waits_since.setdefault(key, now)

        found = demand_of(
            facts,
            time_s=time.time(),
            labels_of=self._labels_of,
            idle_s={k: now - since for k, since in self._idle_since.items()},
            draining=self._draining,
            oldest_s=oldest_s,
        )
        for key in self._waits_since.keys() - seen:
            del self._waits_since[key]
        return found

    async def _drain(self, address: str, reason: str) -> bool:
        facts = await self._ask(scheduler_facts.FACTS)
        for one in facts["workers"]:
            if one["address"] != address:
                continue
            if is_busy(one):
                self._notes[address] = "refused: it has work"
            else:
                logger.debug("retiring %s: %s", address, reason)
                self._begin(address)
            return True
        return False

    def _begin(self, address: str) -> None:
        if address not in self._draining:
            self._notes[address] = "moves what it holds"
            task = self._loop.create_task(self._retire(address))
            self._draining[address] = task

    async def _retire(self, address: str) -> None:
        note = ""
        try:
            async with asyncio.timeout(RETIRE_LIMIT_S):
                note = await self._ask(scheduler_facts.RETIRE, address=address)
            note = f"refused: {note}" if note else ""
        except OSError as error:
            note = f"the head does not answer: {error}"
        except Exception as error:
            logger.exception("retiring %s failed", address)
            note = f"failed: {error}"
        finally:
            self._draining.pop(address, None)
            self._notes.pop(address, None)
            if note:
                self._notes[address] = note

    async def _ask(self, request: str, **arguments: Any) -> Any:
        """Asks the scheduler on a connection of its own."""
        given: dict[str, Any] = {}
        if self._security is not None:
            given = self._security.get_connection_args("client")  # type: ignore[no-untyped-call]
        # Else a scheduler that is plain, or has gone, is tried for half a minute.
        link: Any = rpc(  # type: ignore[no-untyped-call]
            self.address, timeout=self._limit_s, connection_args=given
        )
        async with link:
            about = await asyncio.wait_for(
                link.identity(n_workers=0), timeout=self._limit_s
            )
            if about["id"] != self._equipped:
                answer = await link.run_function(function=_EQUIP)
                if answer["status"] != "OK":
                    raise RuntimeError(
                        f"the scheduler at {self.address} cannot be asked for its "
                        f"tasks: {answer.get('exception_text') or answer}"
                    )
                self._equipped = about["id"]
            return await getattr(link, request)(**arguments)

    async def _end(self) -> None:
        tasks = list(self._draining.values())
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()


@contextmanager
def _by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(scheduler_facts)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(scheduler_facts)


with _by_value():
    _EQUIP: bytes = cloudpickle.dumps(scheduler_facts.equip)
