"""The DaskCluster: the head, its Service, and a default group that stays empty."""

from __future__ import annotations

import copy
import json
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import base, pods, state
from rayshim.k8s.rendering.workers import worker_pod

Object = dict[str, Any]

#: Karpenter moves no pod that has it to pack machines tighter.
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
#: Share of the head's memory for values of drivers and tasks without CPUs there.
HEAD_STORE_SHARE: Final = 0.125
#: Seconds until the head of a lost machine is started on another one, after the 40 s
#: that Kubernetes takes to notice. Its default is 300.
EVICT_AFTER_S: Final = 30


def head_pod(platform: Platform) -> Object:
    """Spec of the head's pod."""
    head = platform.head
    selector, tolerations = base.placement(platform, names.HEAD)
    store = head.memory_gib * HEAD_STORE_SHARE
    found, mounts = pods.volumes(platform, store)
    more, more_mounts, more_env = state.of_head(platform)
    for condition in ("not-ready", "unreachable"):
        tolerations.append(
            {
                "key": f"node.kubernetes.io/{condition}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": EVICT_AFTER_S,
            }
        )
    is_dask = platform.runtime == "dask"
    container = {
        "name": "scheduler",
        "image": platform.images.cpu,
        "command": ["dask", "scheduler"] if is_dask else ["rayshim", "start"],
        "args": _dask_args(platform) if is_dask else _rayshim_args(platform, store),
        "env": pods.env(platform, head.env, "head.env") + more_env,
        "ports": pods.ports(_ports(platform)),
        # No limit of CPU: a head that is throttled delays everybody.
        "resources": {
            "requests": {
                "cpu": base.cores(head.cpus),
                "memory": base.mebibytes(head.memory_gib),
            },
            "limits": {"memory": base.mebibytes(head.memory_gib)},
        },
        "readinessProbe": _probe(platform, period_s=2, failures=3),
        # Only a head that accepts no connection for five minutes.
        "livenessProbe": _probe(platform, period_s=30, failures=10),
        "securityContext": base.container_security(),
        "volumeMounts": mounts + more_mounts,
    }
    return pods.spec(
        platform,
        container,
        found + more,
        selector=selector,
        tolerations=tolerations,
        grace_s=30,
    )


def dask_cluster(platform: Platform) -> Object:
    """The DaskCluster.

    Its default worker group has the pods of the first group without accelerators (or of
    the first one), and stays at 0: the groups of the file are DaskWorkerGroups of
    their own.
    """
    group = next((one for one in platform.groups if not one.is_gpu), platform.groups[0])
    meta = base.metadata(platform, platform.name, "head")
    labels = {names.GROUP: names.HEAD}
    annotations = {DO_NOT_DISRUPT: "true"}
    default = base.labels(platform, "worker")
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskCluster",
        "metadata": meta,
        "spec": {
            "scheduler": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": head_pod(platform),
                "service": _service(platform),
            },
            "worker": {
                "replicas": 0,
                "metadata": {"labels": default},
                "spec": worker_pod(platform, group),
            },
        },
    }


def deployment_patch(platform: Platform) -> Object:
    """Merge patch that brings the head's Deployment to what the file says.

    The operator makes that Deployment once and never changes it, and gives it no
    strategy: Kubernetes' default starts the new pod before the old one has ended. Two
    heads must not write one journal, and a volume that one machine holds never comes to
    the other one; so the old pod ends first ("Recreate").
    """
    return {
        "spec": {
            "strategy": {"type": "Recreate", "rollingUpdate": None},
            "template": {"spec": copy.deepcopy(head_pod(platform))},
        }
    }


def _ports(platform: Platform) -> dict[str, int]:
    if platform.runtime == "dask":
        return dict(pods.DASK_SCHEDULER_PORTS)
    return {**pods.HEAD_PORTS, **pods.NODE_PORTS}


def _service_ports(platform: Platform) -> dict[str, int]:
    """Dask's have the names that the operator asks for.

    rayshim's have others: when somebody lowers ``replicas`` by hand, the operator then
    finds no Dask scheduler and waits, instead of deleting workers of its own choice;
    the autoscaler repairs the number.
    """
    if platform.runtime == "dask":
        return dict(pods.DASK_SCHEDULER_PORTS)
    return {**pods.HEAD_PORTS, "metrics": pods.NODE_PORTS["metrics"]}


def _service(platform: Platform) -> Object:
    ports = [
        {"name": name, "protocol": "TCP", "port": number, "targetPort": name}
        for name, number in _service_ports(platform).items()
    ]
    return {
        "type": "ClusterIP",
        "selector": {
            names.CLUSTER_NAME: platform.name,
            names.COMPONENT: "scheduler",
        },
        # Nodes find a head that was restarted as soon as it has an address.
        "publishNotReadyAddresses": True,
        "ports": ports,
    }


def _probe(platform: Platform, *, period_s: int, failures: int) -> Object:
    port = "tcp-comm" if platform.runtime == "dask" else "head"
    return {
        "tcpSocket": {"port": port},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _rayshim_args(platform: Platform, store_gib: float) -> list[str]:
    config = {
        "cluster_name": platform.name,
        "head_rejoin_s": pods.REJOIN_S,
        "head_grace_s": pods.GRACE_S,
        "http_hosts": ",".join(host_names(platform)),
        **state.settings(platform),
    }
    store = pods.store_bytes(platform, store_gib, "head.memory_gib")
    head = pods.HEAD_PORTS
    return [
        "--head",
        "--block",
        "--num-cpus=0",
        "--num-gpus=0",
        "--node-ip-address=$(POD_IP)",
        f"--port={head['head']}",
        f"--ray-client-server-port={head['client']}",
        f"--node-manager-port={pods.NODE_PORTS['node']}",
        f"--object-manager-port={pods.NODE_PORTS['values']}",
        f"--token-path={pods.TOKEN_PATH}",
        "--dashboard-host=0.0.0.0",
        f"--dashboard-port={head['dashboard']}",
        f"--metrics-export-port={pods.NODE_PORTS['metrics']}",
        f"--object-store-memory={store}",
        f"--system-config={json.dumps(config)}",
    ]


def host_names(platform: Platform) -> list[str]:
    """Names of the head's Service, the shortest first."""
    name, namespace = names.scheduler(platform.name), platform.namespace
    full = names.head_host(platform.name, namespace)
    return [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", full]


def _dask_args(platform: Platform) -> list[str]:
    scheduler = pods.DASK_SCHEDULER_PORTS
    return [
        "--host=$(POD_IP)",
        f"--port={scheduler['tcp-comm']}",
        f"--dashboard-address=$(POD_IP):{scheduler['http-dashboard']}",
        *pods.dask_tls_args(platform),
    ]
