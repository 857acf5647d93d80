"""What the pages and interfaces of the dashboard ask their cluster by."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from rayshim._core.clusters import Found
from rayshim.adapters.wire.oneshot import OneShot

if TYPE_CHECKING:
    from types import ModuleType

    from rayshim.dashboard.known_calls import KnownCalls
    from rayshim.jobs.manager import JobManager

#: Seconds for one answer of the control service.
LIMIT_S = 30.0
#: Seconds for which processes are asked for rows.
ROWS_S = 5.0
#: Connections to it that are kept for the next questions.
MAX_IDLE_LINKS = 4


class DashboardContext:
    """One cluster, as a process beside it sees it.

    Args:
        found: the cluster.
        settings: of the process that keeps its control service.

    Example:
        >>> rows = await context.ask("nodes")  # doctest: +SKIP
        >>> tasks = await context.state("list_tasks", limit=100)  # doctest: +SKIP
    """

    def __init__(self, found: Found, settings: dict[str, Any] | None = None) -> None:
        self.found = found
        self.settings = dict(settings or {})
        self._lock = threading.Lock()
        self._links: list[OneShot] = []
        self._driver_lock = threading.Lock()
        self._driver: ModuleType | None = None
        self._calls: KnownCalls | None = None
        #: The jobs of the cluster, once the routes of jobs are there.
        self.jobs: JobManager | None = None

    async def ask(self, method: str, payload: Any = None) -> Any:
        """The control service's answer to a request (docs/design.md).

        Args:
            method: of the request.
            payload: what MessagePack can write.

        Raises:
            RuntimeError: the service refused; the text says why.
            ConnectionError: the head is gone, and may be back soon.
        """
        return await asyncio.to_thread(self.ask_now, method, payload)

    def ask_now(self, method: str, payload: Any = None) -> Any:
        """As :meth:`ask`, for threads, which it blocks."""
        with self._lock:
            link = self._links.pop() if self._links else None
        if link is not None:
            try:
                return self._asked(link, method, payload)
            except ConnectionError:
                pass  # of an earlier life of the head
        link = OneShot(self.found.head_address, self.found.token, LIMIT_S)
        return self._asked(link, method, payload)

    def _asked(self, link: OneShot, method: str, payload: Any) -> Any:
        try:
            answer = link.ask(method, payload)
        except RuntimeError:
            self._keep(link)
            raise
        except BaseException:
            link.__exit__()
            raise
        self._keep(link)
        return answer

    def _keep(self, link: OneShot) -> None:
        with self._lock:
            if len(self._links) < MAX_IDLE_LINKS:
                self._links.append(link)
                return
        link.__exit__()

    async def state(self, function_name: str, **arguments: Any) -> Any:
        """What a function of ``rayshim.util.state`` returns for this cluster.

        Args:
            function_name: "list_tasks", "summarize_actors", ...
            **arguments: of the function; ``address`` is added.

        Returns:
            Plain dictionaries where the function returns dataclasses.
        """

        def call() -> Any:
            from rayshim.util import state

            arguments.setdefault("address", self.found.address)
            return _plain(getattr(state, function_name)(**arguments))

        return await asyncio.to_thread(call)

    async def rows(self, resource: str) -> tuple[list[dict[str, Any]], list[str]]:
        """All rows of a resource, and who of those that know some kept silent.

        As :meth:`state`, but without filters, limits and records in between, which
        take longer than the rest for ten thousand rows.

        Args:
            resource: "tasks", "objects", ...
        """

        def call() -> tuple[list[dict[str, Any]], list[str]]:
            from rayshim.util.state import sources
            from rayshim.util.state.options import StateResource

            if resource == "tasks":
                if self._calls is None:
                    from rayshim.dashboard.known_calls import KnownCalls

                    self._calls = KnownCalls()
                return self._calls.read(_Control(self), ROWS_S)
            found = sources.rows_of(_Control(self), StateResource(resource), ROWS_S)
            return found.rows, list(found.silent)

        return await asyncio.to_thread(call)

    def driver(self) -> ModuleType:
        """``rayshim`` with a session of this process in the cluster.

        It is opened by the first call, which blocks; call it in a thread.

        Raises:
            ConnectionError: the cluster is gone.
        """
        import rayshim

        with self._driver_lock:
            if self._driver is None or not rayshim.is_initialized():
                rayshim.init(
                    address=self.found.address,
                    namespace="_rayshim_dashboard",
                    log_to_driver=False,
                    configure_logging=False,
                    ignore_reinit_error=True,
                )
                self._driver = rayshim
                self._hide_own_job()
            return self._driver

    def _hide_own_job(self) -> None:
        """This process is no job of anybody's."""
        from rayshim._core import session
        from rayshim.jobs.info import DriverInfo
        from rayshim.jobs.records import Records

        if session.session is not None:
            job_id = session.session.job_id.hex()
            own = DriverInfo(id=job_id, node_ip_address="", pid=str(os.getpid()))
            Records(self.ask_now).set_program("", own)


class _Control:
    """The control service, for functions that ask it in a thread."""

    def __init__(self, context: DashboardContext) -> None:
        self._context = context

    def ask(self, method: str, payload: Any = None) -> Any:
        """Its answer to one request."""
        return self._context.ask_now(method, payload)


def _plain(value: Any) -> Any:
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        # Not asdict(): it copies each value, which for long lists takes seconds.
        fields = value.__dataclass_fields__
        return {name: _plain(getattr(value, name)) for name in fields}
    return value


#: What is plain already, and most values are.
_ATOMS = (str, int, float, bytes, type(None))
