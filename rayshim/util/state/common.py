"""``ray.util.state.common``: the rows of state, and what can be asked for."""

# ruff: noqa: RUF009 (state_column() makes fields of dataclasses)

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from rayshim.util.state.exception import RayStateApiException
from rayshim.util.state.options import (
    DEFAULT_DOWNLOAD_FILENAME,
    DEFAULT_LIMIT,
    DEFAULT_LOG_LIMIT,
    DEFAULT_RPC_TIMEOUT,
    GetApiOptions,
    GetLogOptions,
    ListApiOptions,
    ListApiResponse,
    PredicateType,
    StateResource,
    SummaryApiOptions,
    SummaryApiResponse,
    SummaryResource,
    SupportedFilterType,
)
from rayshim.util.state.schema import (
    Humanify,
    StateSchema,
    filter_fields,
    state_column,
)
from rayshim.util.state.summaries import (
    DRIVER_TASK_ID_PREFIX,
    ActorSummaries,
    ActorSummaryPerClass,
    Link,
    NestedTaskSummary,
    ObjectSummaries,
    ObjectSummaryPerKey,
    StateSummary,
    TaskSummaries,
    TaskSummaryPerFuncOrClassName,
)

__all__ = [
    "AVAILABLE_STATES",
    "DEFAULT_DOWNLOAD_FILENAME",
    "DEFAULT_LIMIT",
    "DEFAULT_LOG_LIMIT",
    "DEFAULT_RPC_TIMEOUT",
    "DRIVER_TASK_ID_PREFIX",
    "RAY_MAX_LIMIT_FROM_API_SERVER",
    "RAY_MAX_LIMIT_FROM_DATA_SOURCE",
    "ActorState",
    "ActorSummaries",
    "ActorSummaryPerClass",
    "ClusterEventState",
    "GetApiOptions",
    "GetLogOptions",
    "Humanify",
    "JobState",
    "Link",
    "ListApiOptions",
    "ListApiResponse",
    "NestedTaskSummary",
    "NodeState",
    "ObjectState",
    "ObjectSummaries",
    "ObjectSummaryPerKey",
    "PlacementGroupState",
    "PredicateType",
    "RayStateApiException",
    "RuntimeEnvState",
    "StateResource",
    "StateSchema",
    "StateSummary",
    "SummaryApiOptions",
    "SummaryApiResponse",
    "SummaryResource",
    "SupportedFilterType",
    "TaskState",
    "TaskSummaries",
    "TaskSummaryPerFuncOrClassName",
    "WorkerState",
    "dict_to_state",
    "filter_fields",
    "remove_ansi_escape_codes",
    "resource_to_schema",
    "state_column",
]

#: Rows that one answer may have: any number. Programs that read these names to choose
#: a limit get as many rows as they want.
RAY_MAX_LIMIT_FROM_API_SERVER = 2**31 - 1
RAY_MAX_LIMIT_FROM_DATA_SOURCE = 2**31 - 1

TypeActorStatus = Literal[
    "DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "RESTARTING", "DEAD"
]
TypeNodeStatus = Literal["ALIVE", "DEAD"]
TypePlacementGroupStatus = Literal[
    "PENDING", "PREPARED", "CREATED", "REMOVED", "RESCHEDULING"
]
TypeReferenceType = Literal[
    "ACTOR_HANDLE",
    "PINNED_IN_MEMORY",
    "LOCAL_REFERENCE",
    "USED_BY_PENDING_TASK",
    "CAPTURED_IN_OBJECT",
    "UNKNOWN_STATUS",
]
TypeTaskStatus = Literal[
    "NIL",
    "PENDING_ARGS_AVAIL",
    "PENDING_NODE_ASSIGNMENT",
    "PENDING_OBJ_STORE_MEM_AVAIL",
    "PENDING_ARGS_FETCH",
    "SUBMITTED_TO_WORKER",
    "PENDING_ACTOR_TASK_ARGS_FETCH",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
    "RUNNING",
    "RUNNING_IN_RAY_GET",
    "RUNNING_IN_RAY_WAIT",
    "FINISHED",
    "FAILED",
    "GETTING_AND_PINNING_ARGS",
]
TypeTaskType = Literal[
    "NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK", "DRIVER_TASK"
]
TypeWorkerType = Literal["WORKER", "DRIVER", "SPILL_WORKER", "RESTORE_WORKER"]
TypeWorkerExitType = Literal[
    "SYSTEM_ERROR",
    "INTENDED_SYSTEM_EXIT",
    "USER_ERROR",
    "INTENDED_USER_EXIT",
    "NODE_OUT_OF_MEMORY",
]
_time = Humanify.timestamp


@dataclass
class ActorState(StateSchema):
    """An actor."""

    actor_id: str = state_column(filterable=True)
    class_name: str = state_column(filterable=True)
    state: TypeActorStatus = state_column(filterable=True)
    job_id: str = state_column(filterable=True)
    #: Empty without one.
    name: str | None = state_column(filterable=True)
    #: Where it runs or ran last; None before.
    node_id: str | None = state_column(filterable=True)
    #: 0 before it has a process.
    pid: int | None = state_column(filterable=True)
    ray_namespace: str | None = state_column(filterable=True)
    serialized_runtime_env: str | None = state_column(filterable=False, detail=True)
    required_resources: dict[str, float] | None = state_column(
        filterable=False, detail=True
    )
    #: ``{"actor_died_error_context": {"error_message": ..., ...}}``.
    death_cause: dict[str, Any] | None = state_column(filterable=False, detail=True)
    is_detached: bool | None = state_column(filterable=False, detail=True)
    placement_group_id: str | None = state_column(filterable=True, detail=True)
    repr_name: str | None = state_column(filterable=True, detail=True)
    num_restarts: int | None = state_column(filterable=False, detail=True)
    num_restarts_due_to_lineage_reconstruction: int | None = state_column(
        filterable=False, detail=True
    )
    num_restarts_due_to_node_preemption: int | None = state_column(
        filterable=False, detail=True
    )
    call_site: str | None = state_column(filterable=False, detail=True)
    label_selector: dict[str, str] | None = state_column(filterable=False, detail=True)
    fallback_strategy: dict[str, Any] | None = state_column(
        filterable=False, detail=True
    )


@dataclass
class PlacementGroupState(StateSchema):
    """A placement group."""

    placement_group_id: str = state_column(filterable=True)
    name: str = state_column(filterable=True)
    creator_job_id: str = state_column(filterable=True)
    state: TypePlacementGroupStatus = state_column(filterable=True)
    bundles: list[dict[str, Any]] | None = state_column(filterable=False, detail=True)
    is_detached: bool | None = state_column(filterable=True, detail=True)
    stats: dict[str, Any] | None = state_column(filterable=False, detail=True)
    topology_strategy: dict[str, Any] | None = state_column(
        filterable=False, detail=True
    )
    topology_assignments: dict[str, Any] | None = state_column(
        filterable=False, detail=True
    )


@dataclass
class NodeState(StateSchema):
    """A node, also a dead one."""

    node_id: str = state_column(filterable=True)
    node_ip: str = state_column(filterable=True)
    is_head_node: bool = state_column(filterable=True)
    state: TypeNodeStatus = state_column(filterable=True)
    #: Why it died, or None.
    state_message: str | None = state_column(filterable=False)
    node_name: str = state_column(filterable=True)
    resources_total: dict[str, float] = state_column(
        filterable=False, format_fn=Humanify.node_resources
    )
    labels: dict[str, str] = state_column(filterable=False)
    start_time_ms: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )
    end_time_ms: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )


@dataclass
class JobState(StateSchema):
    """A driver, or an entrypoint that was submitted as a job."""

    #: "DRIVER" or "SUBMISSION".
    type: str = state_column(filterable=True)
    job_id: str | None = state_column(filterable=True, default=None)
    submission_id: str | None = state_column(filterable=True, default=None)
    #: ``{"id", "node_ip_address", "pid"}``.
    driver_info: dict[str, str] | None = state_column(filterable=False, default=None)
    #: "PENDING", "RUNNING", "SUCCEEDED", "FAILED" or "STOPPED".
    status: str = state_column(filterable=True, default="")
    entrypoint: str = state_column(filterable=False, default="")
    message: str | None = state_column(filterable=False, default=None)
    error_type: str | None = state_column(filterable=False, default=None)
    #: Milliseconds since 1970.
    start_time: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )
    end_time: int | None = state_column(filterable=False, detail=True, format_fn=_time)
    metadata: dict[str, str] | None = state_column(filterable=False, detail=True)
    runtime_env: dict[str, Any] | None = state_column(filterable=False, detail=True)
    driver_agent_http_address: str | None = state_column(filterable=False, detail=True)
    driver_node_id: str | None = state_column(filterable=False, detail=True)
    driver_exit_code: int | None = state_column(filterable=False, detail=True)

    @classmethod
    def schema_dict(cls) -> dict[str, str]:
        """The columns and their kinds, in words."""
        return {"entrypoint": "string"}


@dataclass
class WorkerState(StateSchema):
    """A driver or executor process, also one that has ended."""

    worker_id: str = state_column(filterable=True)
    is_alive: bool = state_column(filterable=True)
    worker_type: TypeWorkerType = state_column(filterable=True)
    exit_type: TypeWorkerExitType | None = state_column(filterable=True)
    node_id: str = state_column(filterable=True)
    ip: str = state_column(filterable=True)
    pid: int = state_column(filterable=True)
    exit_detail: str | None = state_column(filterable=False, detail=True)
    worker_launch_time_ms: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )
    worker_launched_time_ms: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )
    start_time_ms: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )
    end_time_ms: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )
    debugger_port: int | None = state_column(filterable=True, detail=True)
    num_paused_threads: int | None = state_column(filterable=True, detail=True)


@dataclass
class ClusterEventState(StateSchema):
    """Something that happened to the cluster."""

    severity: str = state_column(filterable=True)
    time: str = state_column(filterable=False)
    source_type: str = state_column(filterable=True)
    message: str = state_column(filterable=False)
    event_id: str = state_column(filterable=True)
    custom_fields: dict[str, Any] | None = state_column(filterable=False, detail=True)


@dataclass
class TaskState(StateSchema):
    """One attempt at a call of a function, constructor or method."""

    task_id: str = state_column(filterable=True)
    #: 0 for the first run.
    attempt_number: int = state_column(filterable=True)
    name: str = state_column(filterable=True)
    state: TypeTaskStatus = state_column(filterable=True)
    job_id: str = state_column(filterable=True)
    actor_id: str | None = state_column(filterable=True)
    type: TypeTaskType = state_column(filterable=True)
    func_or_class_name: str = state_column(filterable=True)
    parent_task_id: str = state_column(filterable=True)
    node_id: str | None = state_column(filterable=True)
    worker_id: str | None = state_column(filterable=True)
    worker_pid: int | None = state_column(filterable=True)
    #: As in Ray: "TASK_EXECUTION_EXCEPTION", "WORKER_DIED", "TASK_CANCELLED", ...
    error_type: str | None = state_column(filterable=True)
    language: str | None = state_column(filterable=True, detail=True)
    required_resources: dict[str, float] | None = state_column(
        filterable=False, detail=True
    )
    runtime_env_info: dict[str, Any] | None = state_column(
        filterable=False, detail=True
    )
    placement_group_id: str | None = state_column(filterable=True, detail=True)
    events: list[dict[str, Any]] | None = state_column(
        filterable=False, detail=True, format_fn=Humanify.events
    )
    profiling_data: dict[str, Any] | None = state_column(filterable=False, detail=True)
    creation_time_ms: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )
    start_time_ms: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )
    end_time_ms: int | None = state_column(
        filterable=False, detail=True, format_fn=_time
    )
    task_log_info: dict[str, Any] | None = state_column(filterable=False, detail=True)
    error_message: str | None = state_column(filterable=False, detail=True)
    is_debugger_paused: bool | None = state_column(filterable=True, detail=True)
    call_site: str | None = state_column(filterable=False, detail=True)
    label_selector: dict[str, str] | None = state_column(filterable=False, detail=True)
    fallback_strategy: dict[str, Any] | None = state_column(
        filterable=False, detail=True
    )


@dataclass
class ObjectState(StateSchema):
    """A reference that a process holds; one object may have several rows."""

    object_id: str = state_column(filterable=True)
    #: Bytes; -1 while it is not known.
    object_size: int = state_column(filterable=True, format_fn=Humanify.memory)
    task_status: TypeTaskStatus = state_column(filterable=True)
    #: 1 for the first run of the call that makes it.
    attempt_number: int = state_column(filterable=True)
    reference_type: TypeReferenceType = state_column(filterable=True)
    #: "disabled" where it is not recorded.
    call_site: str = state_column(filterable=True)
    type: TypeWorkerType = state_column(filterable=True)
    pid: int = state_column(filterable=True)
    ip: str = state_column(filterable=True)


@dataclass
class RuntimeEnvState(StateSchema):
    """A runtime environment on a node."""

    runtime_env: dict[str, Any] = state_column(filterable=True)
    success: bool = state_column(filterable=True)
    creation_time_ms: float | None = state_column(
        filterable=False, format_fn=Humanify.duration
    )
    node_id: str = state_column(filterable=True)
    ref_cnt: int | None = state_column(filterable=False, detail=True)
    error: str | None = state_column(filterable=True, detail=True)


AVAILABLE_STATES = [
    ActorState,
    PlacementGroupState,
    NodeState,
    WorkerState,
    JobState,
    TaskState,
    ObjectState,
    RuntimeEnvState,
]
_SCHEMAS: dict[StateResource, type[StateSchema]] = {
    StateResource.ACTORS: ActorState,
    StateResource.JOBS: JobState,
    StateResource.NODES: NodeState,
    StateResource.OBJECTS: ObjectState,
    StateResource.PLACEMENT_GROUPS: PlacementGroupState,
    StateResource.RUNTIME_ENVS: RuntimeEnvState,
    StateResource.TASKS: TaskState,
    StateResource.WORKERS: WorkerState,
    StateResource.CLUSTER_EVENTS: ClusterEventState,
}


def resource_to_schema(resource: StateResource) -> type[StateSchema]:
    """The class of the rows of a resource.

    Raises:
        ValueError: it is no resource.
    """
    try:
        return _SCHEMAS[resource]
    except (KeyError, TypeError):
        raise ValueError(f"{resource!r} is no resource that has state") from None


def dict_to_state(d: dict[str, Any], state_resource: StateResource) -> StateSchema:
    """A row from its columns; what is not there is None.

    Raises:
        RayStateApiException: it has columns of something else.
    """
    schema = resource_to_schema(state_resource)
    unknown = sorted(set(d) - schema.columns())
    if unknown:
        raise RayStateApiException(
            f"{schema.__name__} has no column {', '.join(unknown)}"
        )
    return schema(**{name: d.get(name) for name in schema.list_columns()})


_ANSI = re.compile(r"\x1b(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")


def remove_ansi_escape_codes(text: str) -> str:
    """Text without the codes that colour it on a terminal.

    Example:
        >>> remove_ansi_escape_codes("\\x1b[31mred\\x1b[0m")
        'red'
    """
    return _ANSI.sub("", text)
