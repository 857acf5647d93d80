"""How pods are, for people who wait for them in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.services import is_ready

#: Lines of the log of a container that is not ready.
LOG_LINES = 12

#: (namespace, pod, container, previous) -> log.
ReadLog = Callable[[str, str, str, bool], str]


def describe(pods: Iterable[Object], read_log: ReadLog) -> str:
    """A line for each pod, with what those that are not ready have printed last.

    Args:
        pods: to describe.
        read_log: reads a container's log.
    """
    lines: list[str] = []
    for pod in pods:
        meta, status = pod["metadata"], pod.get("status") or {}
        name, namespace = meta["name"], meta.get("namespace", "")
        words = [status.get("phase", "Pending")]
        if meta.get("deletionTimestamp"):
            words.append("terminating")
        if pod["spec"].get("schedulingGates"):
            gates = ", ".join(one["name"] for one in pod["spec"]["schedulingGates"])
            words.append(f"gated by {gates}")
        if is_ready(pod):
            words.append("ready")
        words += [
            f"{one['type']}: {one['message']}"
            for one in status.get("conditions") or ()
            if one.get("message") and one["status"] != "True"
        ]
        lines.append(f"  {namespace}/{name}: {', '.join(words)}")
        for one in status.get("containerStatuses") or ():
            lines.append(f"    {one['name']}: {_state(one)}")
            if not one.get("ready"):
                is_waiting = "waiting" in one.get("state", {})
                text = read_log(namespace, name, one["name"], False)
                if not text and is_waiting:
                    text = read_log(namespace, name, one["name"], True)
                lines += [f"      | {line}" for line in text.splitlines()[-LOG_LINES:]]
    return "\n".join(lines) or "  there are no pods"


def _state(container: Object) -> str:
    words = []
    for kind, more in (container.get("state") or {}).items():
        detail = [
            str(more[key])
            for key in ("reason", "exitCode", "message")
            if more.get(key) not in (None, "")
        ]
        words.append(f"{kind} {' '.join(detail)}".strip())
    if container.get("restartCount"):
        words.append(f"restarted {container['restartCount']} times")
    return ", ".join(words)
