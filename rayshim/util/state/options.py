"""What can be asked for, and how: resources, limits, filters."""

from __future__ import annotations

import dataclasses
import math
import warnings
from enum import Enum, unique
from typing import Any

#: Seconds that an answer may take.
DEFAULT_RPC_TIMEOUT = 30
#: Rows that are given without a limit of the user's own.
DEFAULT_LIMIT = 100
#: Lines of a log that are given.
DEFAULT_LOG_LIMIT = 1000
DEFAULT_DOWNLOAD_FILENAME = "file.txt"

PredicateType = str
SupportedFilterType = str | bool | int | float
#: ``(column, "=" or "!=", value)``.
Filter = tuple[str, PredicateType, SupportedFilterType]
_PREDICATES = ("=", "!=")


@unique
class StateResource(Enum):
    """What can be listed."""

    ACTORS = "actors"
    JOBS = "jobs"
    PLACEMENT_GROUPS = "placement_groups"
    NODES = "nodes"
    WORKERS = "workers"
    TASKS = "tasks"
    OBJECTS = "objects"
    RUNTIME_ENVS = "runtime_envs"
    CLUSTER_EVENTS = "cluster_events"


@unique
class SummaryResource(Enum):
    """What can be summarized."""

    ACTORS = "actors"
    TASKS = "tasks"
    OBJECTS = "objects"


def _check_timeout(timeout: Any, share: float) -> int:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise ValueError(f"timeout is a number of seconds, not {timeout!r}")
    if timeout != timeout or timeout in (math.inf, -math.inf):
        raise ValueError(f"timeout is a number of seconds, not {timeout!r}")
    return max(1, int(timeout * share))


@dataclasses.dataclass
class ListApiOptions:
    """How to list.

    Args:
        limit: rows at most; all of them for a large number, there is no upper bound.
        timeout: seconds.
        detail: with the columns that are costly or rarely needed.
        filters: (column, "=" or "!=", value); a row has to pass all of them.
        exclude_driver: leave rows out that stand for programs rather than calls.
        server_timeout_multiplier: share of the time that those who are asked have.

    Raises:
        ValueError: a value is of another type, or a filter compares otherwise.
    """

    limit: int = DEFAULT_LIMIT
    timeout: int = DEFAULT_RPC_TIMEOUT
    detail: bool = False
    filters: list[Filter] | None = dataclasses.field(default_factory=list)
    exclude_driver: bool = True
    server_timeout_multiplier: float = 0.8

    def __post_init__(self) -> None:
        self.timeout = _check_timeout(self.timeout, self.server_timeout_multiplier)
        if isinstance(self.limit, bool) or not isinstance(self.limit, int):
            raise ValueError(f"limit is a number of rows, not {self.limit!r}")
        self.filters = _checked(self.filters)

    def has_conflicting_filters(self) -> bool:
        """Whether two "=" filters ask for different values of one column."""
        wanted: dict[str, Any] = {}
        for name, predicate, value in self.filters or ():
            if predicate != "=":
                continue
            if wanted.setdefault(name, value) != value:
                warnings.warn(
                    f"two '=' filters ask for column {name!r} to be both "
                    f"{wanted[name]!r} and {value!r}: no row can pass",
                    UserWarning,
                    stacklevel=2,
                )
                return True
        return False


def _checked(filters: Any) -> list[Filter]:
    if filters is None:
        return []
    if not isinstance(filters, (list, tuple)):
        raise ValueError(
            f"filters is a list of (column, predicate, value), not {filters!r}"
        )
    checked = []
    for one in filters:
        if not isinstance(one, (list, tuple)) or len(one) != 3:
            raise ValueError(f"a filter is (column, predicate, value), not {one!r}")
        name, predicate, value = one
        if predicate not in _PREDICATES:
            raise ValueError(
                f"Unsupported filter predicate {predicate} is given. Available "
                "predicates: =, !=."
            )
        checked.append((str(name), str(predicate), value))
    return checked


@dataclasses.dataclass
class GetApiOptions:
    """How to get one row; see :class:`ListApiOptions`."""

    timeout: int = DEFAULT_RPC_TIMEOUT
    server_timeout_multiplier: float = 0.8

    def __post_init__(self) -> None:
        self.timeout = _check_timeout(self.timeout, self.server_timeout_multiplier)


@dataclasses.dataclass
class SummaryApiOptions:
    """How to summarize.

    Args:
        timeout: seconds.
        filters: which rows are counted.
        summary_by: for tasks "func_name" (default) or "lineage".
    """

    timeout: int = DEFAULT_RPC_TIMEOUT
    filters: list[Filter] | None = dataclasses.field(default_factory=list)
    summary_by: str | None = None

    def __post_init__(self) -> None:
        self.filters = _checked(self.filters)


@dataclasses.dataclass
class GetLogOptions:
    """Which log to read: by its file, or by the actor, task, process or job."""

    timeout: int
    node_id: str | None = None
    node_ip: str | None = None
    media_type: str = "file"
    filename: str | None = None
    download_filename: str = DEFAULT_DOWNLOAD_FILENAME
    actor_id: str | None = None
    task_id: str | None = None
    attempt_number: int = 0
    pid: int | None = None
    lines: int = DEFAULT_LOG_LIMIT
    interval: float | None = None
    suffix: str = "out"
    submission_id: str | None = None

    def __post_init__(self) -> None:
        if self.media_type not in ("file", "stream"):
            raise ValueError(f"media_type is 'file' or 'stream', not {self.media_type}")
        if self.suffix not in ("out", "err"):
            raise ValueError(f"suffix is 'out' or 'err', not {self.suffix}")


@dataclasses.dataclass
class ListApiResponse:
    """Rows, and what is known of those that are missing."""

    #: Rows before filters and limit.
    total: int
    #: As ``total``: nothing is cut off at its source.
    num_after_truncation: int
    #: Rows that pass the filters.
    num_filtered: int
    result: list[dict[str, Any]]
    partial_failure_warning: str | None = ""
    warnings: list[str] | None = None


@dataclasses.dataclass
class SummaryApiResponse:
    """A summary, and what is known of what is missing in it."""

    total: int
    num_after_truncation: int
    num_filtered: int
    result: Any = None
    partial_failure_warning: str | None = ""
    warnings: list[str] | None = None
