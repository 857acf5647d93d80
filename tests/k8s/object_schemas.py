"""The committed schema subsets, and rules between fields that they cannot say."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[2] / "k8s" / "schemas"

#: apiVersion -> file.
FILES = {
    "kueue.x-k8s.io/v1beta2": "kueue-v1beta2.json",
    "karpenter.sh/v1": "karpenter-v1.json",
    "karpenter.k8s.aws/v1": "karpenter-aws-v1.json",
    "eksctl.io/v1alpha5": "eksctl-v1alpha5.json",
    "monitoring.coreos.com/v1": "monitoring-v1.json",
    "cert-manager.io/v1": "cert-manager-v1.json",
}


def problems(made: Mapping[str, Any]) -> list[str]:
    """What is wrong with an object, each with its path; empty: nothing.

    Raises:
        KeyError: no schema has its apiVersion.
    """
    validator = _validator(FILES[made["apiVersion"]])
    found = [
        f"{'.'.join(str(one) for one in error.absolute_path)}: {error.message}"
        for error in validator.iter_errors(made)
    ]
    rule = _RULES.get(made["kind"])
    return found or ([] if rule is None else rule(made["spec"]))


@functools.cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((FOLDER / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def _cluster_queue(spec: Mapping[str, Any]) -> list[str]:
    """Kueue's rule, and that a flavor or resource is in one group alone."""
    found, flavors, resources = [], list[str](), list[str]()
    for group in spec["resourceGroups"]:
        resources += group["coveredResources"]
        for flavor in group["flavors"]:
            flavors.append(flavor["name"])
            given = [one["name"] for one in flavor["resources"]]
            if given != group["coveredResources"]:
                found.append(
                    f"flavor {flavor['name']}: {given} is not coveredResources, "
                    f"{group['coveredResources']}"
                )
    for what, given in (("flavor", flavors), ("resource", resources)):
        twice = {one for one in given if given.count(one) > 1}
        found += [f"{what} {one} comes up twice" for one in sorted(twice)]
    return found


def _topology(spec: Mapping[str, Any]) -> list[str]:
    host = "kubernetes.io/hostname"
    labels = [one["nodeLabel"] for one in spec["levels"]]
    if host in labels[:-1]:
        return [f"{host} must be the lowest level"]
    return []


_RULES = {"ClusterQueue": _cluster_queue, "Topology": _topology}
