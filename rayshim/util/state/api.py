"""``ray.util.state``: lists, single rows and summaries of what a cluster has and does.

Answers are as of now: who asks for tasks asks their owners and executors, so that what
a program has done before is there. All functions take

- ``address``: as ``init(address=)``, or the URL of a dashboard; None: the session of
  this process, else what RAY_ADDRESS says, else the newest of this user on this host;
- ``timeout``: seconds;
- ``raise_on_missing_output``: raise if somebody who should know something does not
  answer; else it is a warning;
- ``_explain``: say how many rows were cut off by the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rayshim.util.state.client import StateApiClient as StateApiClient
from rayshim.util.state.common import (
    DEFAULT_LIMIT,
    DEFAULT_RPC_TIMEOUT,
    ActorState,
    GetApiOptions,
    JobState,
    ListApiOptions,
    NodeState,
    ObjectState,
    PlacementGroupState,
    RuntimeEnvState,
    StateResource,
    SummaryApiOptions,
    SummaryResource,
    TaskState,
    WorkerState,
)
from rayshim.util.state.options import Filter


def get_actor(
    id: str,
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    _explain: bool = False,
) -> ActorState | None:
    """An actor by its id, or None.

    Args:
        id: hex.
        address: see the module's text, also on the rest.
        timeout: seconds.

    Raises:
        RayStateApiException: it is no id, or the cluster does not answer.
        ConnectionError: there is no such cluster.

    Example:
        >>> get_actor(handle._actor_id.hex()).state  # doctest: +SKIP
        'ALIVE'
    """
    return _get(StateResource.ACTORS, id, address, timeout, _explain)  # type: ignore[no-any-return]


def get_job(
    id: str,
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    _explain: bool = False,
) -> JobState | None:
    """A job by its submission id, or a driver by its job id; see :func:`get_actor`."""
    return _get(StateResource.JOBS, id, address, timeout, _explain)  # type: ignore[no-any-return]


def get_placement_group(
    id: str,
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    _explain: bool = False,
) -> PlacementGroupState | None:
    """A placement group by its id, or None; see :func:`get_actor`."""
    return _get(StateResource.PLACEMENT_GROUPS, id, address, timeout, _explain)  # type: ignore[no-any-return]


def get_node(
    id: str,
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    _explain: bool = False,
) -> NodeState | None:
    """A node by its id, or None; see :func:`get_actor`."""
    return _get(StateResource.NODES, id, address, timeout, _explain)  # type: ignore[no-any-return]


def get_worker(
    id: str,
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    _explain: bool = False,
) -> WorkerState | None:
    """A process by its worker id, or None; see :func:`get_actor`."""
    return _get(StateResource.WORKERS, id, address, timeout, _explain)  # type: ignore[no-any-return]


def get_task(
    id: Any,
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    _explain: bool = False,
) -> TaskState | list[TaskState] | None:
    """A call by its id, or None; a list if it has several attempts.

    Args:
        id: hex, or the reference that the call returned.
        address: see the module's text, also on the rest.
        timeout: seconds.
    """
    from rayshim._core.refs import ObjectRef

    if isinstance(id, ObjectRef):
        id = id.task_id().hex()
    return _get(StateResource.TASKS, id, address, timeout, _explain)  # type: ignore[no-any-return]


def get_objects(
    id: str,
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    _explain: bool = False,
) -> list[ObjectState]:
    """The references to an object, of all processes; see :func:`get_actor`."""
    return _get(StateResource.OBJECTS, id, address, timeout, _explain)  # type: ignore[no-any-return]


def _get(
    resource: StateResource, id: str, address: str | None, timeout: int, explain: bool
) -> Any:
    client = StateApiClient(address=address)
    return client.get(resource, id, GetApiOptions(timeout=timeout), _explain=explain)


def _list(
    resource: StateResource,
    address: str | None,
    filters: list[Filter] | None,
    limit: int,
    timeout: int,
    detail: bool,
    raise_on_missing_output: bool,
    explain: bool,
) -> list[Any]:
    options = ListApiOptions(
        limit=limit, timeout=timeout, filters=filters, detail=detail
    )
    return StateApiClient(address=address).list(
        resource, options, raise_on_missing_output, _explain=explain
    )


def list_actors(
    address: str | None = None,
    filters: list[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[ActorState]:
    """The actors of a cluster; of those that ended, the last 2,000.

    Args:
        address: see the module's text, also on the rest.
        filters: (column, "=" or "!=", value); a row has to pass all of them.
        limit: rows at most, as many as you like.
        timeout: seconds.
        detail: with the columns that are costly or rarely needed.

    Raises:
        ValueError: a filter compares otherwise, or a value is of another type.
        RayStateApiException: a column does not filter, or the cluster, or part of it,
            does not answer.
        ConnectionError: there is no such cluster.

    Example:
        >>> list_actors(filters=[("state", "=", "ALIVE")])  # doctest: +SKIP
    """
    return _list(
        StateResource.ACTORS,
        address,
        filters,
        limit,
        timeout,
        detail,
        raise_on_missing_output,
        _explain,
    )


def list_placement_groups(
    address: str | None = None,
    filters: list[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[PlacementGroupState]:
    """The placement groups of a cluster; see :func:`list_actors`."""
    return _list(
        StateResource.PLACEMENT_GROUPS,
        address,
        filters,
        limit,
        timeout,
        detail,
        raise_on_missing_output,
        _explain,
    )


def list_nodes(
    address: str | None = None,
    filters: list[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[NodeState]:
    """The nodes of a cluster, dead ones too; see :func:`list_actors`."""
    return _list(
        StateResource.NODES,
        address,
        filters,
        limit,
        timeout,
        detail,
        raise_on_missing_output,
        _explain,
    )


def list_jobs(
    address: str | None = None,
    filters: list[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[JobState]:
    """Drivers and submitted jobs; see :func:`list_actors`."""
    return _list(
        StateResource.JOBS,
        address,
        filters,
        limit,
        timeout,
        detail,
        raise_on_missing_output,
        _explain,
    )


def list_workers(
    address: str | None = None,
    filters: list[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[WorkerState]:
    """Processes, those too that ended lately; see :func:`list_actors`."""
    return _list(
        StateResource.WORKERS,
        address,
        filters,
        limit,
        timeout,
        detail,
        raise_on_missing_output,
        _explain,
    )


def list_tasks(
    address: str | None = None,
    filters: list[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[TaskState]:
    """Calls, one row for each attempt; see :func:`list_actors`.

    Those that ended are there as long as their node keeps them (setting
    ``task_events_kept``); all of them are in the event files.
    """
    return _list(
        StateResource.TASKS,
        address,
        filters,
        limit,
        timeout,
        detail,
        raise_on_missing_output,
        _explain,
    )


def list_objects(
    address: str | None = None,
    filters: list[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[ObjectState]:
    """The references that processes hold; see :func:`list_actors`."""
    return _list(
        StateResource.OBJECTS,
        address,
        filters,
        limit,
        timeout,
        detail,
        raise_on_missing_output,
        _explain,
    )


def list_runtime_envs(
    address: str | None = None,
    filters: list[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[RuntimeEnvState]:
    """The runtime environments that nodes have; see :func:`list_actors`."""
    return _list(
        StateResource.RUNTIME_ENVS,
        address,
        filters,
        limit,
        timeout,
        detail,
        raise_on_missing_output,
        _explain,
    )


def list_cluster_events(
    address: str | None = None,
    filters: list[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[Any]:
    """The newest changes of the cluster; see :func:`list_actors`."""
    return _list(
        StateResource.CLUSTER_EVENTS,
        address,
        filters,
        limit,
        timeout,
        detail,
        raise_on_missing_output,
        _explain,
    )


def summarize_tasks(
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, Any]:
    """Counts of calls by name and state; see :func:`list_actors`.

    Returns:
        ``{"cluster": {"summary": ..., ...}}``, as in Ray.
    """
    options = SummaryApiOptions(timeout=timeout)
    return StateApiClient(address=address).summary(
        SummaryResource.TASKS,
        options=options,
        raise_on_missing_output=raise_on_missing_output,
        _explain=_explain,
    )


def summarize_actors(
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, Any]:
    """Counts of actors by class and state; see :func:`list_actors`.

    Returns:
        ``{"cluster": {"summary": ..., ...}}``, as in Ray.
    """
    options = SummaryApiOptions(timeout=timeout)
    return StateApiClient(address=address).summary(
        SummaryResource.ACTORS,
        options=options,
        raise_on_missing_output=raise_on_missing_output,
        _explain=_explain,
    )


def summarize_objects(
    address: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, Any]:
    """Counts and sizes of objects by call site; see :func:`list_actors`.

    Returns:
        ``{"cluster": {"summary": ..., ...}}``, as in Ray.
    """
    options = SummaryApiOptions(timeout=timeout)
    return StateApiClient(address=address).summary(
        SummaryResource.OBJECTS,
        options=options,
        raise_on_missing_output=raise_on_missing_output,
        _explain=_explain,
    )


def list_logs(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    glob_filter: str | None = None,
    timeout: int = DEFAULT_RPC_TIMEOUT,
) -> dict[str, list[str]]:
    """Names of the log files of a node, by what they are of.

    Args:
        address: see the module's text.
        node_id: hex; or ``node_ip``.
        node_ip: address of the node.
        glob_filter: pattern that names have to match.
        timeout: seconds.
    """
    from rayshim.util.state import logs

    return logs.list_logs(address, node_id, node_ip, glob_filter, timeout)


def get_log(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    filename: str | None = None,
    actor_id: str | None = None,
    task_id: str | None = None,
    pid: int | None = None,
    follow: bool = False,
    tail: int = -1,
    timeout: int = DEFAULT_RPC_TIMEOUT,
    suffix: str = "out",
    encoding: str | None = "utf-8",
    errors: str | None = "strict",
    submission_id: str | None = None,
    attempt_number: int = 0,
    _interval: float | None = None,
    filter_ansi_code: bool = False,
) -> Iterator[Any]:
    """Lines of a log: of a file, actor, task, process or job.

    Args:
        address: see the module's text.
        node_id: hex; or ``node_ip``, where ``filename`` or ``pid`` is.
        node_ip: address of the node.
        filename: as :func:`list_logs` names it.
        actor_id: hex.
        task_id: hex.
        pid: of an executor.
        follow: go on as lines come.
        tail: lines from the end; -1: all.
        timeout: seconds.
        suffix: "out" or "err".
        encoding: of the text; None: bytes.
        errors: as for ``bytes.decode``.
        submission_id: of a job.
        attempt_number: of the task.
        filter_ansi_code: take colours out.
    """
    from rayshim.util.state import logs

    return logs.get_log(
        address=address,
        node_id=node_id,
        node_ip=node_ip,
        filename=filename,
        actor_id=actor_id,
        task_id=task_id,
        pid=pid,
        follow=follow,
        tail=tail,
        timeout=timeout,
        suffix=suffix,
        encoding=encoding,
        errors=errors,
        submission_id=submission_id,
        attempt_number=attempt_number,
        _interval=_interval,
        filter_ansi_code=filter_ansi_code,
    )
