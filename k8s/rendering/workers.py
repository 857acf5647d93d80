"""The DaskWorkerGroups: one for each group of the file."""

from __future__ import annotations

import json
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import ConfigError, Group, Platform
from rayshim.k8s.rendering import base, pods
from rayshim.k8s.rendering.merging import merged

Object = dict[str, Any]

#: Seconds that a worker's processes have to end once it is told to. It was drained
#: before, unless its machine goes.
GRACE_S: Final = 60
ZONE: Final = "topology.kubernetes.io/zone"


def worker_groups(platform: Platform) -> list[Object]:
    """One for each group, in the file's order."""
    return [worker_group(platform, one) for one in platform.groups]


def worker_group(platform: Platform, group: Group) -> Object:
    """The DaskWorkerGroup of a group, with no worker.

    The operator copies labels and annotations of ``spec.worker.metadata`` (and of the
    object itself) to each Deployment and its pod.
    """
    meta = base.metadata(
        platform, names.worker_group(platform.name, group.name), "worker"
    )
    meta["labels"][names.GROUP] = group.name
    worker = {names.GROUP: group.name}
    if group.queue:
        worker[names.QUEUE] = group.queue
    if group.queue and group.priority:
        worker[names.PRIORITY_CLASS] = group.priority
    pod_meta: Object = {"labels": worker}
    if not is_serving(platform, group):
        # Idle ones are stopped by the autoscaler. Serving ones may be moved, one at a
        # time (their PodDisruptionBudget).
        pod_meta["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskWorkerGroup",
        "metadata": meta,
        "spec": {
            "cluster": platform.name,
            "worker": {
                "replicas": 0,
                "metadata": pod_meta,
                "spec": worker_pod(platform, group),
            },
        },
    }


def is_serving(platform: Platform, group: Group) -> bool:
    """Whether a group's workers answer requests."""
    return platform.serve is not None and platform.serve.group == group.name


def worker_pod(platform: Platform, group: Group) -> Object:
    """Spec of a worker's pod.

    Raises:
        ConfigError: the group is nothing that a worker can be told.
    """
    path = f"groups.{group.name}"
    selector, tolerations = base.placement(platform, group.name)
    store = pods.store_gib(group.memory_gib, group.store_gib)
    if store >= group.memory_gib:
        raise ConfigError(
            f"{path}.store_gib",
            f"the store of {store:g} GiB counts against the {group.memory_gib:g} GiB "
            "of memory_gib, and leaves nothing for tasks; make it smaller",
            platform.source,
        )
    requests = {
        "cpu": base.cores(group.cpus),
        "memory": base.mebibytes(group.memory_gib),
    }
    limits = {"memory": base.mebibytes(group.memory_gib)}
    if group.accelerator is not None and group.is_gpu:
        accelerator = group.accelerator
        limits[accelerator.resource] = str(accelerator.count)
        requests[accelerator.resource] = str(accelerator.count)
        tolerations.append(
            {
                "key": accelerator.resource,
                "operator": "Exists",
                "effect": "NoSchedule",
            }
        )
    found, mounts = pods.volumes(platform, store)
    is_dask = platform.runtime == "dask"
    numbers = dict(pods.DASK_WORKER_PORTS if is_dask else pods.NODE_PORTS)
    ready_port = "worker" if is_dask else "node"
    if is_serving(platform, group):
        numbers["serve"] = pods.SERVE_PORT
    container = {
        "name": "worker",
        "image": platform.images.gpu if group.is_gpu else platform.images.cpu,
        "command": ["dask", "worker"] if is_dask else ["rayshim", "start"],
        "args": (
            _dask_args(platform, group)
            if is_dask
            else _rayshim_args(platform, group, store)
        ),
        "env": _env(platform, group),
        "ports": pods.ports(numbers),
        # No limit of CPU: what is idle on the machine may be used.
        "resources": {"requests": requests, "limits": limits},
        # No liveness probe: a worker that is slow is busy, and what has ended starts
        # again anyway.
        "readinessProbe": {
            "tcpSocket": {"port": ready_port},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 15,
        },
        "securityContext": base.container_security(),
        "volumeMounts": mounts,
    }
    spec = pods.spec(
        platform,
        container,
        found,
        selector={**selector, **group.node_selector},
        tolerations=[*tolerations, *(dict(one) for one in group.tolerations)],
        grace_s=GRACE_S,
    )
    if is_serving(platform, group):
        spec["topologySpreadConstraints"] = [_spread(platform, group)]
    return merged(spec, group.pod_spec)


def _spread(platform: Platform, group: Group) -> Object:
    """Over the zones, but not at any price: when one is lost, others take its pods.

    With ``DoNotSchedule`` the lost zone, which has no pods, would keep the others at
    one more than none.
    """
    return {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {
            "matchLabels": {names.PLATFORM: platform.name, names.GROUP: group.name}
        },
    }


def _env(platform: Platform, group: Group) -> list[Object]:
    found = pods.env(platform, group.env, f"groups.{group.name}.env")
    if platform.runtime == "dask" and platform.tls.is_enabled:
        # The operator's own speaks of tcp://.
        address = {"name": "DASK_SCHEDULER_ADDRESS", "value": _dask_address(platform)}
        found.append(address)
    return found


def _rayshim_args(platform: Platform, group: Group, store_gib: float) -> list[str]:
    path = f"groups.{group.name}"
    if group.cpus != int(group.cpus):
        raise ConfigError(
            f"{path}.cpus",
            f"a node has whole CPUs, not {group.cpus:g}; round it down",
            platform.source,
        )
    about = group.logical_resources()
    custom = {
        name: value
        for name, value in about.items()
        if name not in ("CPU", "GPU", "memory")
    }
    labels = {**group.node_group().labels, names.WORKER: "$(DASK_WORKER_NAME)"}
    for name, value in labels.items():
        if set(",=") & set(name + value):
            raise ConfigError(
                f"{path}.labels.{name}",
                f"a label has no ',' or '=' in it, as {value!r} has",
                platform.source,
            )
    host = names.head_host(platform.name, platform.namespace)
    store = pods.store_bytes(platform, store_gib, f"{path}.store_gib")
    return [
        "--block",
        # Else its container would start again, and bring a node that nobody asked for.
        "--stay-when-drained",
        f"--address={host}:{pods.HEAD_PORTS['head']}",
        "--node-ip-address=$(POD_IP)",
        "--node-name=$(DASK_WORKER_NAME)",
        f"--node-manager-port={pods.NODE_PORTS['node']}",
        f"--object-manager-port={pods.NODE_PORTS['values']}",
        f"--num-cpus={int(group.cpus)}",
        f"--num-gpus={int(about.get('GPU', 0))}",
        f"--memory={int(about['memory'])}",
        f"--object-store-memory={store}",
        f"--resources={json.dumps(custom)}",
        "--labels=" + ",".join(f"{name}={value}" for name, value in labels.items()),
        f"--token-path={pods.TOKEN_PATH}",
        f"--metrics-export-port={pods.NODE_PORTS['metrics']}",
        f"--system-config={json.dumps({'head_grace_s': pods.GRACE_S})}",
    ]


def _dask_address(platform: Platform) -> str:
    scheme = "tls" if platform.tls.is_enabled else "tcp"
    host = names.head_host(platform.name, platform.namespace)
    return f"{scheme}://{host}:{pods.DASK_SCHEDULER_PORTS['tcp-comm']}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _dask_args(platform: Platform, group: Group) -> list[str]:
    about = group.logical_resources()
    resources = " ".join(f"{name}={_number(one)}" for name, one in about.items())
    for name in about:
        if set(", =") & set(name):
            raise ConfigError(
                f"groups.{group.name}.resources.{name}",
                "Dask takes no resource whose name has a space, ',' or '=' in it",
                platform.source,
            )
    worker = pods.DASK_WORKER_PORTS
    return [
        _dask_address(platform),
        "--name=$(DASK_WORKER_NAME)",
        "--host=$(POD_IP)",
        f"--worker-port={worker['worker']}",
        f"--dashboard-address=$(POD_IP):{worker['metrics']}",
        "--nworkers=1",
        f"--nthreads={max(1, int(group.cpus))}",
        f"--memory-limit={int(group.memory_gib * base.GIB)}",
        f"--resources={resources}",
        # The container is what starts it again.
        "--no-nanny",
        "--local-directory=/tmp",
        *pods.dask_tls_args(platform),
    ]
