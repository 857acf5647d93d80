"""Where the running code is: job, node, executor, task, actor."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from rayshim._core import current
from rayshim.lineage.ids import ActorID, JobID, NodeID, PlacementGroupID, TaskID

if TYPE_CHECKING:
    from rayshim._core.running import CallContext

logger = logging.getLogger("rayshim")


class RuntimeContext:
    """Facts about the code that asks. Made by :func:`get_runtime_context`."""

    def __init__(self, worker: Any) -> None:
        self._peer = worker

    def get(self) -> dict[str, Any]:
        """The basic ids as a dict (deprecated in Ray)."""
        context: dict[str, Any] = {
            "job_id": self.job_id,
            "node_id": self.node_id,
            "namespace": self.namespace,
        }
        if self._call() is not None:
            context["task_id"] = self.task_id
            if self._actor_id_bytes():
                context["actor_id"] = self.actor_id
        return context

    # -- where -------------------------------------------------------------------

    @property
    def job_id(self) -> JobID:
        """Id of the job."""
        return JobID(self._peer.job_id)

    def get_job_id(self) -> str:
        """Id of the job, 8 hex digits."""
        return str(self._peer.job_id.hex())

    @property
    def node_id(self) -> NodeID:
        """Id of the node."""
        return NodeID.from_hex(self._peer.node_id)

    def get_node_id(self) -> str:
        """Id of the node, 56 hex digits."""
        return str(self._peer.node_id)

    def get_worker_id(self) -> str:
        """Id of the process, 56 hex digits."""
        return str(self._peer.worker_id.hex())

    @property
    def namespace(self) -> str:
        """Namespace of named actors."""
        return str(self._peer.namespace)

    @property
    def gcs_address(self) -> str:
        """Address of the control service."""
        return str(self._peer.cluster_address)

    def get_session_name(self) -> str:
        """Name of the session."""
        return str(self._peer.session)

    def get_temp_dir(self) -> str:
        """Folder of the session's files."""
        return str(self._peer.session_dir)

    def get_node_labels(self) -> dict[str, str]:
        """Labels of the node."""
        for node in self._peer.request("nodes"):
            if node["NodeID"] == self._peer.node_id:
                return dict(node["Labels"])
        return {}

    # -- what ----------------------------------------------------------------------

    def _call(self) -> CallContext | None:
        call: CallContext | None = current.call.get()
        if call is None and self._peer.executor is not None:
            call = self._peer.executor.any_context()
        return call

    def _actor_id_bytes(self) -> bytes:
        executor = self._peer.executor
        if executor is None or executor.actor is None:
            return b""
        return bytes(executor.actor.actor_id)

    @property
    def task_id(self) -> TaskID:
        """Id of the running task (deprecated in Ray).

        Raises:
            AssertionError: in a driver.
        """
        call = self._call()
        assert call is not None, "task_id is only available in a task or an actor"
        return TaskID(call.task_id)

    def get_task_id(self) -> str | None:
        """Id of the running task, 48 hex digits; None in a driver."""
        call = self._call()
        if call is None:
            _warn_driver("get_task_id")
            return None
        return call.task_id.hex()

    def get_task_name(self) -> str | None:
        """Name of the running task: ``f`` or ``Class.method``; None in a driver."""
        call = self._call()
        if call is None:
            _warn_driver("get_task_name")
            return None
        return call.spec.name

    def get_task_function_name(self) -> str | None:
        """``module.function`` of the running task; None in a driver."""
        call = self._call()
        if call is None:
            _warn_driver("get_task_function_name")
            return None
        return str(self._peer.executor.runner.qualified_name(call.spec))

    @property
    def actor_id(self) -> ActorID:
        """Id of this actor (deprecated in Ray).

        Raises:
            AssertionError: outside an actor.
        """
        actor_id = self._actor_id_bytes()
        assert actor_id, "actor_id is only available in an actor"
        return ActorID(actor_id)

    def get_actor_id(self) -> str | None:
        """Id of this actor, 32 hex digits; None outside an actor."""
        if self._peer.executor is None:
            _warn_driver("get_actor_id")
            return None
        actor_id = self._actor_id_bytes()
        return actor_id.hex() if actor_id else None

    def get_actor_name(self) -> str | None:
        """Name of this actor, empty without one; None outside an actor."""
        if self._peer.executor is None:
            _warn_driver("get_actor_name")
            return None
        actor = self._peer.executor.actor
        return str(actor.name) if actor is not None else None

    @property
    def current_actor(self) -> Any:
        """A handle of this actor.

        Raises:
            RuntimeError: outside an actor.
        """
        executor = self._peer.executor
        if executor is None or executor.actor is None:
            raise RuntimeError("This method is only available in an actor.")
        return executor.own_handle()

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """True in a restarted actor.

        Raises:
            AssertionError: outside an actor.
        """
        executor = self._peer.executor
        assert executor is not None and executor.actor is not None, (
            "this is only available in an actor"
        )
        return bool(executor.actor.incarnation > 0)

    def is_canceled(self) -> bool:
        """True if the running call was cancelled.

        Raises:
            RuntimeError: in a driver.
        """
        call = self._call()
        if call is None:
            raise RuntimeError("is_canceled is only available in a task or an actor")
        return call.cancelled

    # -- resources -------------------------------------------------------------------

    def get_assigned_resources(self) -> dict[str, float]:
        """Resource name -> amount that the running call holds.

        Raises:
            AssertionError: in a driver.
        """
        assert self._peer.executor is not None, (
            "get_assigned_resources is only available in a task or an actor"
        )
        call = self._call()
        return dict(call.lease.resources) if call is not None and call.lease else {}

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Accelerator family -> devices that the running call may use."""
        from rayshim._core import gpus

        call, executor = self._call(), self._peer.executor
        ids: dict[str, list[str]] = {family: [] for family in gpus.FAMILIES}
        if executor is not None and call is not None and call.lease is not None:
            ids["GPU"] = [str(one) for one in executor.devices(call.lease)]
        return ids

    def get_resource_ids(self) -> dict[str, list[str]]:
        """As :meth:`get_accelerator_ids` (deprecated in Ray)."""
        return self.get_accelerator_ids()

    @property
    def runtime_env(self) -> Any:
        """The runtime_env of the running code."""
        from rayshim.runtime_env import RuntimeEnv

        return RuntimeEnv(**self._runtime_env())

    def get_runtime_env_string(self) -> str:
        """The runtime_env as JSON."""
        return json.dumps(self._runtime_env(), sort_keys=True)

    def _runtime_env(self) -> dict[str, Any]:
        env: dict[str, Any] = dict(self._peer.runtime_env)
        call = self._call()
        if call is not None and call.lease is not None and call.lease.env_vars:
            env["env_vars"] = dict(call.lease.env_vars)
        return env

    # -- placement groups --------------------------------------------------------------

    def get_placement_group_id(self) -> str | None:
        """Hex id of the placement group of the running code, or None."""
        return self._peer.lease_group.group_id.hex() or None

    @property
    def current_placement_group_id(self) -> PlacementGroupID:
        """Id of the placement group of the running code; nil without one."""
        hex_id = self.get_placement_group_id()
        if hex_id is None:
            return PlacementGroupID.nil()
        return PlacementGroupID.from_hex(hex_id)

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """True if calls from here go into the same placement group."""
        captured: bool = self._peer.lease_group.capture
        return captured


def _warn_driver(name: str) -> None:
    logger.warning("%s() gives None in a driver: it is about a task or an actor", name)


def get_runtime_context() -> RuntimeContext:
    """Facts about the code that asks.

    Example:
        >>> ray.get_runtime_context().get_node_id()  # doctest: +SKIP
    """
    return RuntimeContext(current.require_peer())
