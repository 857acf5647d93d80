"""The client behind ``ray.util.state``: asks one cluster for rows and counts them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rayshim import exceptions
from rayshim._core import asking
from rayshim.util.state import filtering, sources
from rayshim.util.state.common import (
    ActorSummaries,
    GetApiOptions,
    ListApiOptions,
    ListApiResponse,
    ObjectSummaries,
    StateResource,
    StateSummary,
    SummaryApiOptions,
    SummaryResource,
    TaskSummaries,
    dict_to_state,
    filter_fields,
    resource_to_schema,
)
from rayshim.util.state.exception import RayStateApiException
from rayshim.util.state.options import Filter

#: Seconds that a node or process may take to answer.
ANSWER_LIMIT_S = 5.0
#: Of the lines about those who kept silent, in an error.
SHOWN_SILENT = 5
#: Resource -> its id, and the digits that one has.
_IDS = {
    StateResource.ACTORS: ("actor_id", 32),
    StateResource.NODES: ("node_id", 56),
    StateResource.PLACEMENT_GROUPS: ("placement_group_id", 36),
    StateResource.WORKERS: ("worker_id", 0),
    StateResource.TASKS: ("task_id", 48),
    StateResource.OBJECTS: ("object_id", 56),
    StateResource.JOBS: ("submission_id", 0),
}


class StateApiClient:
    """Asks one cluster.

    Args:
        address: as for the functions of :mod:`rayshim.util.state.api`.
        cookies: refused: there is no HTTP on the way.
        headers: the same.

    Raises:
        ConnectionError: there is no such cluster.
        ValueError: ``cookies`` or ``headers`` are given.

    Example:
        >>> client = StateApiClient()  # doctest: +SKIP
        >>> client.list(StateResource.NODES, ListApiOptions(), True)  # doctest: +SKIP
    """

    def __init__(
        self,
        address: str | None = None,
        cookies: dict[str, Any] | None = None,
        headers: dict[str, Any] | None = None,
    ) -> None:
        if cookies or headers:
            raise ValueError(
                "StateApiClient asks the cluster itself and not its dashboard: cookies "
                "and headers have no place there; leave them out"
            )
        self._address = address
        if address or not _has_session():
            from rayshim._core.clusters import find_cluster

            find_cluster(address)

    def get_address(self) -> str:
        """What is asked, as users write it."""
        if not self._address and _has_session():
            from rayshim._core import current

            assert current.peer is not None
            return current.peer.cluster_address
        from rayshim._core.clusters import find_cluster

        return find_cluster(self._address).address

    def get_version(self) -> str:
        """The version of Ray's interface that the cluster has."""
        import rayshim

        return rayshim.__version__

    def get(
        self,
        resource: StateResource,
        id: str,
        options: GetApiOptions | None,
        _explain: bool = False,
    ) -> Any:
        """One row, with all columns.

        Returns:
            The row; None if there is none; of a task with several attempts, and of an
            object, a list.

        Raises:
            ValueError: rows of this resource have no id.
            RayStateApiException: the id is none, or the cluster does not answer.
        """
        if resource not in _IDS:
            raise ValueError(f"Can't get {resource.name} by id.")
        column, digits = _IDS[resource]
        if digits and len(id) != digits:
            raise RayStateApiException(
                f"{column} {id!r} is none: that is {digits} hex digits"
            )
        options = options or GetApiOptions()
        found = self._find(resource, options.timeout, [(column, "=", id)])
        if not found.result and resource is StateResource.JOBS:
            found = self._find(resource, options.timeout, [("job_id", "=", id)])
        if _explain:
            _warn_silent(resource, found)
        rows = [dict_to_state(_whole(resource, row), resource) for row in found.result]
        if resource is StateResource.OBJECTS:
            return rows
        if resource is StateResource.TASKS and len(rows) > 1:
            return rows
        return rows[0] if rows else None

    def list(
        self,
        resource: StateResource,
        options: ListApiOptions,
        raise_on_missing_output: bool,
        _explain: bool = False,
    ) -> list[Any]:
        """Rows of a resource.

        Raises:
            RayStateApiException: a filter is none, the limit is negative, the cluster
                does not answer, or part of it and that is not to be borne.
        """
        response = self.respond(resource, options)
        if raise_on_missing_output and response.partial_failure_warning:
            raise RayStateApiException(response.partial_failure_warning)
        if _explain:
            _explain_cut(resource, response)
            _warn_silent(resource, response)
        return [dict_to_state(row, resource) for row in response.result]

    def respond(
        self, resource: StateResource, options: ListApiOptions
    ) -> ListApiResponse:
        """Rows as dictionaries, cut to the limit, and what is known of the rest."""
        if options.limit < 0:
            raise RayStateApiException(
                f"limit={options.limit} is no number of rows: give 0 or more"
            )
        if options.has_conflicting_filters():
            return ListApiResponse(0, 0, 0, [])
        response = self._find(resource, options.timeout, options.filters or [])
        schema = resource_to_schema(resource)
        response.result = [
            filter_fields(row, schema, options.detail)
            for row in response.result[: options.limit]
        ]
        return response

    def summary(
        self,
        resource: SummaryResource,
        *,
        options: SummaryApiOptions,
        raise_on_missing_output: bool,
        _explain: bool = False,
    ) -> dict[str, Any]:
        """Counts of a resource.

        Raises:
            RayStateApiException: the cluster does not answer, or part of it and that
                is not to be borne, or ``summary_by`` is nothing that it counts by.
        """
        timeout = max(1, int(options.timeout * 0.8))
        kind = StateResource(resource.value)
        found = self._find(kind, timeout, options.filters or [])
        if raise_on_missing_output and found.partial_failure_warning:
            raise RayStateApiException(found.partial_failure_warning)
        if _explain:
            _warn_silent(kind, found)
        summary: Any
        if resource is SummaryResource.ACTORS:
            summary = ActorSummaries.to_summary(actors=found.result)
        elif resource is SummaryResource.OBJECTS:
            summary = ObjectSummaries.to_summary(objects=found.result)
        elif options.summary_by in (None, "func_name"):
            summary = TaskSummaries.to_summary_by_func_name(tasks=found.result)
        elif options.summary_by == "lineage":
            actors = self._find(StateResource.ACTORS, timeout, []).result
            summary = TaskSummaries.to_summary_by_lineage(
                tasks=found.result, actors=actors
            )
        else:
            raise RayStateApiException(
                f"summary_by is 'func_name' or 'lineage', not {options.summary_by!r}"
            )
        return asdict(StateSummary({"cluster": summary}))["node_id_to_summary"]  # type: ignore[no-any-return]

    def _find(
        self, resource: StateResource, timeout: int, filters: Sequence[Filter]
    ) -> ListApiResponse:
        schema = resource_to_schema(resource)
        filtering.check(filters, schema)
        limit_s = min(ANSWER_LIMIT_S, timeout)
        try:
            with asking.control_of(self._address, timeout) as control:
                found = sources.rows_of(control, resource, limit_s)
        except (RuntimeError, exceptions.RayError) as error:
            raise RayStateApiException(
                f"the {_words(resource)} could not be listed: {error}"
            ) from error
        passed = filtering.passing(found.rows, list(filters))
        count = len(found.rows)
        return ListApiResponse(
            count, count, len(passed), passed, _missing(resource, found.silent)
        )


def _has_session() -> bool:
    from rayshim._core import current

    return current.peer is not None and not current.peer.ended


def _words(resource: StateResource) -> str:
    return resource.value.replace("_", " ")


def _whole(resource: StateResource, row: dict[str, Any]) -> dict[str, Any]:
    return filter_fields(row, resource_to_schema(resource), True)


def _missing(resource: StateResource, silent: Sequence[str]) -> str:
    """What is said of those who did not answer; empty if all did."""
    if not silent:
        return ""
    shown = "; ".join(silent[:SHOWN_SILENT])
    more = len(silent) - SHOWN_SILENT
    if more > 0:
        shown += f"; and {more} more"
    return (
        f"the list of {_words(resource)} is not whole: {len(silent)} of those who were "
        f"asked gave no answer within {ANSWER_LIMIT_S:g} s ({shown}). Are they busy in "
        "code that does not let Python run, or stopped? Ask again, or pass "
        "raise_on_missing_output=False to do with what is there."
    )


def _warn_silent(resource: StateResource, response: ListApiResponse) -> None:
    if response.partial_failure_warning:
        warnings.warn(response.partial_failure_warning, RuntimeWarning, stacklevel=4)


def _explain_cut(resource: StateResource, response: ListApiResponse) -> None:
    left = response.num_filtered - len(response.result)
    if left > 0:
        warnings.warn(
            f"{len(response.result)} of {response.num_filtered} {_words(resource)} are "
            f"shown: raise limit to see the other {left}, or choose with filters",
            UserWarning,
            stacklevel=4,
        )
