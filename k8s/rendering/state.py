"""Where the head keeps its journal: Valkey, an endpoint that exists, a volume."""

from __future__ import annotations

from typing import Any, Final

from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import base, pods

Object = dict[str, Any]

#: Of the StatefulSet's container and Service.
PORT: Final = 6379
#: Where the Secret's part of Valkey's configuration is.
CONF_FOLDER: Final = "/etc/valkey"


def name(platform: Platform) -> str:
    """Name of the StatefulSet, its Service and Secret, or of the volume's claim."""
    return f"{platform.name}-state"


def kind(platform: Platform) -> str:
    """Of the state; Dask's scheduler keeps none."""
    return "none" if platform.runtime == "dask" else platform.head.state.kind


def host(platform: Platform) -> str:
    """Host name of Valkey's Service."""
    return f"{name(platform)}.{platform.namespace}.svc.cluster.local"


def of_head(
    platform: Platform,
) -> tuple[list[Object], list[Object], list[Object]]:
    """Volumes, mounts and environment that the head's pod has for its journal.

    A URL with its password comes from a Secret into the environment; it is on no
    command line.
    """
    found = kind(platform)
    if found == "volume":
        claim = {"claimName": name(platform)}
        mount = {"name": "journal", "mountPath": pods.JOURNAL_FOLDER}
        return [{"name": "journal", "persistentVolumeClaim": claim}], [mount], []
    if found == "none":
        return [], [], []
    secret = name(platform) if found == "valkey" else platform.head.state.secret
    source = {"secretKeyRef": {"name": secret, "key": "url"}}
    return [], [], [{"name": "RAYSHIM_JOURNAL_URL", "valueFrom": source}]


def settings(platform: Platform) -> dict[str, str]:
    """Settings of the head that no Secret is needed for."""
    if kind(platform) == "volume":
        return {"journal_url": f"sqlite:///{pods.JOURNAL_FOLDER}/journal.sqlite"}
    return {}


def objects(platform: Platform) -> list[Object]:
    """What is to be made for it."""
    found = kind(platform)
    if found == "valkey":
        return [_service(platform), _stateful_set(platform)]
    if found == "volume":
        return [_claim(platform)]
    return []


def journal_url(platform: Platform, password: str) -> str:
    """URL of the journal in Valkey."""
    scheme, query = "redis", ""
    if platform.tls.is_enabled:
        scheme, query = "rediss", f"?ssl_ca_certs={pods.TLS_FOLDER}/ca.crt"
    return f"{scheme}://:{password}@{host(platform)}:{PORT}/0{query}"


def _claim(platform: Platform) -> Object:
    """One pod at a time may mount it: two heads must not write one journal."""
    state = platform.head.state
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": base.metadata(platform, name(platform), "state"),
        "spec": {
            "accessModes": ["ReadWriteOncePod"],
            "storageClassName": state.storage_class,
            "resources": {"requests": {"storage": base.mebibytes(state.storage_gib)}},
        },
    }


def _service(platform: Platform) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": base.metadata(platform, name(platform), "state"),
        "spec": {
            "type": "ClusterIP",
            "selector": base.labels(platform, "state"),
            "ports": [
                {
                    "name": "valkey",
                    "protocol": "TCP",
                    "port": PORT,
                    "targetPort": "valkey",
                }
            ],
        },
    }


def _stateful_set(platform: Platform) -> Object:
    state = platform.head.state
    selector, tolerations = base.placement(platform, "head")
    volumes: list[Object] = [
        {
            "name": "conf",
            "secret": {
                "secretName": name(platform),
                "defaultMode": 0o440,
                "items": [{"key": "valkey.conf", "path": "valkey.conf"}],
            },
        }
    ]
    mounts: list[Object] = [
        {"name": "data", "mountPath": "/data"},
        {"name": "conf", "mountPath": CONF_FOLDER, "readOnly": True},
    ]
    # Each change of the head is on disk before it is answered.
    args = [
        "--dir /data",
        "--appendonly yes",
        "--appendfsync always",
        "--save ''",
        "--maxmemory-policy noeviction",
    ]
    if platform.tls.is_enabled:
        secret = {"secretName": platform.tls.secret, "defaultMode": 0o440}
        volumes.append({"name": "tls", "secret": secret})
        mounts.append({"name": "tls", "mountPath": pods.TLS_FOLDER, "readOnly": True})
        args += [
            "--port 0",
            f"--tls-port {PORT}",
            f"--tls-ca-cert-file {pods.TLS_FOLDER}/ca.crt",
            f"--tls-cert-file {pods.TLS_FOLDER}/tls.crt",
            f"--tls-key-file {pods.TLS_FOLDER}/tls.key",
            "--tls-auth-clients no",
        ]
    else:
        args.append(f"--port {PORT}")
    probe: Object = {"tcpSocket": {"port": "valkey"}, "timeoutSeconds": 5}
    container = {
        "name": "valkey",
        "image": state.image,
        "command": ["valkey-server", f"{CONF_FOLDER}/valkey.conf"],
        "args": [part for one in args for part in _split(one)],
        "ports": pods.ports({"valkey": PORT}),
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "1024Mi"},
        },
        "readinessProbe": {**probe, "periodSeconds": 2},
        "livenessProbe": {**probe, "periodSeconds": 30, "failureThreshold": 10},
        "securityContext": base.container_security(),
        "volumeMounts": mounts,
    }
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": base.pod_security(base.VALKEY_USER_ID),
        "terminationGracePeriodSeconds": 30,
        "tolerations": tolerations,
        "containers": [container],
        "volumes": volumes,
    }
    if selector:
        pod["nodeSelector"] = selector
    claim = {
        "metadata": {"name": "data", "labels": base.labels(platform, "state")},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": state.storage_class,
            "resources": {"requests": {"storage": base.mebibytes(state.storage_gib)}},
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": base.metadata(platform, name(platform), "state"),
        "spec": {
            "replicas": 1,
            "serviceName": name(platform),
            "selector": {"matchLabels": base.labels(platform, "state")},
            # Its claim stays: `down --keep-state` keeps what the head knows.
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "template": {
                "metadata": {
                    "labels": base.labels(platform, "state"),
                    "annotations": {"karpenter.sh/do-not-disrupt": "true"},
                },
                "spec": pod,
            },
            "volumeClaimTemplates": [claim],
        },
    }


def _split(argument: str) -> list[str]:
    name, value = argument.split(" ", 1)
    return [name, value.replace("''", "")]
