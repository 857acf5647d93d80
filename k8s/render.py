"""A platform as files and as the objects that ``up`` applies. Pure.

The files are laid out as below ``k8s/deploy``: ``base/`` (what runs in the namespace),
and the folders of the modules in :data:`BEFORE`, :data:`AFTER` and :data:`FOR_OTHERS`,
each of which has ``files(platform) -> {path: text or objects}``.

:mod:`rayshim.k8s.golden` keeps the copies that are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import (
    autoscaler_objects,
    base,
    device_plugin,
    disruption,
    eksctl,
    head,
    iam,
    karpenter,
    kueue,
    monitoring,
    network,
    operator_values,
    rbac,
    secrets,
    serving,
    state,
    tls,
    workers,
)
from rayshim.k8s.serializing import to_yaml

Object = dict[str, Any]
Files = Mapping[str, str | Sequence[Object]]

#: Modules whose objects ``up`` applies before those in the namespace (machines and
#: queues) and after them, and modules that are files for other tools (eksctl, helm,
#: aws).
BEFORE: Final[tuple[Callable[[Platform], Files], ...]] = (
    karpenter.files,
    kueue.files,
)
AFTER: Final[tuple[Callable[[Platform], Files], ...]] = (monitoring.files,)
FOR_OTHERS: Final[tuple[Callable[[Platform], Files], ...]] = (
    eksctl.files,
    device_plugin.files,
    operator_values.files,
    iam.files,
)

HEADER: Final = (
    "# Made from {source} by `rayshim k8s render`; change that file, not this one.\n"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a platform comes to."""

    #: Path below the folder of the render ("base/rbac.yaml") -> objects, or a text.
    files: Mapping[str, tuple[Object, ...] | str]
    #: What ``up`` applies, in this order. ``replicas`` of a DaskWorkerGroup is for its
    #: creation: from then on the number is the autoscaler's.
    objects: tuple[Object, ...]
    #: Secrets that ``up`` makes once and never changes, without what is in them:
    #: :func:`rayshim.k8s.rendering.secrets.filled` fills one. Not among ``objects``.
    secrets: tuple[Object, ...] = ()
    #: File that it came from.
    source: str = "platform.yaml"

    def texts(self) -> dict[str, str]:
        """Path -> what is to be in the file."""
        header = HEADER.format(source=self.source)
        return {
            path: content if isinstance(content, str) else header + to_yaml(content)
            for path, content in self.files.items()
        }


def render(platform: Platform) -> Rendered:
    """Everything that follows from a platform file.

    The same platform gives the same bytes in every process. What ``others`` has is in
    folders of their names, and is applied to their own clusters.

    Raises:
        ConfigError: a value is none that the pods can be told.
    """
    return _rendered(platform, is_other=False)


def _rendered(platform: Platform, *, is_other: bool) -> Rendered:
    in_turn = {
        **_gathered(BEFORE, platform),
        **_base(platform, is_other),
        **_gathered(AFTER, platform),
    }
    secret = tuple(secrets.secrets(platform))
    files: dict[str, tuple[Object, ...] | str] = {}
    files |= _gathered(FOR_OTHERS, platform)
    files |= in_turn
    if secret:
        files["base/secrets.yaml"] = secret
    for other in platform.others:
        for path, content in _rendered(other, is_other=True).files.items():
            files[f"{other.name}/{path}"] = content
    applied = [
        made
        for content in in_turn.values()
        if not isinstance(content, str)
        for made in content
    ]
    return Rendered(
        {path: files[path] for path in sorted(files)},
        _in_order(applied),
        secret,
        platform.source,
    )


def _base(platform: Platform, is_other: bool) -> dict[str, tuple[Object, ...] | str]:
    """Path -> what is in the namespace, in the order in which it is applied."""
    found: dict[str, list[Object]] = {
        "namespace": [base.namespace(platform)],
        "service-accounts": base.service_accounts(platform),
        "rbac": rbac.objects(platform),
        "network-policies": network.objects(platform),
        "tls": tls.objects(platform),
        "disruption-budgets": disruption.objects(platform),
        "head-state": state.objects(platform),
        "dask-cluster": [head.dask_cluster(platform)],
        "worker-groups": workers.worker_groups(platform),
        "serve": serving.objects(platform),
        "autoscaler": autoscaler_objects.objects(platform, is_other=is_other),
    }
    return {f"base/{name}.yaml": tuple(made) for name, made in found.items() if made}


def _gathered(
    makers: Sequence[Callable[[Platform], Files]], platform: Platform
) -> dict[str, tuple[Object, ...] | str]:
    found: dict[str, tuple[Object, ...] | str] = {}
    for make in makers:
        for path, content in make(platform).items():
            found[path] = content if isinstance(content, str) else tuple(content)
    return found


def _in_order(objects: Sequence[Object]) -> tuple[Object, ...]:
    """The namespace first: LocalQueues are in it."""
    first = [one for one in objects if one["kind"] == "Namespace"]
    return (*first, *(one for one in objects if one["kind"] != "Namespace"))
