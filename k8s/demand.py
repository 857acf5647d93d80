"""The cluster as the autoscaler, the drills and ``status`` see it.

For the runtime "rayshim" it is the head's control service, over its channel; for
"dask" it is Dask's scheduler (:mod:`rayshim.adapters.dask.platform_link`).
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from rayshim.adapters.wire.tls import Credentials
from rayshim.autoscaler.control import (
    Control,
    HeadControl,
    head_address,
    read_token,
)
from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.lineage.demand import NODE_GROUP_LABEL, Demand

#: Ports behind the operator's Service of the head.
HEAD_PORT: Final = 6379
DASK_PORT: Final = 8786
#: Where the Secrets are mounted in pods.
TOKEN_PATH: Final = "/etc/rayshim/token/token"
TLS_DIRECTORY: Final = "/etc/rayshim/tls"
#: Of a Secret of type kubernetes.io/tls, as cert-manager fills it.
TLS_KEYS: Final = ("ca.crt", "tls.crt", "tls.key")
#: Variables that say where these are.
TLS_VARIABLES: Final = ("RAYSHIM_TLS_CA", "RAYSHIM_TLS_CERT", "RAYSHIM_TLS_KEY")
#: Name in the platform's certificates, as in those of `rayshim cert`.
TLS_NAME: Final = "rayshim"
#: Seconds for one answer.
LIMIT_S: Final = 5.0

__all__ = [
    "ClusterLink",
    "Control",
    "WorkerName",
    "fetch_demand",
    "open_link",
    "parse_worker",
    "tls_files",
]


class ClusterLink(Control, Protocol):
    """A cluster that can be asked what it lacks, and told to let nodes go.

    Every method raises ``ConnectionError`` ("the head at ... does not answer") while
    the cluster is away, and works again once it is back, wherever its name leads then.
    """

    def close(self) -> None:
        """Ends the connection. Idempotent."""


@dataclass(frozen=True, slots=True)
class WorkerName:
    """The parts of a worker's name."""

    group: str
    #: Empty: of no gang.
    gang: str = ""


_WORKER = re.compile(r"^(?P<group>.+)-worker-[0-9a-f]{10}$")
_GANG = re.compile(r"^(?P<group>.+)-(?P<gang>g[0-9a-f]{9})$")


def parse_worker(
    platform: str, name: str, groups: Iterable[str] = ()
) -> WorkerName | None:
    """The group of a worker by its name; None: it is not one of the platform.

    Args:
        platform: name of the platform.
        name: ``<platform>-<group>[-<gang>]-worker-<10 hex>``.
        groups: names of groups that there are; one of them is preferred to a gang.

    Example:
        >>> parse_worker("demo", "demo-gpu-train-g7f20c1d2e-worker-0123456789")
        WorkerName(group='gpu-train', gang='g7f20c1d2e')
    """
    found = _WORKER.match(name)
    if found is None or not found["group"].startswith(f"{platform}-"):
        return None
    group = found["group"].removeprefix(f"{platform}-")
    of_gang = _GANG.match(group)
    if group in set(groups) or of_gang is None:
        return WorkerName(group)
    return WorkerName(of_gang["group"], of_gang["gang"])


def tls_files(directory: str = "") -> Credentials:
    """The files of a mounted Secret of type kubernetes.io/tls.

    Args:
        directory: where they are; empty: as the pod is told by ``RAYSHIM_TLS_CA``,
            ``RAYSHIM_TLS_CERT`` and ``RAYSHIM_TLS_KEY``, or :data:`TLS_DIRECTORY`.
    """
    told = {} if directory else os.environ
    ca, cert, key = (
        told.get(variable) or f"{directory or TLS_DIRECTORY}/{name}"
        for variable, name in zip(TLS_VARIABLES, TLS_KEYS, strict=True)
    )
    return Credentials(ca, cert, key, TLS_NAME)


def open_link(
    platform: Platform,
    *,
    host: str | None = None,
    port: int | None = None,
    token_path: str | Path = TOKEN_PATH,
    tls: Credentials | None = None,
    limit_s: float = LIMIT_S,
) -> ClusterLink:
    """A link to the platform's cluster; it connects with the first question.

    Args:
        platform: the file; its runtime says what is asked.
        host: of the head; None: of its Service inside the Kubernetes cluster.
        port: of the head; None: 6379, or 8786 of Dask's scheduler.
        token_path: file with the cluster's token (runtime "rayshim").
        tls: files for TLS; None: those of the mounted Secret if the platform has TLS.
        limit_s: seconds for one answer.

    Raises:
        ValueError: the token, or the files for TLS, are not usable.
    """
    where = host or names.head_host(platform.name, platform.namespace)
    if tls is None and platform.tls.is_enabled:
        tls = tls_files()
    if platform.runtime == "dask":
        return _dask_link(platform, where, port or DASK_PORT, tls, limit_s)
    return HeadControl(
        head_address(where, port or HEAD_PORT),
        read_token(Path(token_path)),
        tls=tls,
        limit_s=limit_s,
    )


def labels_of(platform: Platform) -> Callable[[str], Mapping[str, str]]:
    """A function from the name of a Dask worker to the labels of its node."""
    groups = tuple(one.name for one in platform.groups)

    def labels(name: str) -> Mapping[str, str]:
        found = parse_worker(platform.name, name, groups)
        if found is None:
            return {}
        gang = {names.GANG: found.gang} if found.gang else {}
        group = [one for one in platform.groups if one.name == found.group]
        own = dict(group[0].node_group().labels) if group else {}
        return {
            **own,
            NODE_GROUP_LABEL: found.group,
            names.WORKER: name,
            **gang,
        }

    return labels


def _dask_link(
    platform: Platform, host: str, port: int, tls: Credentials | None, limit_s: float
) -> ClusterLink:
    from rayshim.adapters.dask.platform_link import DaskLink

    scheme = "tls" if tls is not None else "tcp"
    return DaskLink(
        f"{scheme}://{host}:{port}",
        labels_of=labels_of(platform),
        tls=tls,
        limit_s=limit_s,
    )


def fetch_demand(url: str, token: str, *, limit_s: float = LIMIT_S) -> Demand:
    """The demand over HTTP, for those outside (``GET /api/demand``).

    Args:
        url: of the head's HTTP endpoint, as "http://127.0.0.1:8080".
        token: the cluster's, hex.
        limit_s: seconds for the answer.

    Raises:
        ConnectionError: nobody answers, or not with this token.
        ValueError: what came is no demand of this version.
    """
    asked = urllib.request.Request(
        f"{url.rstrip('/')}/api/demand", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=limit_s) as answer:
            record: dict[str, Any] = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        hint = "the token is not this cluster's" if error.code == 401 else error.reason
        error.close()
        raise ConnectionError(f"{url} refused ({error.code}): {hint}") from None
    except OSError as error:
        raise ConnectionError(f"the head at {url} does not answer: {error}") from error
    return Demand.from_json(record)
