"""What ``rayshim k8s up`` does: everything of a platform is there, and works.

Each step looks first and writes only what differs, so that it may be ended and called
again at any point.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.api import Conflict, Forbidden, Kube, Object
from rayshim.k8s.config import Platform
from rayshim.k8s.differences import (
    Difference,
    FieldChange,
    State,
    differences,
    is_ours,
)
from rayshim.k8s.failures import ClusterRefuses, TookTooLong
from rayshim.k8s.observed import PodState
from rayshim.k8s.observing import pod_state
from rayshim.k8s.prerequisites import missing
from rayshim.k8s.render import Rendered
from rayshim.k8s.rendering.head import deployment_patch
from rayshim.k8s.secret_keeping import keep, lacking
from rayshim.k8s.stamping import SECRETS, is_older, stamped, stamps_of
from rayshim.k8s.waiting import Waiting

#: Seconds for the operator to make the head's Deployment.
OPERATOR_S: Final = 60.0
#: How often a worker group is read anew that the autoscaler changes at the same time.
_TRIES: Final = 5


@dataclass(slots=True)
class Installed:
    """What ``up`` did."""

    #: In the order in which they were applied, with what was done to each.
    objects: list[Difference] = field(default_factory=list)
    #: What was left out and why, and what is left to do.
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the cluster is compared with, and brought to."""

    #: Rendered objects, with their stamps.
    objects: tuple[Object, ...]
    #: Of Secrets, then of the objects, in order.
    differences: tuple[Difference, ...]
    #: Rendered Secret, and what is there of that name and is ours.
    secrets: tuple[tuple[Object, Object | None], ...]


def compare_all(kube: Kube, platform: Platform, rendered: Rendered) -> Wanted:
    """What ``up`` would do. Reads only.

    Raises:
        Forbidden: an object of the namespace may not be read.
        Unreachable: the API server does not answer.
    """
    pairs: list[tuple[Object, Object | None]] = []
    rows = []
    for one in rendered.secrets:
        name = one["metadata"]["name"]
        row = partial(Difference, "Secret", name, kube.namespace)
        try:
            there = kube.get("Secret", name)
        except Forbidden:
            # Who only looks need not see what is in them.
            rows.append(row(State.HIDDEN))
            continue
        if there is not None and not is_ours(there, platform.name):
            rows.append(row(State.FOREIGN))
            continue
        pairs.append((one, there))
        if there is None:
            rows.append(row(State.CREATED))
        else:
            keys = sorted(lacking(one, there, platform))
            changes = tuple(
                FieldChange(f"data.{key}", "(secret)", "(secret)") for key in keys
            )
            rows.append(row(State.CHANGED if keys else State.UNCHANGED, changes))
    objects = stamped(rendered.objects, [found for _, found in pairs if found])
    compared = differences(kube, objects, platform.name)
    return Wanted(tuple(objects), (*rows, *compared), tuple(pairs))


def install(
    kube: Kube,
    platform: Platform,
    rendered: Rendered,
    *,
    restart_head: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    waiting: Waiting,
) -> Installed:
    """Brings the cluster to what is rendered, and waits until it works.

    Args:
        kube: the cluster.
        platform: the file.
        rendered: from it.
        restart_head: replace a head whose specification is older.
        tell: called with each step in words.
        waiting: how long at most.

    Raises:
        ClusterRefuses: rights or kinds are lacking, or an object of the same name is
            not ours; nothing was written then.
        TookTooLong: the operator, the head or the autoscaler did not come up in time.
        Forbidden: a write is not allowed.
        Unreachable: the API server does not answer.
    """
    done = Installed()
    lacking = missing(kube, platform, rendered.objects)
    if required := [one for one in lacking if one.is_required]:
        raise ClusterRefuses("\n".join(one.text() for one in required))
    done.notes += [one.text() for one in lacking]
    before = compare_all(kube, platform, rendered)
    refuse_foreign(before.differences, platform)
    for made in rendered.objects:
        if made["kind"] == "Namespace":
            _make_namespace(kube, made, before.differences, done, tell)
    has_written = _keep_secrets(kube, platform, before, done, tell)
    # Anew: the pods are stamped with the Secrets that are there now.
    wanted = compare_all(kube, platform, rendered) if has_written else before
    _apply(kube, wanted, done, tell)
    by_kind = {one["kind"]: one for one in wanted.objects}
    head = by_kind["DaskCluster"]["spec"]["scheduler"]
    _wait_for_operator(kube, platform, waiting, tell)
    _renew_head(kube, platform, head, restart_head, done, tell)
    _wait_for_head(kube, platform, head, waiting, tell)
    if "Deployment" in by_kind:
        _wait_for_autoscaler(kube, platform, waiting, tell)
    done.notes += _old_workers(kube, platform, wanted.objects)
    return done


def refuse_foreign(found: Sequence[Difference], platform: Platform) -> None:
    """Stops before anything that somebody else made is touched.

    Raises:
        ClusterRefuses: an object of the same name is not ours.
    """
    lines = []
    for one in found:
        if one.state is not State.FOREIGN:
            continue
        where = f" in {one.namespace}" if one.namespace else ""
        why = one.note or "without labels of this platform"
        lines.append(
            f"{one.kind} {one.name}{where} is not of platform {platform.name} ({why}); "
            "remove it, or give the platform another name"
        )
    if lines:
        raise ClusterRefuses("\n".join(lines))


def _make_namespace(
    kube: Kube,
    made: Object,
    found: Sequence[Difference],
    done: Installed,
    tell: Callable[[str], None],
) -> None:
    for one in found:
        if one.kind == "Namespace" and one.state is State.CREATED:
            try:
                kube.apply(made)
            except Forbidden as error:
                raise ClusterRefuses(
                    f"namespace {one.name} is not there and may not be created "
                    f"({error}); have an administrator apply base/namespace.yaml"
                ) from error
            tell(f"created Namespace {one.name}")
            done.objects.append(one)


def _keep_secrets(
    kube: Kube,
    platform: Platform,
    found: Wanted,
    done: Installed,
    tell: Callable[[str], None],
) -> bool:
    has_written = False
    for secret, there in found.secrets:
        name = secret["metadata"]["name"]
        did = keep(kube, secret, there, platform)
        if did:
            tell(f"{did} Secret {name}")
            has_written = True
        state = State(did) if did else State.UNCHANGED
        done.objects.append(Difference("Secret", name, kube.namespace, state))
    return has_written


def _apply(
    kube: Kube, wanted: Wanted, done: Installed, tell: Callable[[str], None]
) -> None:
    rows = {(one.kind, one.name): one for one in wanted.differences}
    for made in wanted.objects:
        one = rows[made["kind"], made["metadata"]["name"]]
        is_new_namespace = one.kind == "Namespace" and one.state is State.CREATED
        if one.state is State.HIDDEN:
            done.notes.append(
                f"{one.kind} {one.name} may not be read; it is left to an administrator"
            )
        elif one.state in (State.CREATED, State.CHANGED) and not is_new_namespace:
            if one.kind == "DaskWorkerGroup" and one.state is State.CHANGED:
                _apply_worker_group(kube, made)
            else:
                kube.apply(made)
            tell(f"{one.state.value} {one.kind} {one.name}")
        if one.state is not State.NO_KIND and not is_new_namespace:
            done.objects.append(one)


def _apply_worker_group(kube: Kube, made: Object) -> None:
    """Changes a worker group without touching how many workers it has.

    The number is applied as it is: a field that was applied once and then left out is
    removed, and the CRD's default takes its place. The resourceVersion sees to it that
    the autoscaler has not written another one meanwhile.
    """
    for attempt in range(_TRIES):
        found = kube.get("DaskWorkerGroup", made["metadata"]["name"])
        changed = copy.deepcopy(made)
        if found is not None:
            replicas = found["spec"]["worker"].get("replicas", 0)
            changed["spec"]["worker"]["replicas"] = replicas
            version = found["metadata"]["resourceVersion"]
            changed["metadata"]["resourceVersion"] = version
        try:
            kube.apply(changed)
        except Conflict:
            if attempt + 1 == _TRIES:
                raise
        else:
            return


def _wait_for_operator(
    kube: Kube, platform: Platform, waiting: Waiting, tell: Callable[[str], None]
) -> None:
    name = names.scheduler(platform.name)

    def has_acted() -> bool:
        return all(kube.get(kind, name) for kind in ("Deployment", "Service"))

    tell("waiting for the dask operator")
    if not waiting.until(has_acted, limit_s=OPERATOR_S):
        limit_s = min(OPERATOR_S, waiting.limit_s)
        raise TookTooLong(
            f"dask operator did not act on DaskCluster {platform.name} within "
            f"{limit_s:.0f} s: is it running and watching namespace "
            f"{platform.namespace}? (rayshim k8s status --operator)"
        )


def _renew_head(
    kube: Kube,
    platform: Platform,
    head: Mapping[str, Any],
    restart_head: bool,
    done: Installed,
    tell: Callable[[str], None],
) -> None:
    name = names.scheduler(platform.name)
    found = kube.get("Deployment", name)
    if found is None or not is_older(found["spec"]["template"], head):
        return
    is_rotated = _is_rotated(found["spec"]["template"], head)
    if not restart_head and not is_rotated:
        done.notes.append(
            "the head runs an older specification; `rayshim k8s up --restart-head` "
            "replaces it (workers start anew, the state comes back from the journal)"
        )
        return
    change = deployment_patch(platform)
    change["spec"]["template"]["metadata"] = {"annotations": stamps_of(head)}
    kube.patch("Deployment", name, change)
    tell("replacing the head" + (": a Secret has changed" if is_rotated else ""))
    row = Difference("Deployment", name, kube.namespace, State.CHANGED)
    done.objects.append(row)


def _is_rotated(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the head was started with another token or password than there is now."""
    there, now = stamps_of(found), stamps_of(wanted)
    return SECRETS in now and there.get(SECRETS, now[SECRETS]) != now[SECRETS]


def _wait_for_head(
    kube: Kube,
    platform: Platform,
    head: Mapping[str, Any],
    waiting: Waiting,
    tell: Callable[[str], None],
) -> None:
    name = names.scheduler(platform.name)
    labels = {names.CLUSTER_NAME: platform.name, names.COMPONENT: "scheduler"}

    def is_ready() -> bool:
        found = kube.get("Deployment", name)
        if found is None:
            return False
        newest = stamps_of(found["spec"]["template"])
        return any(
            pod_state(pod)[0] is PodState.READY and stamps_of(pod) == newest
            for pod in kube.list("Pod", labels)
        )

    tell("waiting for the head")
    if not waiting.until(is_ready, on_wait=lambda: _tell_pods(kube, labels, tell)):
        why = not_ready(kube, platform, name)
        raise TookTooLong(
            f"the head of {platform.name} is not ready after {waiting.limit_s:.0f} s: "
            f"{why}; `rayshim k8s up` goes on waiting"
        )


def _wait_for_autoscaler(
    kube: Kube, platform: Platform, waiting: Waiting, tell: Callable[[str], None]
) -> None:
    name = names.autoscaler(platform.name)

    def is_ready() -> bool:
        found = kube.get("Deployment", name)
        status = (found or {}).get("status") or {}
        is_seen = found is not None and (
            status.get("observedGeneration", 0) >= found["metadata"]["generation"]
        )
        return is_seen and status.get("readyReplicas", 0) >= 1

    tell("waiting for the autoscaler")
    if not waiting.until(is_ready):
        why = not_ready(kube, platform, name)
        raise TookTooLong(
            f"the autoscaler of {platform.name} is not ready after "
            f"{waiting.limit_s:.0f} s: {why}; `rayshim k8s up` goes on waiting"
        )


def _tell_pods(
    kube: Kube, labels: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    for pod in kube.list("Pod", labels):
        state, note = pod_state(pod)
        if note:
            tell(f"pod {pod['metadata']['name']} is {state.value}: {note}")


def not_ready(kube: Kube, platform: Platform, deployment: str) -> str:
    """Which pods of the platform, apart from workers, are not ready, and why."""
    lines = []
    is_there = False
    for pod in kube.list("Pod", names.labels(platform.name)):
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        if labels.get(names.COMPONENT) == "worker":
            continue
        is_there = is_there or name.startswith(deployment)
        state, note = pod_state(pod)
        if state is not PodState.READY:
            why = note or f"see kubectl -n {kube.namespace} logs {name}"
            lines.append(f"pod {name} is {state.value} ({why})")
    if not is_there:
        found = kube.get("Deployment", deployment) or {}
        for one in (found.get("status") or {}).get("conditions") or []:
            if one["type"] == "ReplicaFailure" and one["status"] == "True":
                lines.append(f"Deployment {deployment}: {one.get('message', '')}")
                break
        else:
            lines.append(f"Deployment {deployment} has no pod")
    return "; ".join(lines)


def _old_workers(
    kube: Kube, platform: Platform, objects: Sequence[Object]
) -> list[str]:
    notes = []
    deployments = kube.list("Deployment", {names.CLUSTER_NAME: platform.name})
    for made in objects:
        if made["kind"] != "DaskWorkerGroup":
            continue
        group = made["metadata"]["labels"][names.GROUP]
        old = [
            one
            for one in deployments
            if one["metadata"]["labels"].get(names.GROUP) == group
            and is_older(one["spec"]["template"], made["spec"]["worker"])
        ]
        if old:
            notes.append(
                f"{len(old)} workers of {group} run an older specification; each is "
                "replaced once it has been idle and is needed again"
            )
    return notes
