"""What the pods may do with S3: an IAM role for their ServiceAccount.

The way is EKS Pod Identity (an association of ServiceAccount and role, which eksctl's
files already have); the other, for clusters without its agent, is a role for service
accounts (IRSA). Rights are per bucket and prefix, and each statement says what for.
Source: https://docs.aws.amazon.com/eks/latest/userguide/pod-id-role.html and
https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html.
"""

from __future__ import annotations

import json
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Bucket, ConfigError, Platform

Object = dict[str, Any]

#: Characters in the name of a role, by IAM.
MAX_ROLE_NAME: Final = 64


def files(platform: Platform) -> dict[str, str | list[Object]]:
    """Path -> text or objects; nothing without ``eks_cluster`` or without buckets."""
    rights = policy(platform)
    if not platform.eks_cluster or rights is None:
        return {}
    return {
        "iam/policy.json": _json(rights),
        "iam/pod-identity-trust.json": _json(trust(platform)),
        "iam/pod-identity-association.json": _json(_association(platform)),
        "iam/irsa.yaml": [_irsa(platform)],
    }


def partition(region: str) -> str:
    """First part of ARNs in a region.

    Example:
        >>> partition("eu-central-1"), partition("cn-north-1")
        ('aws', 'aws-cn')
    """
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def role_name(platform: Platform) -> str:
    """Name of the role of the head and the workers."""
    name = f"{platform.eks_cluster}-{names.service_account(platform.name)}"
    return checked_role(platform, name)


def checked_role(platform: Platform, name: str) -> str:
    """A name for a role that IAM takes.

    Raises:
        ConfigError: it is too long.
    """
    if len(name) > MAX_ROLE_NAME:
        raise ConfigError(
            "eks_cluster",
            f"IAM takes no role with the name {name} (more than {MAX_ROLE_NAME} "
            "characters); shorten the name of the cluster or of the platform",
            platform.source,
        )
    return name


def role_arn(platform: Platform, name: str) -> str:
    """ARN of a role of the platform's account."""
    return f"arn:{partition(platform.region)}:iam::{platform.account}:role/{name}"


def policy(platform: Platform) -> Object | None:
    """The rights of the pods; None: they need none."""
    arn = f"arn:{partition(platform.region)}:s3:::"
    statements = [
        one
        for bucket in platform.buckets
        for one in _statements(bucket, arn + bucket.name)
    ]
    if not statements:
        return None
    if platform.residency is not None and not platform.residency.may_share_storage:
        statements.append(
            {
                "Sid": "NothingOutsideTheRegion",
                "Effect": "Deny",
                "Action": "s3:*",
                "Resource": "*",
                "Condition": {
                    "StringNotEquals": {
                        "aws:RequestedRegion": platform.residency.region
                    }
                },
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}


def trust(platform: Platform) -> Object:
    """Who may take the role: EKS, for this ServiceAccount of this cluster alone."""
    cluster = (
        f"arn:{partition(platform.region)}:eks:{platform.region}:{platform.account}"
        f":cluster/{platform.eks_cluster}"
    )
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "PodIdentity",
                "Effect": "Allow",
                "Principal": {"Service": "pods.eks.amazonaws.com"},
                "Action": ["sts:AssumeRole", "sts:TagSession"],
                "Condition": {
                    "StringEquals": {
                        "aws:SourceAccount": platform.account,
                        "aws:RequestTag/kubernetes-namespace": platform.namespace,
                        "aws:RequestTag/kubernetes-service-account": (
                            names.service_account(platform.name)
                        ),
                    },
                    "ArnEquals": {"aws:SourceArn": cluster},
                },
            }
        ],
    }


def _statements(bucket: Bucket, arn: str) -> list[Object]:
    word = "".join(
        part.capitalize() for part in bucket.name.replace(".", "-").split("-")
    )
    read, write = _patterns(bucket.read), _patterns(bucket.write)
    found: list[Object] = []
    if not read and not write:
        return found
    found.append(
        {
            "Sid": f"List{word}",
            "Effect": "Allow",
            "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"],
            "Resource": arn,
            "Condition": {
                "StringLike": {"s3:prefix": list(dict.fromkeys([*read, *write]))}
            },
        }
    )
    found.append(
        {
            "Sid": f"Locate{word}",
            "Effect": "Allow",
            "Action": "s3:GetBucketLocation",
            "Resource": arn,
        }
    )
    # Who writes checkpoints and models reads them again, after a crash at the latest.
    found.append(
        {
            "Sid": f"Read{word}",
            "Effect": "Allow",
            "Action": "s3:GetObject",
            "Resource": [f"{arn}/{one}" for one in dict.fromkeys([*read, *write])],
        }
    )
    if write:
        found.append(
            {
                "Sid": f"Write{word}",
                "Effect": "Allow",
                "Action": [
                    "s3:PutObject",
                    "s3:DeleteObject",
                    "s3:AbortMultipartUpload",
                    "s3:ListMultipartUploadParts",
                ],
                "Resource": [f"{arn}/{one}" for one in write],
            }
        )
    return found


def _patterns(prefixes: tuple[str, ...]) -> list[str]:
    """Of keys below prefixes: "raw", "raw/" and "/raw/*" are all "raw/*"."""
    found = []
    for prefix in prefixes:
        inner = prefix.strip("/*")
        found.append(f"{inner}/*" if inner else "*")
    return list(dict.fromkeys(found))


def _association(platform: Platform) -> Object:
    """For ``aws eks create-pod-identity-association --cli-input-json``."""
    return {
        "clusterName": platform.eks_cluster,
        "namespace": platform.namespace,
        "serviceAccount": names.service_account(platform.name),
        "roleArn": role_arn(platform, role_name(platform)),
    }


def _irsa(platform: Platform) -> Object:
    """For ``eksctl create iamserviceaccount --config-file``."""
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {
            "name": platform.eks_cluster,
            "region": platform.region,
            "version": platform.kubernetes_version,
        },
        "iam": {
            "withOIDC": True,
            "serviceAccounts": [
                {
                    "metadata": {
                        "name": names.service_account(platform.name),
                        "namespace": platform.namespace,
                    },
                    "roleName": role_name(platform),
                    # The ServiceAccount is in base/; it gets the annotation
                    # eks.amazonaws.com/role-arn by hand.
                    "roleOnly": True,
                    "attachPolicy": policy(platform),
                }
            ],
        },
    }


def _json(value: Object) -> str:
    return json.dumps(value, indent=2) + "\n"
