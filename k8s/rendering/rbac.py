"""Who may do what in the namespace: the autoscaler, and people with `rayshim k8s`.

There are no rights in other namespaces. What an administrator of the cluster does is in
none of the Roles: CRDs, the operator, Kueue, Karpenter, the namespace; and Roles, since
Kubernetes lets nobody grant what he may not do himself ("privilege escalation
prevention", https://kubernetes.io/docs/reference/access-authn-authz/rbac/). So the
first ``up``, and one that changes a Role, is an administrator's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import base

Object = dict[str, Any]

CORE: Final = ""
DASK: Final = "kubernetes.dask.org"
LEASES: Final = "coordination.k8s.io"
RBAC: Final = "rbac.authorization.k8s.io"
NETWORK: Final = "networking.k8s.io"
MONITORING: Final = "monitoring.coreos.com"


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on a resource; with ``names`` on these objects alone."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    def rule(self) -> Object:
        """As a Role has it."""
        found: Object = {
            "apiGroups": [self.group],
            "resources": [self.resource],
            "verbs": list(self.verbs),
        }
        if self.names:
            found["resourceNames"] = list(self.names)
        return found


def autoscaler_rights(platform: str) -> tuple[Right, ...]:
    """What the autoscaler does. ``create`` knows no names of objects.

    Args:
        platform: its name.
    """
    name = names.autoscaler(platform)
    changed = ("list", "watch", "patch", "delete")
    return (
        Right(CORE, "pods", ("list", "watch")),
        Right("apps", "deployments", ("get", *changed)),
        Right(DASK, "daskworkergroups", ("create", *changed)),
        Right("kueue.x-k8s.io", "localqueues", ("list",)),
        Right(LEASES, "leases", ("create",)),
        Right(LEASES, "leases", ("get", "update"), (name,)),
        Right(CORE, "configmaps", ("create",)),
        # It reads what the autoscaler before it knew of the head.
        Right(CORE, "configmaps", ("get", "patch"), (names.status_map(platform),)),
        # It counts up those that it has written before.
        Right(CORE, "events", ("create", "get", "patch")),
    )


_MADE: Final = ("get", "list", "create", "patch", "delete")


def admin_rights(platform: str) -> tuple[Right, ...]:
    """What `rayshim k8s` does for a person, once the namespace is there.

    Args:
        platform: its name.
    """
    return (
        Right(CORE, "configmaps", _MADE),
        Right(CORE, "events", ("list",)),
        Right(CORE, "persistentvolumeclaims", _MADE),
        Right(CORE, "pods", ("list", "delete")),
        Right(CORE, "secrets", _MADE),
        Right(CORE, "serviceaccounts", _MADE),
        Right(CORE, "services", _MADE),
        Right("apps", "deployments", _MADE),
        Right("apps", "statefulsets", _MADE),
        Right("cert-manager.io", "certificates", _MADE),
        Right(LEASES, "leases", ("list", "delete")),
        Right(DASK, "daskclusters", _MADE),
        Right(DASK, "daskworkergroups", _MADE),
        Right("kueue.x-k8s.io", "localqueues", _MADE),
        Right(MONITORING, "podmonitors", _MADE),
        Right(MONITORING, "prometheusrules", _MADE),
        Right(MONITORING, "servicemonitors", _MADE),
        Right(NETWORK, "ingresses", _MADE),
        Right(NETWORK, "networkpolicies", _MADE),
        Right("policy", "poddisruptionbudgets", _MADE),
        Right(RBAC, "rolebindings", ("get", "list", "delete")),
        Right(RBAC, "roles", ("get", "list", "delete")),
    )


def admin(platform: Platform) -> str:
    """Name of the Role of people, and of the group of users that has it."""
    return f"{platform.name}-admin"


def objects(platform: Platform) -> list[Object]:
    """Roles and RoleBindings."""
    scaler = names.autoscaler(platform.name)
    account = {
        "kind": "ServiceAccount",
        "name": scaler,
        "namespace": platform.namespace,
    }
    people = {
        "kind": "Group",
        "name": admin(platform),
        "apiGroup": RBAC,
    }
    return [
        _role(platform, scaler, autoscaler_rights(platform.name)),
        _binding(platform, scaler, account),
        _role(platform, admin(platform), admin_rights(platform.name)),
        _binding(platform, admin(platform), people),
    ]


def _role(platform: Platform, name: str, rights: tuple[Right, ...]) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": base.metadata(platform, name, "access"),
        "rules": [one.rule() for one in rights],
    }


def _binding(platform: Platform, name: str, subject: Object) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": base.metadata(platform, name, "access"),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [subject],
    }
