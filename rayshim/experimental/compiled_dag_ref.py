"""References to results of compiled graphs."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rayshim.dag.compiled_dag_node import CompiledDAG


class _Once:
    """A result that is fetched once, and is neither copied nor sent."""

    _fetched = False

    def __init__(
        self, dag: CompiledDAG, execution_index: int, channel_index: int | None = None
    ) -> None:
        self._dag = dag
        self._execution_index = execution_index
        self._channel_index = channel_index

    def __str__(self) -> str:
        return (
            f"{type(self).__name__}({self._dag.get_id()}, "
            f"execution_index={self._execution_index}, "
            f"channel_index={self._channel_index})"
        )

    __repr__ = __str__

    def __copy__(self) -> NoReturn:
        raise ValueError(f"{type(self).__name__} cannot be copied.")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise ValueError(f"{type(self).__name__} cannot be deep copied.")

    def __reduce__(self) -> NoReturn:
        raise ValueError(
            f"{type(self).__name__} cannot be pickled, or passed to a call: get its "
            "value first."
        )

    def __del__(self) -> None:
        if not self._fetched and "_dag" in self.__dict__:
            self._dag._drop(self._execution_index, self._channel_index)


class CompiledDAGRef(_Once):
    """One result of one execution; ``ray.get`` takes it, once.

    Args:
        dag: the graph that was executed.
        execution_index: which execution it is, from 0.
        channel_index: which of several outputs; None for the only one.
    """

    def get(self, timeout: float | None = None) -> Any:
        """The result. Those of earlier executions are waited for, too, and kept.

        Args:
            timeout: seconds; None is `DAGContext.get_timeout`, -1 waits for ever.

        Raises:
            ValueError: it was called before.
            RayChannelTimeoutError: there was no result in time; it is given up.
            RayCgraphCapacityExceeded: too many results would wait.
            RayTaskError: a call of the graph failed.
        """
        if self._fetched:
            raise ValueError(
                "ray.get() can only be called once on a CompiledDAGRef, and it was "
                "already called."
            )
        self._fetched = True
        return self._dag._fetch(self._execution_index, self._channel_index, timeout)

    __rayshim_get__ = get


class CompiledDAGFuture(_Once):
    """One result of one execution of a graph with ``enable_asyncio``; await it once.

    Args:
        dag: the graph that was executed.
        execution_index: which execution it is, from 0.
        channel_index: which of several outputs; None for the only one.
    """

    def __await__(self) -> Generator[Any, None, Any]:
        if self._fetched:
            raise ValueError(
                "CompiledDAGFuture can only be awaited upon once, and it has already "
                "been awaited upon."
            )
        self._fetched = True
        return self._dag._fetch_async(
            self._execution_index, self._channel_index
        ).__await__()
