"""Subresources that are no part of the object: scale, binding, eviction, token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rayshim.k8s.testing.localkube import patching, selectors
from rayshim.k8s.testing.localkube import statuses as refuse
from rayshim.k8s.testing.localkube.authorizing import Authenticator
from rayshim.k8s.testing.localkube.decoding import Write
from rayshim.k8s.testing.localkube.removing import Remover
from rayshim.k8s.testing.localkube.resources import Resource
from rayshim.k8s.testing.localkube.statuses import Refusal
from rayshim.k8s.testing.localkube.store import Place
from rayshim.k8s.testing.localkube.writing import Writer, timestamp

Object = dict[str, Any]
MERGE = "application/merge-patch+json"


def scale_of(resource: Resource, made: Object) -> Object:
    """The ``Scale`` of an object.

    Raises:
        Refusal: its kind has none.
    """
    scale = resource.scale
    if scale is None:
        raise refuse.not_found_path()
    meta = made["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Object = {"replicas": _at(made, scale.present) or 0}
    chosen = _at(made, scale.selector) if scale.selector else None
    if chosen:
        is_text = isinstance(chosen, str)
        status["selector"] = chosen if is_text else selectors.as_text(chosen)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {"replicas": _at(made, scale.wanted) or 0},
        "status": status,
    }


def write_scale(
    writer: Writer,
    resource: Resource,
    place: Place,
    sent: Any,
    content_type: str,
    write: Write,
) -> Object:
    """Write the wanted number of an object through its ``Scale``.

    Args:
        writer: who writes.
        resource: the object's kind.
        place: where it is.
        sent: a Scale, or a patch of one.
        content_type: of the patch; "" if it is a whole Scale.
        write: how.

    Raises:
        Refusal: the number is none, or the object has changed.
    """
    before = writer.find(resource, place)
    made = scale_of(resource, before)
    if content_type == "application/json-patch+json":
        made = patching.json_patch(made, sent)
    elif content_type:
        made = patching.merge(made, sent)
    else:
        made = sent
    wanted = (made.get("spec") or {}).get("replicas", 0)
    if not isinstance(wanted, int) or wanted < 0:
        raise refuse.invalid(
            "Scale",
            "autoscaling",
            place[1],
            [
                (
                    "spec.replicas",
                    f"Invalid value: {wanted}: must be greater than or equal to 0",
                )
            ],
        )
    assert resource.scale is not None
    change: Object = {}
    here = change
    *above, last = resource.scale.wanted
    for part in above:
        here = here.setdefault(part, {})
    here[last] = wanted
    version = (made.get("metadata") or {}).get("resourceVersion")
    if version:
        change["metadata"] = {"resourceVersion": version}
    after = writer.patch(resource, place, MERGE, change, write)
    return scale_of(resource, after)


def bind(writer: Writer, resource: Resource, place: Place, sent: Object) -> Object:
    """Put a pod on a node, as schedulers do.

    Raises:
        Refusal: it is on one, is gated, or the request names none.
    """
    node = (sent.get("target") or {}).get("name")
    if not node:
        raise refuse.bad_request("target.name: Required value: the node's name")
    with writer.store.lock:
        before = writer.find(resource, place)
        spec = before["spec"]
        why = ""
        if spec.get("nodeName"):
            why = f'pod {place[1]} is already assigned to node "{spec["nodeName"]}"'
        elif spec.get("schedulingGates"):
            why = f"pod {place[1]} has non-empty .spec.schedulingGates"
        elif before["metadata"].get("deletionTimestamp"):
            why = f"pod {place[1]} is being deleted, cannot be assigned to a host"
        if why:
            raise refuse.conflict("pods/binding", "", place[1], why)
        status = dict(before.get("status") or {})
        others = [
            one
            for one in status.get("conditions") or []
            if one["type"] != "PodScheduled"
        ]
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastTransitionTime": timestamp(),
        }
        status["conditions"] = [*others, scheduled]
        writer.store.put(
            resource,
            {
                **before,
                "metadata": {**before["metadata"]},
                "spec": {**spec, "nodeName": node},
                "status": status,
            },
        )
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def evict(
    writer: Writer,
    remover: Remover,
    resource: Resource,
    place: Place,
    sent: Object,
    write: Write,
) -> Object:
    """Delete a pod unless a PodDisruptionBudget forbids it.

    Raises:
        Refusal: 429, a budget forbids it.
    """
    with writer.store.lock:
        pod = writer.find(resource, place)
        for budget in writer.store.scan(
            writer.registry.named("poddisruptionbudgets"), place[0]
        ):
            chosen = budget["spec"].get("selector")
            if not selectors.selects(chosen, pod["metadata"].get("labels") or {}):
                continue
            pods = [
                one
                for one in writer.store.scan(resource, place[0])
                if selectors.selects(chosen, one["metadata"].get("labels") or {})
            ]
            healthy = sum(_is_ready(one) for one in pods)
            if _is_ready(pod) and healthy - 1 < _least(budget["spec"], len(pods)):
                raise Refusal(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    {
                        "causes": [
                            {
                                "reason": "DisruptionBudget",
                                "message": "The disruption budget "
                                f"{budget['metadata']['name']} needs the pod",
                            }
                        ]
                    },
                )
        remover.delete(resource, place, sent.get("deleteOptions") or {}, write)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def token_of(authenticator: Authenticator, place: Place, sent: Object) -> Object:
    """The answer to a ``TokenRequest`` of a service account; it does not expire."""
    seconds = (sent.get("spec") or {}).get("expirationSeconds", 3600)
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": place[1], "namespace": place[0]},
        "spec": sent.get("spec") or {},
        "status": {
            "token": authenticator.token(
                f"system:serviceaccount:{place[0]}:{place[1]}"
            ),
            "expirationTimestamp": timestamp(until),
        },
    }


def _least(spec: Object, count: int) -> int:
    """How many pods of a budget have to stay healthy."""

    def number(value: Any) -> int:
        if isinstance(value, str) and value.endswith("%"):
            return -(-count * int(value[:-1]) // 100)  # Rounded up, as documented.
        return int(value)

    if "minAvailable" in spec:
        return number(spec["minAvailable"])
    if "maxUnavailable" in spec:
        return count - number(spec["maxUnavailable"])
    return 0


def _is_ready(pod: Object) -> bool:
    return any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in (pod.get("status") or {}).get("conditions") or []
    )


def _at(made: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        made = made.get(part) if isinstance(made, dict) else None
    return made
