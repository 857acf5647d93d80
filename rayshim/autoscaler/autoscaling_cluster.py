"""A cluster on this machine that starts and stops its nodes by itself."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from typing import Any

from rayshim.autoscaler.control import HeadControl
from rayshim.autoscaler.local_provider import LocalProvider
from rayshim.autoscaler.loop import Autoscaler
from rayshim.autoscaler.status import Status
from rayshim.cluster_utils import Cluster
from rayshim.lineage.node_groups import NodeGroup

#: Nodes of a group that may start at once however few run, as in Ray.
INITIAL_NODES = 5
#: As in Ray's configuration for clusters on one machine.
MAX_WORKERS, IDLE_TIMEOUT_MINUTES, UPSCALING_SPEED = 8, 0.1, 1.0
#: Seconds between two turns; a node of this machine starts in about one.
INTERVAL_S = 0.25
#: Seconds that a start should take here at most.
COLD_START_S = 15.0

#: Parts of Ray's configuration that say nothing about nodes of this machine.
_IGNORED = frozenset(("auth", "cluster_name", "docker", "head_node_type", "provider"))


class AutoscalingCluster:
    """A head and groups of nodes that come and go as work needs them.

    Args:
        head_resources: of the head's node, e.g. ``{"CPU": 0}``.
        worker_node_types: name -> ``{"resources": {...}, "node_config": {},
            "min_workers": 0, "max_workers": 1, "labels": {...}}``.
        autoscaler_v2: accepted; there is one autoscaler.
        idle_timeout_minutes: a node without work for so long leaves (0.1).
        max_workers: nodes of all groups together (8).
        upscaling_speed: nodes of a group that may start at once for single requests,
            for each one that runs (1); five may in any case.
        **config_kwargs: other parts of Ray's configuration: those that say nothing
            about nodes of this machine are ignored.

    Raises:
        TypeError: a part of the configuration is not known, or of another type.
        ValueError: a group's numbers contradict each other.

    Example:
        >>> cluster = AutoscalingCluster(
        ...     {"CPU": 0},
        ...     {"cpu": {"resources": {"CPU": 2}, "max_workers": 2}},
        ... )
        >>> cluster.start()  # doctest: +SKIP
        >>> ray.init("auto")  # doctest: +SKIP
        >>> cluster.shutdown()  # doctest: +SKIP
    """

    def __init__(
        self,
        head_resources: dict[str, float],
        worker_node_types: dict[str, dict[str, Any]],
        autoscaler_v2: bool = False,
        *,
        idle_timeout_minutes: float = IDLE_TIMEOUT_MINUTES,
        max_workers: int = MAX_WORKERS,
        upscaling_speed: float = UPSCALING_SPEED,
        **config_kwargs: Any,
    ) -> None:
        for name in config_kwargs:
            if name not in _IGNORED:
                raise TypeError(
                    f"AutoscalingCluster(): {name!r} is not supported; it takes "
                    "idle_timeout_minutes, max_workers and upscaling_speed"
                )
        _check_map("head_resources", head_resources)
        _check_map("worker_node_types", worker_node_types)
        numbers = {
            "idle_timeout_minutes": idle_timeout_minutes,
            "max_workers": max_workers,
            "upscaling_speed": upscaling_speed,
        }
        for name, number in numbers.items():
            if not isinstance(number, (int, float)):
                raise TypeError(f"{name} must be a number, not {number!r}")
            if not number >= 0:
                raise ValueError(f"{name} must not be negative, not {number}")
        self._head_resources = dict(head_resources)
        self._max_workers = max_workers
        self.groups = tuple(
            _group(name, node_type, max_workers, idle_timeout_minutes, upscaling_speed)
            for name, node_type in worker_node_types.items()
        )
        #: The cluster while it runs, and what scales it.
        self.cluster: Cluster | None = None
        self.autoscaler: Autoscaler | None = None
        self._provider: LocalProvider | None = None
        self._control: HeadControl | None = None

    @property
    def address(self) -> str | None:
        """``HOST:PORT`` for ``init(address=...)``; None while it does not run."""
        return self.cluster.address if self.cluster is not None else None

    @property
    def status(self) -> Status:
        """What the autoscaler did in its last turn, and why."""
        return self.autoscaler.status if self.autoscaler is not None else Status()

    def start(
        self,
        _system_config: dict[str, Any] | None = None,
        override_env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the head; then ``init("auto")`` connects.

        Args:
            _system_config: settings, as of ``init``.
            override_env: added to the environment of all nodes.

        Raises:
            RaySystemError: the head did not come up; the text says why.
            RuntimeError: it runs already.
        """
        if self.cluster is not None:
            raise RuntimeError("the cluster runs already; shutdown() ends it")
        env_vars = dict(override_env or {})
        own = dict(self._head_resources)
        args: dict[str, Any] = {
            "num_cpus": own.pop("CPU", 0),
            "num_gpus": own.pop("GPU", 0),
        }
        for name in ("object_store_memory", "memory"):
            if name in own:
                args[name] = int(own.pop(name))
        if _system_config is not None:
            args["_system_config"] = _system_config
        self.cluster = Cluster(shutdown_at_exit=False)
        # Before the nodes': threads must not start any while they end.
        atexit.register(self.shutdown)
        try:
            self.cluster.env_vars = env_vars
            self.cluster.add_node(**args, resources=own)
            self._control = HeadControl(
                self.cluster.head_process_address, self.cluster.token
            )
            self._provider = LocalProvider(self.cluster)
            self.autoscaler = Autoscaler(
                self._control,
                self._provider,
                self.groups,
                max_nodes=self._max_workers,
                interval_s=INTERVAL_S,
            )
            self.autoscaler.start()
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self) -> None:
        """End all nodes and the head. Idempotent."""
        atexit.unregister(self.shutdown)
        if self.autoscaler is not None:
            self.autoscaler.stop()
            self.autoscaler = None
        if self._provider is not None:
            self._provider.close()
            self._provider = None
        if self._control is not None:
            self._control.close()
            self._control = None
        if self.cluster is not None:
            self.cluster.shutdown()
            self.cluster = None


def _check_map(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict, not {value!r}")


def _group(
    name: str,
    node_type: Mapping[str, Any],
    max_workers: int,
    idle_timeout_minutes: float,
    upscaling_speed: float,
) -> NodeGroup:
    _check_map(f"worker_node_types[{name!r}]", node_type)
    resources = node_type.get("resources") or {}
    labels = node_type.get("labels") or {}
    _check_map(f"the resources of {name!r}", resources)
    _check_map(f"the labels of {name!r}", labels)
    for text in (*labels, *labels.values()):
        if not isinstance(text, str):
            raise TypeError(f"the labels of {name!r} must map text to text: {labels!r}")
    return NodeGroup(
        name,
        dict(resources),
        dict(labels),
        min_nodes=int(node_type.get("min_workers") or 0),
        max_nodes=int(node_type.get("max_workers", max_workers)),
        idle_timeout_s=60 * idle_timeout_minutes,
        upscaling_speed=max(upscaling_speed, INITIAL_NODES),
        cold_start_s=COLD_START_S,
    )
