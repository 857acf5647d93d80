"""The EKS cluster as eksctl makes it, in two variants.

``eksctl/cluster.yaml`` has a small group of machines for the system, and Karpenter
starts the rest; ``eksctl/cluster-managed-nodegroups.yaml`` has a managed node group
for the head and for each group instead, which cluster-autoscaler grows. rayshim never
makes or deletes a cluster itself.
Source: the JSON schema of eksctl, ``eksctl utils schema`` (eksctl.io/v1alpha5).
"""

from __future__ import annotations

import json
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Group, Platform
from rayshim.k8s.rendering import iam, karpenter, machines

Object = dict[str, Any]

#: Machines for CoreDNS, Karpenter, Kueue, the operator, the autoscaler, monitoring.
SYSTEM_INSTANCE: Final = "m7i.large"
SYSTEM_NODES: Final = 2
SYSTEM: Final = "system"
#: Of Kubernetes, and type of EBS volume.
STORAGE_CLASS: Final = "gp3"


def files(platform: Platform) -> dict[str, list[Object]]:
    """Path -> objects; nothing for a platform without ``eks_cluster``.

    Raises:
        ConfigError: a role's name would be too long.
    """
    if not platform.eks_cluster:
        return {}
    found = {
        "eksctl/cluster.yaml": [with_karpenter(platform)],
        "eksctl/cluster-managed-nodegroups.yaml": [with_node_groups(platform)],
    }
    state = platform.head.state
    if state.kind in ("valkey", "volume") and state.storage_class == STORAGE_CLASS:
        found["eksctl/storage-class.yaml"] = [storage_class(platform)]
    return found


def storage_class(platform: Platform) -> Object:
    """Volumes of the type gp3: EKS has a class for gp2 alone."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "labels": names.labels(platform.name)},
        "provisioner": "ebs.csi.aws.com",
        "parameters": {"type": STORAGE_CLASS, "encrypted": "true"},
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": True,
        # In the zone of the pod, which is not known before.
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def with_karpenter(platform: Platform) -> Object:
    """The cluster whose machines Karpenter starts."""
    made = _cluster(platform)
    made["accessConfig"]["accessEntries"] = [
        {
            "principalARN": iam.role_arn(platform, karpenter.node_role(platform)),
            "type": "EC2_LINUX",
        }
    ]
    policy = f"KarpenterControllerPolicy-{platform.eks_cluster}"
    made["iam"]["podIdentityAssociations"].insert(
        0,
        {
            "namespace": "kube-system",
            "serviceAccountName": "karpenter",
            "roleName": _role(platform, "karpenter"),
            "permissionPolicyARNs": [
                f"arn:{iam.partition(platform.region)}:iam::{platform.account}"
                f":policy/{policy}"
            ],
        },
    )
    made["managedNodeGroups"] = [_system()]
    return made


def with_node_groups(platform: Platform) -> Object:
    """The cluster with a managed node group for each group."""
    made = _cluster(platform)
    made["iam"]["podIdentityAssociations"].insert(
        0,
        {
            "namespace": "kube-system",
            "serviceAccountName": "cluster-autoscaler",
            "roleName": _role(platform, "cluster-autoscaler"),
            "wellKnownPolicies": {"autoScaler": True},
        },
    )
    head = _node_group(
        names.HEAD,
        [platform.head.instance],
        least=1,
        most=2,
        labels={names.GROUP: names.HEAD},
        taints=[machines.group_taint(names.HEAD)],
        volume_gb=_gigabytes(karpenter.CPU_VOLUME),
    )
    groups = [_of_group(group) for group in platform.groups]
    made["managedNodeGroups"] = [_system(), head, *groups]
    return made


def _cluster(platform: Platform) -> Object:
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {
            "name": platform.eks_cluster,
            "region": platform.region,
            "version": platform.kubernetes_version,
            "tags": {
                karpenter.DISCOVERY: platform.eks_cluster,
                names.PLATFORM: platform.name,
            },
        },
        "availabilityZones": list(platform.zones),
        "vpc": {
            "clusterEndpoints": {"privateAccess": True, "publicAccess": True},
            # Serving must outlive a zone; without it one gateway is enough.
            "nat": {"gateway": "HighlyAvailable" if platform.serve else "Single"},
        },
        "accessConfig": {"authenticationMode": "API"},
        "iam": {
            "withOIDC": True,
            "podIdentityAssociations": _associations(platform),
        },
        "addonsConfig": {"autoApplyPodIdentityAssociations": True},
        "addons": [
            {"name": "eks-pod-identity-agent"},
            {
                "name": "vpc-cni",
                # Without it NetworkPolicies are accepted, and do nothing.
                "configurationValues": json.dumps({"enableNetworkPolicy": "true"}),
            },
            {"name": "kube-proxy"},
            {"name": "coredns"},
            {"name": "aws-ebs-csi-driver"},
            {"name": "metrics-server"},
        ],
        "cloudWatch": {
            "clusterLogging": {
                "enableTypes": ["api", "audit", "authenticator"],
                "logRetentionInDays": 30,
            }
        },
    }


def _associations(platform: Platform) -> list[Object]:
    found: list[Object] = []
    if platform.serve_host:
        found.append(
            {
                "namespace": "kube-system",
                "serviceAccountName": "aws-load-balancer-controller",
                "roleName": _role(platform, "load-balancer-controller"),
                "wellKnownPolicies": {"awsLoadBalancerController": True},
            }
        )
    rights = iam.policy(platform)
    if rights is not None:
        found.append(
            {
                "namespace": platform.namespace,
                "serviceAccountName": names.service_account(platform.name),
                "roleName": iam.role_name(platform),
                "permissionPolicy": rights,
            }
        )
    return found


def _role(platform: Platform, purpose: str) -> str:
    return iam.checked_role(platform, f"{platform.eks_cluster}-{purpose}")


def _system() -> Object:
    return _node_group(
        SYSTEM,
        [SYSTEM_INSTANCE],
        least=SYSTEM_NODES,
        most=SYSTEM_NODES + 1,
        labels={names.GROUP: SYSTEM},
        taints=[],
        volume_gb=50,
    )


def _of_group(group: Group) -> Object:
    volume = karpenter.GPU_VOLUME if group.is_gpu else karpenter.CPU_VOLUME
    made = _node_group(
        group.name,
        list(group.instances),
        least=group.min,
        most=group.max,
        labels=machines.node_labels(group),
        taints=machines.taints(group),
        volume_gb=_gigabytes(volume),
    )
    if not group.instances:
        made["instanceSelector"] = _selector(group)
    if group.capacity == "spot":
        made["spot"] = True
    return made


def _selector(group: Group) -> Object:
    """For a group that names no instance types: machines that a worker fits on."""
    found: Object = {
        "vCPUs": _power_of_two(group.cpus),
        "memory": f"{_power_of_two(group.memory_gib)}GiB",
        "cpuArchitecture": "x86_64",
    }
    if group.accelerator is not None and group.is_gpu:
        found["gpus"] = group.accelerator.count
    return found


def _power_of_two(amount: float) -> int:
    """The next size of machines above an amount, which leaves room for the system."""
    size = 2
    while size <= amount:
        size *= 2
    return size


def _node_group(
    name: str,
    instances: list[str],
    *,
    least: int,
    most: int,
    labels: dict[str, str],
    taints: list[dict[str, str]],
    volume_gb: int,
) -> Object:
    made: Object = {
        "name": name,
        "amiFamily": "AmazonLinux2023",
        "minSize": least,
        "maxSize": most,
        "desiredCapacity": least,
        "privateNetworking": True,
        "disableIMDSv1": True,
        # Pods have roles of their own (Pod Identity), not the machine's.
        "disablePodIMDS": True,
        "volumeSize": volume_gb,
        "volumeType": "gp3",
        "volumeEncrypted": True,
        "labels": labels,
        # cluster-autoscaler reads labels and taints of a group at zero from its tags.
        "propagateASGTags": True,
        "updateConfig": {"maxUnavailable": 1},
    }
    if instances:
        made["instanceTypes"] = instances
    if taints:
        made["taints"] = taints
    return made


def _gigabytes(volume: str) -> int:
    return int(volume.removesuffix("Gi"))
