"""What all objects have in common, the namespace, and the ServiceAccounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Platform

Object = dict[str, Any]

APP: Final = "app.kubernetes.io/name"
COMPONENT: Final = "app.kubernetes.io/component"
#: Bytes of a GiB.
GIB: Final = 2**30
#: User and group of all pods; the images have it.
USER_ID: Final = 1000
#: Of Valkey's image.
VALKEY_USER_ID: Final = 999


def labels(platform: Platform, component: str, **more: str) -> dict[str, str]:
    """Labels of an object.

    Args:
        platform: the file.
        component: "head", "worker", "autoscaler", "state", "serve", "network",
            "access" or "tls".
        more: further ones.
    """
    return {
        APP: names.RAYSHIM,
        COMPONENT: component,
        **names.labels(platform.name),
        **more,
    }


def metadata(
    platform: Platform,
    name: str,
    component: str,
    *,
    annotations: Mapping[str, str] | None = None,
    is_namespaced: bool = True,
) -> Object:
    """An object's metadata.

    Args:
        platform: the file.
        name: of the object.
        component: as for :func:`labels`.
        annotations: left out if there are none.
        is_namespaced: False for kinds that are in no namespace.
    """
    made: Object = {"name": name}
    if is_namespaced:
        made["namespace"] = platform.namespace
    made["labels"] = labels(platform, component)
    if annotations:
        made["annotations"] = dict(annotations)
    return made


def namespace(platform: Platform) -> Object:
    """The namespace. Its pods must keep to the "restricted" Pod Security Standard.

    Source: https://kubernetes.io/docs/concepts/security/pod-security-standards
    """
    made = metadata(platform, platform.namespace, "namespace", is_namespaced=False)
    for mode in ("enforce", "warn"):
        made["labels"][f"pod-security.kubernetes.io/{mode}"] = "restricted"
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": made}


def service_account(
    platform: Platform, name: str, component: str, *, role_arn: str = ""
) -> Object:
    """A ServiceAccount.

    Args:
        platform: the file.
        name: of the account.
        component: as for :func:`labels`.
        role_arn: of an IAM role, for IRSA; empty: EKS Pod Identity finds the role by
            the account's name.
    """
    annotations = {"eks.amazonaws.com/role-arn": role_arn} if role_arn else None
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(platform, name, component, annotations=annotations),
        "automountServiceAccountToken": False,
    }


def service_accounts(platform: Platform) -> list[Object]:
    """Of the head and the workers together, and of the autoscaler."""
    return [
        service_account(platform, names.service_account(platform.name), "worker"),
        service_account(platform, names.autoscaler(platform.name), "autoscaler"),
    ]


def pod_security(user_id: int = USER_ID) -> Object:
    """``securityContext`` of a pod.

    ``fsGroup`` lets the user read mounted Secrets, which belong to root.
    """
    return {
        "runAsNonRoot": True,
        "runAsUser": user_id,
        "runAsGroup": user_id,
        "fsGroup": user_id,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    """``securityContext`` of a container: files can be written where volumes are."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def mebibytes(gib: float) -> str:
    """An amount of memory as Kubernetes writes it.

    Example:
        >>> mebibytes(1.5)
        '1536Mi'
    """
    return f"{int(gib * 1024)}Mi"


def cores(count: float) -> str:
    """An amount of CPU as Kubernetes writes it.

    Example:
        >>> cores(2), cores(0.5)
        ('2', '500m')
    """
    return str(int(count)) if count == int(count) else f"{int(count * 1000)}m"


def placement(platform: Platform, group: str) -> tuple[dict[str, str], list[Object]]:
    """``nodeSelector`` and tolerations that bring a pod to the machines of its group.

    On EKS each group has machines of its own, with the label and the taint
    ``rayshim.io/group=<group>`` (``head`` for the head); they are what Karpenter starts
    when a pod of the group is pending. Elsewhere (no ``eks_cluster``) a pod may run
    wherever there is room.
    """
    if not platform.eks_cluster:
        return {}, []
    tolerated = {
        "key": names.GROUP,
        "operator": "Equal",
        "value": group,
        "effect": "NoSchedule",
    }
    return {names.GROUP: group}, [tolerated]
