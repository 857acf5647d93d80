"""Settings of a session, read once at ``init``.

Each field names its unit; its environment variable is ``RAYSHIM_`` and the field in
capitals, and says why the value cannot be chosen automatically.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

#: Settings that Ray has under the same name, with RAY_ in front.
_RAY_NAMES = frozenset(
    (
        "memory_usage_threshold",
        "memory_monitor_refresh_ms",
        "metrics_report_interval_ms",
        "rotation_max_bytes",
        "rotation_backup_count",
        "task_oom_retries",
        "scheduler_spread_threshold",
    )
)
#: Settings that Ray has under other names, and only with RAY_USE_TLS=1.
_RAY_TLS_NAMES = {
    "tls_ca": "RAY_TLS_CA_CERT",
    "tls_cert": "RAY_TLS_SERVER_CERT",
    "tls_key": "RAY_TLS_SERVER_KEY",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Values that a user or platform engineer may have reason to change."""

    #: Values up to this many bytes travel in messages, larger ones through the
    #: node store. Depends on the machine's copy speed; Ray's value.
    inline_limit_bytes: int = 100 * 1024
    #: Seconds before a waiting ``get``, or a call that does not begin, is explained
    #: once; 0 turns it off. A matter of taste.
    pending_warn_s: float = 30.0
    #: Seconds before a waiting ``get`` is looked at for deadlocks; 0 turns that off. It
    #: costs a few messages for each wait that lasts so long.
    deadlock_report_s: float = 1.0
    #: Bytes that the node store may hold; 0: as ``init(object_store_memory=)`` says,
    #: or 60 % of the memory that is free at the start.
    object_store_limit_bytes: int = 0
    #: Where values go when the node store is full: a folder, or a URL that fsspec
    #: knows; empty: the session's folder. Only you know which disk is large and fast.
    spill_dir: str = ""
    #: Bytes that may lie there; 0: as many as leave 5 % of the disk free; -1: nothing
    #: is spilled. Others may need the disk.
    spill_limit_bytes: int = 0
    #: Bytes of descriptions of calls that are kept to make lost values again; the
    #: oldest go first. Memory of the owner against what can be rebuilt; Ray's value.
    lineage_bytes: int = 1 << 30
    #: Seconds that a node may take to hand over a value that it has, before getting it
    #: fails: how long a stopped machine may stay away. Ray's value.
    fetch_timeout_s: float = 600.0
    #: Share of the node's memory above which executors are killed; the kernel would
    #: kill anything at 1. Ray's value (``RAY_memory_usage_threshold``).
    memory_usage_threshold: float = 0.95
    #: Milliseconds between looks at the memory; 0 turns the monitor off. Ray's value
    #: (``RAY_memory_monitor_refresh_ms``).
    memory_monitor_refresh_ms: int = 250
    #: Bytes that a node's executors and store may use together; 0: what the machine or
    #: its container has. Several nodes on one machine cannot see their shares.
    memory_limit_bytes: int = 0
    #: Further runs of a task that was killed for memory, beside its ``max_retries``;
    #: -1: without limit. Ray's value (``RAY_task_oom_retries``).
    task_oom_retries: int = -1
    #: Seconds before the first of them; doubled for each further one. Ray's value.
    task_oom_retry_delay_s: float = 1.0
    #: Used share of the own node up to which the head places actors there; above, on
    #: the node that is used least. Data and work together against free machines; Ray's
    #: value (``RAY_scheduler_spread_threshold``).
    scheduler_spread_threshold: float = 0.5
    #: A pickled function larger than this warns, naming what it captured.
    function_warn_bytes: int = 10 * 1024 * 1024
    #: A pickled function larger than this is refused (Ray's limit).
    function_limit_bytes: int = 100_000_000
    #: Executors that are started before the first call; -1: one for each CPU.
    #: Memory against the latency of first calls.
    prestart_executors: int = -1
    #: When Dask joins the node process: "background" or "off" (tests of the core).
    dask: str = "background"
    #: TCP port of Dask's own dashboard, on loopback; 0: any that is free; -1: none. It
    #: knows no token, so that all users of the head's host may look at it.
    dask_dashboard_port: int = -1
    #: Seconds in which repeated log lines of executors are folded into one.
    log_fold_s: float = 5.0
    #: Seconds for which processes wait for a head that is gone, before what they ask
    #: it fails. A matter of how long its restart takes.
    head_grace_s: float = 60.0
    #: Where a cluster's head keeps what must survive it: empty for a SQLite file in its
    #: session folder, or sqlite:///PATH, redis://HOST:PORT/DB.
    journal_url: str = ""
    #: Name of the cluster in a journal that others use too; empty: its session's name.
    cluster_name: str = ""
    #: Seconds without a word after which a node counts as dead; suspected after half of
    #: it. Short finds dead hosts soon, long forgives overloaded ones.
    node_timeout_s: float = 5.0
    #: Seconds for which a node that is asked to leave waits for its running calls.
    drain_timeout_s: float = 30.0
    #: Seconds in which nodes and drivers may come back to a restarted head.
    head_rejoin_s: float = 3.0
    #: TCP port of the head's HTTP endpoint; 0: any that is free; -1: none. Until the
    #: first request it is no more than a socket.
    http_port: int = 0
    #: Names, with commas between them, by which it may be called beside its address.
    http_hosts: str = ""
    #: Address that the dashboard listens at. Beyond this host only if you say so.
    dashboard_host: str = "127.0.0.1"
    #: Its TCP port; 0: 8265, or the next one that is free; -1: no dashboard. Until the
    #: first visit it is no more than a socket.
    dashboard_port: int = 0
    #: Calls that have ended of which each node keeps in memory how, for lists and
    #: timelines; the files have all. Memory against how far back lists reach.
    task_events_kept: int = 100_000
    #: Bytes that the event files of each node may take on disk, the oldest go first; 0:
    #: none are written. Your disk.
    event_log_bytes: int = 256 << 20
    #: Bytes of the newest of them, which is then made an Arrow file.
    event_file_bytes: int = 4 << 20
    #: Sessions that are over of which events and logs are kept; 0: of none. Your disk.
    history_sessions: int = 10
    #: Bytes that these may take; the oldest go first, the newest stays.
    history_bytes: int = 1 << 30
    #: TCP port of each node's metrics; 0: any that is free; -1: none. Until the first
    #: scrape it is no more than a socket.
    metrics_port: int = 0
    #: Milliseconds between reports of what a process counts. How fresh metrics are,
    #: against messages; Ray's value (``RAY_metrics_report_interval_ms``).
    metrics_report_interval_ms: int = 10_000
    #: Bytes of an executor's log file before it is rotated; 0: never. Your disk; Ray's
    #: value (``RAY_ROTATION_MAX_BYTES``).
    rotation_max_bytes: int = 512 * 1024 * 1024
    #: Rotated files that are kept of each. Ray's value (``RAY_ROTATION_BACKUP_COUNT``).
    rotation_backup_count: int = 5
    #: Bytes that one folder or archive of a runtime_env may have, packed; Ray's value.
    runtime_env_package_bytes: int = 512 << 20
    #: Bytes that all of them together may take on the head's disk; those go first that
    #: were used the longest ago.
    runtime_env_store_bytes: int = 10 << 30
    #: Where hosts keep what pip, uv and conda installed, for later sessions too; empty:
    #: beside the sessions' folders. Only you know which disk is large.
    runtime_env_cache_dir: str = ""
    #: Bytes that unpacked files and installed packages may each take on a host; what no
    #: executor uses goes first. Ray's value.
    runtime_env_cache_bytes: int = 10 << 30
    #: Days after which what nobody used is removed from there; 0: never.
    runtime_env_cache_days: float = 14.0
    #: TCP ports that drivers and executors listen at, as "LOW-HIGH" or with commas
    #: between them; empty: any that is free. A firewall may let only some through.
    worker_ports: str = ""
    #: Certificate of the cluster's authority, for TLS between hosts; with the next two
    #: it turns TLS on. ``rayshim cert`` makes a set. (``RAY_TLS_CA_CERT``)
    tls_ca: str = ""
    #: Certificate of this host, signed by that authority. (``RAY_TLS_SERVER_CERT``)
    tls_cert: str = ""
    #: Its key, which only this user may read. (``RAY_TLS_SERVER_KEY``)
    tls_key: str = ""
    #: Name that all certificates have; empty: names are not checked between
    #: processes, and each node's own is by Flight.
    tls_name: str = ""
    #: Seconds that the node process may take to come up. Slow disks need more.
    start_timeout_s: float = 60.0

    @classmethod
    def from_environment(cls, overrides: dict[str, Any] | None = None) -> Settings:
        """Settings from defaults, environment and ``overrides``, in that order.

        Args:
            overrides: names and values, as in ``init(_system_config=...)``.

        Raises:
            ValueError: an unknown name, or a value of the wrong type.
        """
        values: dict[str, Any] = {}
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, field in fields.items():
            text = os.environ.get("RAYSHIM_" + name.upper())
            if text is None and name in _RAY_NAMES:
                ray_text = os.environ.get("RAY_" + name.upper())
                text = os.environ.get("RAY_" + name, ray_text)
            if text is None and name in _RAY_TLS_NAMES:
                if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                    text = os.environ.get(_RAY_TLS_NAMES[name])
            if text is not None:
                values[name] = _parse(name, text, type(field.default))
        for name, value in (overrides or {}).items():
            if name not in fields:
                raise ValueError(
                    f"unknown setting {name!r}; known: {', '.join(sorted(fields))}"
                )
            kind = type(fields[name].default)
            values[name] = _parse(name, value, kind)
        return cls(**values)


def _parse(name: str, value: Any, kind: type) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"setting {name} must be of type {kind.__name__}, not {value!r}"
        ) from None
