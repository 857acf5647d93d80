"""What the pages read of the cluster, each thing at most once a second.

Ten open tabs ask the cluster as often as one: who asks for what is being read waits for
that answer, and an answer is good for :data:`FRESH_S`. Nothing is read unless a page
asks for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

logger = logging.getLogger(__name__)

#: Seconds for which an answer is shown again.
FRESH_S = 1.0
#: Seconds that one question may take before the page says that it is not answered.
LIMIT_S = 10.0
#: A long answer is good for so many times the seconds that it took, at most for
#: :data:`MAX_FRESH_S`: what one reader costs is bounded, however much there is to read.
REST, MAX_FRESH_S = 12.0, 10.0
#: Answers that are kept.
MAX_KEPT = 256
#: Rows that one question to the state API gives.
MAX_ROWS = 10_000


class Context(Protocol):
    """What is used of :class:`~rayshim.dashboard.context.DashboardContext`."""

    async def ask(self, method: str, payload: Any = None) -> Any:
        """What the control service answers."""

    async def state(self, function_name: str, **arguments: Any) -> Any:
        """What a function of :mod:`rayshim.util.state` returns."""

    async def rows(self, resource: str) -> tuple[list[dict[str, Any]], list[str]]:
        """All rows of a resource, and who kept silent."""


class Unanswered(Exception):
    """A question to the cluster has no answer.

    Args:
        what: was asked for.
        why: there is none.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why


class Missing(Exception):
    """A page is about something that the cluster does not know."""


class Reader:
    """Asks a context, and keeps answers for a moment.

    Args:
        context: of the dashboard's process.
        clock: seconds that never go back.
    """

    def __init__(
        self, context: Context, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context = context
        self._clock = clock
        #: Question -> (when its answer goes stale, the answer, which may be awaited).
        self._kept: dict[str, tuple[float, asyncio.Task[Any]]] = {}

    async def ask(
        self, method: str, payload: Any = None, *, fresh_s: float = FRESH_S
    ) -> Any:
        """What the control service answers.

        Raises:
            Unanswered: it does not, or says that it cannot.
        """
        key = f"{method} {json.dumps(payload, sort_keys=True, default=repr)}"
        return await self._once(
            key, method, fresh_s, lambda: self._context.ask(method, payload)
        )

    async def all_rows(self, resource: str) -> tuple[list[dict[str, Any]], list[str]]:
        """All rows of a resource, and one line for each who should have some.

        Raises:
            Unanswered: nobody answers.
        """
        told: tuple[list[dict[str, Any]], list[str]] = await self._once(
            f"rows {resource}",
            resource,
            FRESH_S,
            lambda: self._context.rows(resource),
        )
        return told

    async def rows(
        self, function_name: str, *, fresh_s: float = FRESH_S, **arguments: Any
    ) -> list[dict[str, Any]]:
        """What a ``list_`` function of the state API returns, as maps.

        Raises:
            Unanswered: nobody answers.
        """
        told = await self.state(function_name, fresh_s=fresh_s, **arguments)
        return told if isinstance(told, list) else []

    async def state(
        self, function_name: str, *, fresh_s: float = FRESH_S, **arguments: Any
    ) -> Any:
        """What a function of the state API returns, with maps for its records.

        Raises:
            Unanswered: nobody answers.
        """
        key = f"{function_name} {json.dumps(arguments, sort_keys=True, default=repr)}"

        async def read() -> Any:
            return plain(await self._context.state(function_name, **arguments))

        what = function_name.partition("_")[2].replace("_", " ") or function_name
        return await self._once(key, what, fresh_s, read)

    async def sure(self, read: Callable[[], Awaitable[Any]]) -> Any:
        """What is read; once more and anew, if it is missing in what was kept.

        What was submitted just now is younger than answers that are a moment old.

        Raises:
            Missing: it is not there.
        """
        kept = set(self._kept)
        try:
            return await read()
        except Missing:
            for key, (_, task) in list(self._kept.items()):
                if key in kept and task.done():
                    del self._kept[key]
            return await read()

    async def _once(
        self, key: str, what: str, fresh_s: float, read: Callable[[], Awaitable[Any]]
    ) -> Any:
        now = self._clock()
        stale_s, task = self._kept.get(key, (0.0, None))
        if task is None or (task.done() and stale_s <= now):
            if len(self._kept) >= MAX_KEPT:
                self._forget(now)
            task = asyncio.ensure_future(self._limited(read, fresh_s, key))
            self._kept[key] = (float("inf"), task)
        try:
            # One reader that goes away takes no answer from the others.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            raise
        except TimeoutError:
            raise Unanswered(what, f"no answer within {LIMIT_S:g} s") from None
        except Exception as error:
            logger.debug("%s failed", key, exc_info=error)
            raise Unanswered(what, f"{type(error).__name__}: {error}") from error

    async def _limited(
        self, read: Callable[[], Awaitable[Any]], fresh_s: float, key: str
    ) -> Any:
        fresh_until_s = float("-inf")
        began_s = self._clock()
        try:
            async with asyncio.timeout(LIMIT_S):
                value = await read()
            now = self._clock()
            if fresh_s:
                fresh_s = max(fresh_s, min(MAX_FRESH_S, REST * (now - began_s)))
            fresh_until_s = now + fresh_s
            return value
        except Exception:
            # Not asked again at once by every tab that is open.
            fresh_until_s = self._clock() + FRESH_S
            raise
        finally:
            task = asyncio.current_task()
            kept = self._kept.get(key)
            if kept is not None and kept[1] is task:
                self._kept[key] = (fresh_until_s, kept[1])

    def _forget(self, now: float) -> None:
        for key, (stale_s, task) in list(self._kept.items()):
            if task.done() and stale_s <= now:
                del self._kept[key]
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    async def together(
        self, **questions: Awaitable[Any]
    ) -> tuple[dict[str, Any], list[Unanswered]]:
        """Answers by name, None for those that are missing, and what is missing."""
        answers = await asyncio.gather(*questions.values(), return_exceptions=True)
        found: dict[str, Any] = {}
        problems: list[Unanswered] = []
        for name, answer in zip(questions, answers, strict=True):
            if isinstance(answer, Unanswered):
                problems.append(answer)
                found[name] = None
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[name] = answer
        return found, problems


def plain(value: Any) -> Any:
    """Maps in place of records, whatever kind of record it is.

    Example:
        >>> import dataclasses
        >>> Row = dataclasses.make_dataclass("Row", ["pid"])
        >>> plain([Row(7), {"pid": 8}])
        [{'pid': 7}, {'pid': 8}]
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Not asdict(): that copies each value, and ten thousand rows are many.
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return value
