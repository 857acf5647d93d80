"""What the asynchronous methods of a pool return."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import TimeoutError
from typing import Any

import rayshim
from rayshim import exceptions
from rayshim._core.refs import ObjectRef
from rayshim.util.multiprocessing.worker import Failure

logger = logging.getLogger("rayshim")


class AsyncResult:
    """The result of `apply_async`, `map_async` or `starmap_async`.

    Args:
        chunk_object_refs: each gives a list of results, in order.
        callback: takes the result when it is there, in a thread of this process.
        error_callback: takes the first error instead, likewise.
        single_result: the result is that of one call, not a list.
    """

    def __init__(
        self,
        chunk_object_refs: list[ObjectRef],
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
        single_result: bool = False,
    ) -> None:
        self._refs = chunk_object_refs
        self._single = single_result
        self._callback = callback
        self._error_callback = error_callback
        self._thread: threading.Thread | None = None
        if callback is not None or error_callback is not None:
            self._thread = threading.Thread(
                target=self._tell, name="rayshim-pool-callback", daemon=True
            )
            self._thread.start()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result is there.

        Args:
            timeout: seconds; None waits for ever.
        """
        self._are_ready(timeout)

    def get(self, timeout: float | None = None) -> Any:
        """The result.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            multiprocessing.TimeoutError: it is not there in time.
            Exception: what the first call that failed raised.
        """
        if timeout is not None and not self._are_ready(timeout):
            raise TimeoutError(f"no result within {timeout} s")
        results = self._results()
        for result in results:
            if isinstance(result, Failure):
                raise result.exception()
        return results[0] if self._single else results

    def ready(self) -> bool:
        """Whether the result, or an error, is there."""
        return self._are_ready(0)

    def successful(self) -> bool:
        """Whether no call failed.

        Raises:
            ValueError: the result is not there yet.
        """
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        try:
            self.get()
        except Exception:
            return False
        return True

    def _are_ready(self, timeout_s: float | None) -> bool:
        if not self._refs:
            return True
        count = len(self._refs)
        ready, _ = rayshim.wait(self._refs, num_returns=count, timeout=timeout_s)
        return len(ready) == count

    def _results(self) -> list[Any]:
        return list(itertools.chain.from_iterable(rayshim.get(self._refs)))

    def _tell(self) -> None:
        """Hand the result to the callbacks."""
        try:
            try:
                result = self.get()
            except Exception as error:
                if self._error_callback is not None:
                    self._error_callback(error)
            else:
                if self._callback is not None:
                    self._callback(result)
        except Exception:
            logger.exception("the callback of a pool's result failed")


class IMapIterator:
    """Results of `imap` and `imap_unordered`.

    Args:
        submit: hands a chunk of items to a process.
        items: where they come from.
        chunksize: items in a chunk.
        depth: chunks that are under way at once.
        ordered: whether results come in the order of items.
    """

    def __init__(
        self,
        submit: Callable[[list[Any]], ObjectRef],
        items: Iterator[Any],
        chunksize: int,
        depth: int,
        *,
        ordered: bool,
    ) -> None:
        self._submit = submit
        self._items = items
        self._chunksize = chunksize
        self._ordered = ordered
        #: Chunks under way, oldest first.
        self._running: list[ObjectRef] = []
        self._results: deque[Any] = deque()
        self._is_more = True
        #: What reading the items raised; comes after the results before it.
        self._error: Exception | None = None
        for _ in range(depth):
            self._submit_next()

    def __iter__(self) -> IMapIterator:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """The next result.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            StopIteration: there is none.
            multiprocessing.TimeoutError: it did not come in time.
            Exception: what the call for this item raised.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self._results:
            if not self._running:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                raise StopIteration
            left_s = deadline_s and max(0.0, deadline_s - time.monotonic())
            self._take(left_s, timeout)
        result = self._results.popleft()
        if isinstance(result, Failure):
            raise result.exception()
        return result

    def _take(self, left_s: float | None, timeout_s: float | None) -> None:
        """Move the results of one chunk here, and start another."""
        waited = self._running[:1] if self._ordered else self._running
        ready, _ = rayshim.wait(waited, num_returns=1, timeout=left_s)
        if not ready:
            raise TimeoutError(f"no result within {timeout_s} s")
        self._running.remove(ready[0])
        try:
            self._results.extend(rayshim.get(ready[0]))
        except exceptions.RayError as error:
            # The process died: its chunk is lost, the others are not.
            self._results.append(Failure(error, ""))
        self._submit_next()

    def _submit_next(self) -> None:
        if not self._is_more:
            return
        chunk: list[Any] = []
        try:
            chunk.extend(itertools.islice(self._items, self._chunksize))
        except Exception as error:
            self._error = error
            self._is_more = False
        if len(chunk) < self._chunksize:
            self._is_more = False
        if chunk:
            self._running.append(self._submit(chunk))
