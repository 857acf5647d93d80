"""The process's worker, as libraries ask ``global_worker`` about it."""

from __future__ import annotations

from rayshim._core import current
from rayshim._core.api import (
    cancel,
    get,
    get_actor,
    get_gpu_ids,
    init,
    is_initialized,
    kill,
    put,
    remote,
    shutdown,
    wait,
)
from rayshim.lineage.ids import ActorID, JobID, NodeID, TaskID, WorkerID

__all__ = [
    "LOCAL_MODE",
    "SCRIPT_MODE",
    "WORKER_MODE",
    "Worker",
    "cancel",
    "get",
    "get_actor",
    "get_gpu_ids",
    "global_worker",
    "init",
    "is_initialized",
    "kill",
    "put",
    "remote",
    "shutdown",
    "wait",
]

SCRIPT_MODE = 0
WORKER_MODE = 1
LOCAL_MODE = 2


class Worker:
    """What is known of this process; looks each time, keeps nothing."""

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return current.peer is not None

    @property
    def mode(self) -> int | None:
        """SCRIPT_MODE in a driver, WORKER_MODE in an executor; None without session."""
        if current.peer is None:
            return None
        return SCRIPT_MODE if current.peer.executor is None else WORKER_MODE

    @property
    def namespace(self) -> str:
        """Namespace of named actors."""
        return current.require_peer().namespace

    @property
    def worker_id(self) -> bytes:
        """Id of this process, 28 bytes."""
        return WorkerID(current.require_peer().worker_id).binary()

    @property
    def current_job_id(self) -> JobID:
        """Id of the job."""
        return JobID(current.require_peer().job_id)

    @property
    def current_node_id(self) -> NodeID:
        """Id of the node."""
        return NodeID.from_hex(current.require_peer().node_id)

    @property
    def node_ip_address(self) -> str:
        """Address of the node."""
        return current.require_peer().node_ip

    @property
    def actor_id(self) -> ActorID:
        """Id of the actor that runs here; nil outside of actors."""
        from rayshim.runtime_context import get_runtime_context

        found = get_runtime_context().get_actor_id() if self.mode else None
        return ActorID.nil() if found is None else ActorID.from_hex(found)

    @property
    def current_task_id(self) -> TaskID:
        """Id of the call that runs here; nil in a driver."""
        from rayshim.runtime_context import get_runtime_context

        found = get_runtime_context().get_task_id() if self.mode else None
        return TaskID.nil() if found is None else TaskID.from_hex(found)

    def check_connected(self) -> None:
        """Complain without an open session.

        Raises:
            RuntimeError: ``init`` was not called.
        """
        if not self.connected:
            raise RuntimeError(
                "Ray has not been started yet. You can start Ray with 'ray.init()'."
            )


#: The worker of this process.
global_worker = Worker()
