"""What the pods of the head and of the workers have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import ConfigError, Platform
from rayshim.k8s.rendering import base

Object = dict[str, Any]

#: Where things are mounted.
TOKEN_PATH: Final = "/etc/rayshim/token/token"
TLS_FOLDER: Final = "/etc/rayshim/tls"
JOURNAL_FOLDER: Final = "/var/lib/rayshim"
#: Name that all certificates have, as those of `rayshim cert`.
TLS_NAME: Final = "rayshim"

#: Name -> port. Those of rayshim's head; the node ports, which each pod has, too; and
#: those of Dask. Probes and Services name them: the operator's CRDs take no numbers.
HEAD_PORTS: Final = {"head": 6379, "client": 10001, "dashboard": 8265}
NODE_PORTS: Final = {"node": 6380, "values": 6381, "metrics": 8080}
DASK_SCHEDULER_PORTS: Final = {"tcp-comm": 8786, "http-dashboard": 8787}
DASK_WORKER_PORTS: Final = {"worker": 8788, "metrics": 8787}
#: Of Serve's proxy on each worker of the serving group.
SERVE_PORT: Final = 8000

#: Share of the memory that is the store's if the file does not say (Ray's default:
#: https://docs.ray.io/en/latest/ray-core/scheduling/memory-management.html).
STORE_SHARE: Final = 0.3
#: Share of /dev/shm that values may take; the rest is for files under way.
STORE_FILL: Final = 0.95
#: Smallest store that `rayshim start` takes.
MIN_STORE_BYTES: Final = 75 * 2**20

#: Seconds for which a head that comes back waits for its nodes (``head_rejoin_s``):
#: its Service has to lead to the new pod first. And for which nodes and drivers wait
#: for a head whose machine was lost (``head_grace_s``): noticed after 40 s, evicted
#: 30 s later, then a new machine and the image in a few minutes.
REJOIN_S: Final = 30
GRACE_S: Final = 600

#: Variables that belong to the platform.
RESERVED_ENV: Final = frozenset(
    {
        "POD_IP",
        "DASK_WORKER_NAME",
        "DASK_SCHEDULER_ADDRESS",
        "RAYSHIM_TOKEN_PATH",
        "RAYSHIM_JOURNAL_URL",
        "RAYSHIM_TLS_CA",
        "RAYSHIM_TLS_CERT",
        "RAYSHIM_TLS_KEY",
        "RAYSHIM_TLS_NAME",
    }
)


def env(platform: Platform, own: Mapping[str, str], path: str) -> list[Object]:
    """Environment of a container.

    Args:
        platform: the file.
        own: of the head or group.
        path: of ``own`` in the file, for errors.

    Raises:
        ConfigError: ``own`` sets what the platform sets.
    """
    for name in own:
        if name in RESERVED_ENV:
            raise ConfigError(
                f"{path}.{name}",
                "is set by the platform itself; leave it out",
                platform.source,
            )
    pod_ip = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}
    found: list[Object] = [
        {"name": "POD_IP", "valueFrom": pod_ip},
        {"name": "HOME", "value": "/tmp"},
    ]
    if platform.runtime == "rayshim":
        found += rayshim_env(platform)
    values = {one["name"]: one for one in found}
    for name, value in own.items():
        values[name] = {"name": name, "value": value}
    return list(values.values())


def rayshim_env(platform: Platform) -> list[Object]:
    """What rayshim's own programs need to reach its head, in any pod."""
    token = {"name": "RAYSHIM_TOKEN_PATH", "value": TOKEN_PATH}
    return [token, *tls_env(platform)]


def tls_env(platform: Platform) -> list[Object]:
    """Where rayshim's own programs find the certificates; empty: there is no TLS."""
    if not platform.tls.is_enabled:
        return []
    found = {
        "RAYSHIM_TLS_CA": f"{TLS_FOLDER}/ca.crt",
        "RAYSHIM_TLS_CERT": f"{TLS_FOLDER}/tls.crt",
        "RAYSHIM_TLS_KEY": f"{TLS_FOLDER}/tls.key",
        "RAYSHIM_TLS_NAME": TLS_NAME,
    }
    return [{"name": name, "value": value} for name, value in found.items()]


def volumes(platform: Platform, store_gib: float) -> tuple[list[Object], list[Object]]:
    """Volumes and their mounts: the store, a folder for files, token, certificate.

    Args:
        platform: the file.
        store_gib: of /dev/shm; counts against the pod's memory.
    """
    shm = {"medium": "Memory", "sizeLimit": base.mebibytes(store_gib)}
    found: list[Object] = [
        {"name": "shm", "emptyDir": shm},
        {"name": "tmp", "emptyDir": {}},
    ]
    mounts: list[Object] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    secrets, secret_mounts = secret_volumes(platform)
    return found + secrets, mounts + secret_mounts


def secret_volumes(platform: Platform) -> tuple[list[Object], list[Object]]:
    """Volumes and mounts of what proves that a process belongs to the platform."""
    found: list[Object] = []
    mounts: list[Object] = []
    if platform.runtime == "rayshim":
        token = {
            "secretName": names.token_secret(platform.name),
            "defaultMode": 0o440,
            "items": [{"key": "token", "path": "token"}],
        }
        found.append({"name": "token", "secret": token})
        mounts.append(_read_only("token", TOKEN_PATH.rpartition("/")[0]))
    if platform.tls.is_enabled:
        secret = {"secretName": platform.tls.secret, "defaultMode": 0o440}
        found.append({"name": "tls", "secret": secret})
        mounts.append(_read_only("tls", TLS_FOLDER))
    return found, mounts


def _read_only(name: str, path: str) -> Object:
    return {"name": name, "mountPath": path, "readOnly": True}


def dask_tls_args(platform: Platform) -> list[str]:
    """Arguments of `dask scheduler` and `dask worker`."""
    if not platform.tls.is_enabled:
        return []
    return [
        "--protocol=tls",
        f"--tls-ca-file={TLS_FOLDER}/ca.crt",
        f"--tls-cert={TLS_FOLDER}/tls.crt",
        f"--tls-key={TLS_FOLDER}/tls.key",
    ]


def ports(numbers: Mapping[str, int]) -> list[Object]:
    """``ports`` of a container."""
    return [
        {"name": name, "containerPort": number, "protocol": "TCP"}
        for name, number in numbers.items()
    ]


def store_gib(memory_gib: float, given: float) -> float:
    """GiB of /dev/shm: what the file says, or a share of the memory."""
    return given or memory_gib * STORE_SHARE


def store_bytes(platform: Platform, gib: float, path: str) -> int:
    """What `rayshim start` is told that values may take.

    Raises:
        ConfigError: it would refuse it.
    """
    found = int(gib * STORE_FILL * base.GIB)
    if found < MIN_STORE_BYTES:
        least = MIN_STORE_BYTES / STORE_FILL / base.GIB
        raise ConfigError(
            path,
            f"a store of {gib:g} GiB is too small: give at least {least:.2f} GiB",
            platform.source,
        )
    return found


def spec(
    platform: Platform,
    container: Object,
    volumes: Sequence[Object],
    *,
    selector: Mapping[str, str],
    tolerations: Sequence[Object],
    grace_s: int,
) -> Object:
    """The pod of a head or a worker, which needs nothing of Kubernetes' API.

    Args:
        platform: the file.
        container: its only one.
        volumes: that it mounts.
        selector: labels that its machine must have; empty: any machine.
        tolerations: of taints of these machines.
        grace_s: seconds that its processes have to end.
    """
    made: Object = {
        "serviceAccountName": names.service_account(platform.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Process 1 is then one that collects ended processes whose parents are gone.
        "shareProcessNamespace": True,
        "securityContext": base.pod_security(),
        "terminationGracePeriodSeconds": grace_s,
        "tolerations": list(tolerations),
        "containers": [container],
        "volumes": list(volumes),
    }
    if selector:
        made["nodeSelector"] = dict(selector)
    return made
