"""Graphs of actor methods that are checked once and run many times.

A `CompiledDAG` makes the calls of its actors in one go, as ``.remote()`` does, and
passes references between them. What is Ray's: what may be compiled, results that are
fetched once and in order, limits of executions under way and of results that wait,
errors that come out at the end, and what holds after `CompiledDAG.teardown`.

Rules:

* An execution is *under way* until its result, or that of a later one, is fetched, or
  all its references are dropped and it has ended.
* A result that ended and was not fetched is *buffered*.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

from rayshim._core.api import get, kill, wait
from rayshim._core.refs import ObjectRef
from rayshim.dag.class_node import ClassMethodNode
from rayshim.dag.compiled_plan import Plan
from rayshim.dag.context import DAGContext
from rayshim.dag.dag_node import DAGNode
from rayshim.dag.graph_checks import check_graph
from rayshim.dag.graph_picture import ascii_picture, dot_source
from rayshim.dag.output_node import MultiOutputNode
from rayshim.exceptions import (
    GetTimeoutError,
    RayCgraphCapacityExceeded,
    RayChannelError,
    RayChannelTimeoutError,
)
from rayshim.experimental.compiled_dag_ref import CompiledDAGFuture, CompiledDAGRef

logger = logging.getLogger("rayshim")


class CompiledDAG:
    """A graph that is ready to run; made by `DAGNode.experimental_compile`.

    Not safe for use by several threads at a time.

    Args:
        submit_timeout: seconds; see `DAGContext`.
        buffer_size_bytes: see `DAGContext`.
        enable_asyncio: `execute_async` instead of `execute`.
        max_inflight_executions: executions that may be under way.
        max_buffered_results: results that may be buffered.
        overlap_gpu_communication: True is refused.
        default_communicator: "create" or None.

    Raises:
        NotImplementedError: a parameter that needs GPUs.
        ValueError: no such communicator.
    """

    def __init__(
        self,
        submit_timeout: float | None = None,
        buffer_size_bytes: int | None = None,
        enable_asyncio: bool = False,
        max_inflight_executions: int | None = None,
        max_buffered_results: int | None = None,
        overlap_gpu_communication: bool | None = None,
        default_communicator: Any = "create",
    ) -> None:
        context = DAGContext.get_current()
        if overlap_gpu_communication is None:
            overlap_gpu_communication = context.overlap_gpu_communication
        if overlap_gpu_communication:
            raise NotImplementedError(
                "_overlap_gpu_communication=True: there is no communication between "
                "GPUs in compiled graphs; values travel through the shared store"
            )
        if isinstance(default_communicator, str):
            if default_communicator != "create":
                raise ValueError(
                    "The only allowed string for default_communicator is 'create', got "
                    f"{default_communicator}"
                )
        elif default_communicator is not None:
            raise NotImplementedError(
                f"_default_communicator={default_communicator!r}: values travel "
                "through the shared store; leave it out"
            )
        self._enable_asyncio = enable_asyncio
        self._max_inflight_executions = _given(
            max_inflight_executions, context.max_inflight_executions
        )
        self._max_buffered_results = _given(
            max_buffered_results, context.max_buffered_results
        )
        self._submit_timeout = _given(submit_timeout, context.submit_timeout)
        self._buffer_size_bytes = _given(buffer_size_bytes, context.buffer_size_bytes)
        self._get_timeout = context.get_timeout
        self._teardown_timeout = context.teardown_timeout
        self._dag_id = uuid.uuid4().hex
        self._is_teardown = False
        self._returns_list = False
        self._nodes: list[DAGNode] = []
        self._execution_index = -1
        #: Executions under way: index -> output index -> reference, None if dropped.
        self._running: dict[int, list[Any]] = {}
        #: The same of those that ended; what is fetched or dropped is None.
        self._buffered: dict[int, list[Any]] = {}

    def _compile(self, output: DAGNode) -> None:
        output._find_root().traverse_and_apply(self._nodes.append)
        self._shape = check_graph(self._nodes)
        self._returns_list = isinstance(output, MultiOutputNode)
        self._output = output
        self._plan = Plan(output, self._nodes)
        handles = [
            node._get_actor_handle()
            for node in self._nodes
            if isinstance(node, ClassMethodNode)
        ]
        self._actors = list(dict.fromkeys(filter(None, handles)))

    @property
    def is_teardown(self) -> bool:
        """Whether `teardown` was called."""
        return self._is_teardown

    def get_id(self) -> str:
        """The id of this graph, in hex."""
        return self._dag_id

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution.

        Args:
            args: what the InputNode stands for.
            kwargs: what ``input_node.NAME`` stands for.

        Returns:
            A `CompiledDAGRef`; a list of them for a MultiOutputNode.

        Raises:
            ValueError: other arguments than the graph has, or it was compiled with
                ``enable_asyncio``.
            RayCgraphCapacityExceeded: too many executions are under way.
            RayChannelError: the graph was torn down.
        """
        if self._enable_asyncio:
            raise ValueError("Use execute_async if enable_asyncio=True")
        index, outputs = self._start(args, kwargs)
        if not self._returns_list:
            return CompiledDAGRef(self, index)
        return [CompiledDAGRef(self, index, channel) for channel in range(outputs)]

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """Start one execution of a graph compiled with ``enable_asyncio=True``.

        Returns:
            A `CompiledDAGFuture` to await; a list of them for a MultiOutputNode.

        Raises:
            As `execute`.
        """
        if not self._enable_asyncio:
            raise ValueError("Use execute if enable_asyncio=False")
        index, outputs = self._start(args, kwargs)
        if not self._returns_list:
            return CompiledDAGFuture(self, index)
        return [CompiledDAGFuture(self, index, channel) for channel in range(outputs)]

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
        if self._is_teardown:
            raise RayChannelError(
                f"Channel closed: {self} was torn down; compile a new graph"
            )
        self._shape.check(args, kwargs)
        if len(self._running) >= self._max_inflight_executions:
            self._make_room()
        refs = self._plan.submit(args, kwargs)
        self._execution_index += 1
        self._running[self._execution_index] = refs
        return self._execution_index, len(refs)

    def _make_room(self) -> None:
        """Wait for the oldest executions whose references are all dropped."""
        limit_s = None if self._get_timeout < 0 else self._get_timeout
        while self._running:
            index, dropped = next(iter(self._running.items()))
            if any(type(ref) is not _Dropped for ref in dropped):
                break
            _wait_for([ref.ref for ref in dropped], limit_s, self._get_timeout)
            del self._running[index]
        if len(self._running) >= self._max_inflight_executions:
            raise RayCgraphCapacityExceeded(
                "The compiled graph can't have more than "
                f"{self._max_inflight_executions} in-flight executions, and you "
                f"currently have {len(self._running)} in-flight executions. Retrieve "
                "an output using ray.get before submitting more requests or increase "
                "`_max_inflight_executions`. "
                "`dag.experimental_compile(_max_inflight_executions=...)`"
            )

    def _fetch(self, index: int, channel: int | None, timeout: float | None) -> Any:
        """The value of an output; earlier executions are waited for and buffered."""
        self._check_open()
        if timeout is None:
            timeout = self._get_timeout
        deadline = None if timeout < 0 else time.monotonic() + timeout
        for earlier in [number for number in self._running if number < index]:
            self._check_buffer()
            refs = [_plain(ref) for ref in self._running[earlier]]
            _wait_for(refs, _left(deadline), timeout)
            self._end(earlier)
        running = self._running.get(index)
        if running is not None:
            self._check_buffer()
        refs = running if running is not None else self._buffered[index]
        ref = refs[channel or 0]
        try:
            return get(ref, timeout=_left(deadline)) if _is_ref(ref) else ref
        except GetTimeoutError:
            raise _timed_out(timeout) from None
        finally:
            self._take(index, channel)

    async def _fetch_async(self, index: int, channel: int | None) -> Any:
        self._check_open()
        refs = self._running.get(index) or self._buffered[index]
        ref = refs[channel or 0]
        try:
            return await ref if _is_ref(ref) else ref
        except asyncio.CancelledError:
            raise
        finally:
            self._take(index, channel)

    def _check_open(self) -> None:
        if self._is_teardown:
            raise RayChannelError(f"Channel closed: {self} was torn down")

    def _check_buffer(self) -> None:
        if len(self._buffered) >= self._max_buffered_results:
            raise RayCgraphCapacityExceeded(
                "The compiled graph can't have more than "
                f"{self._max_buffered_results} buffered results, and you currently "
                f"have {len(self._buffered)} buffered results. Call `ray.get()` on "
                "CompiledDAGRef's (or await on CompiledDAGFuture's) to retrieve "
                "results, or increase `_max_buffered_results` if buffering is desired, "
                "note that this will increase driver memory usage."
            )

    def _end(self, index: int) -> None:
        """Count an execution as ended; keep what somebody may still fetch."""
        refs = self._running.pop(index, None)
        if refs is None:
            return
        kept = [None if type(ref) is _Dropped else ref for ref in refs]
        if any(ref is not None for ref in kept):
            self._buffered[index] = kept

    def _take(self, index: int, channel: int | None) -> None:
        """An output was fetched, or its future was given up."""
        self._end(index)
        refs = self._buffered.get(index)
        if refs is None:
            return
        refs[channel or 0] = None
        if all(ref is None for ref in refs):
            del self._buffered[index]

    def _drop(self, index: int, channel: int | None) -> None:
        """A reference went out of scope. Called by finalizers: takes no lock."""
        if self._is_teardown:
            return
        running = self._running.get(index)
        if running is None:
            self._take(index, channel)
            return
        running[channel or 0] = _Dropped(running[channel or 0])

    def teardown(self, kill_actors: bool = False) -> None:
        """End the graph: wait for what is under way, and give its results up.

        The actors can be used as before.

        Args:
            kill_actors: end the actors, too.
        """
        if self._is_teardown:
            return
        self._is_teardown = True
        refs = [
            plain
            for outputs in self._running.values()
            for plain in map(_plain, outputs)
            if _is_ref(plain)
        ]
        self._running.clear()
        self._buffered.clear()
        if refs:
            unique = list(dict.fromkeys(refs))
            _, busy = wait(
                unique,
                num_returns=len(unique),
                timeout=self._teardown_timeout,
                fetch_local=False,
            )
            if busy:
                logger.warning(
                    "%s: %d calls are still running %s s after teardown(); %s",
                    self,
                    len(busy),
                    self._teardown_timeout,
                    "their actors are killed"
                    if kill_actors
                    else "teardown(kill_actors=True) ends them",
                )
        if kill_actors:
            for actor in self._actors:
                kill(actor)

    def visualize(
        self,
        filename: str = "compiled_graph",
        format: str = "png",
        view: bool = False,
        channel_details: bool = False,
    ) -> str:
        """Draw the graph.

        Args:
            filename: of the picture, without extension; not used for "ascii".
            format: "ascii", or one that graphviz knows (png, pdf, svg...).
            view: open the picture; for "ascii": print it.
            channel_details: say at each edge how values travel; not for "ascii".

        Returns:
            The text, or the picture's source in DOT.

        Raises:
            ImportError: graphviz is not installed.
            ValueError: ``channel_details`` for "ascii".
        """
        if format == "ascii":
            if channel_details:
                raise ValueError(
                    "Parameters 'channel_details' are not compatible with 'ascii' "
                    "format."
                )
            text = ascii_picture(self._nodes)
            if view:
                print(text)
            return text
        try:
            import graphviz
        except ImportError:
            raise ImportError(
                "Please install graphviz to visualize the compiled graph: "
                "`pip install graphviz`, and its program `dot`; or use format='ascii'."
            ) from None
        source = dot_source(self._nodes, details=channel_details)
        graphviz.Source(source, format=format).render(filename, view=view)
        return source

    def __str__(self) -> str:
        return f"CompiledDAG({self._dag_id})"


class _Dropped:
    """Stands for a reference that nobody has any more."""

    __slots__ = ("ref",)

    def __init__(self, ref: Any) -> None:
        self.ref = ref


def _plain(ref: Any) -> Any:
    return ref.ref if type(ref) is _Dropped else ref


def _is_ref(value: Any) -> bool:
    return isinstance(value, ObjectRef)


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _timed_out(timeout: float) -> RayChannelTimeoutError:
    return RayChannelTimeoutError(
        f"no result of the compiled graph within {timeout} s. If the execution is "
        "expected to take a long time, give get() a timeout (-1: for ever), or raise "
        "RAY_CGRAPH_get_timeout. Otherwise, this may indicate that the execution is "
        "hanging."
    )


def _wait_for(refs: list[Any], timeout_s: float | None, said: float) -> None:
    pending = list(dict.fromkeys(ref for ref in refs if _is_ref(ref)))
    if not pending:
        return
    _, late = wait(
        pending, num_returns=len(pending), timeout=timeout_s, fetch_local=False
    )
    if late:
        raise _timed_out(said)


def build_compiled_dag_from_ray_dag(
    dag: DAGNode,
    submit_timeout: float | None = None,
    buffer_size_bytes: int | None = None,
    enable_asyncio: bool = False,
    max_inflight_executions: int | None = None,
    max_buffered_results: int | None = None,
    overlap_gpu_communication: bool | None = None,
    default_communicator: Any = "create",
) -> CompiledDAG:
    """What `DAGNode.experimental_compile` calls; see there."""
    compiled = CompiledDAG(
        submit_timeout,
        buffer_size_bytes,
        enable_asyncio,
        max_inflight_executions,
        max_buffered_results,
        overlap_gpu_communication,
        default_communicator,
    )
    compiled._compile(dag)
    return compiled
