"""The head, reached from outside the Kubernetes cluster with what its Secrets hold."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rayshim.adapters.wire.tls import Credentials
from rayshim.k8s import names
from rayshim.k8s.api import Kube
from rayshim.k8s.config import Platform
from rayshim.k8s.demand import TLS_KEYS, ClusterLink, open_link, tls_files
from rayshim.k8s.failures import ClusterRefuses

_MAKERS: Final = (
    "`rayshim k8s up` makes that of the token, cert-manager or you that of TLS"
)


@contextmanager
def reached(
    kube: Kube, platform: Platform, *, head: str | None = None, token_path: str = ""
) -> Iterator[ClusterLink]:
    """A link to the head; token and certificates come from their Secrets.

    Args:
        kube: the platform's namespace.
        platform: the file.
        head: "HOST" or "HOST:PORT" by which this process reaches the head; None: its
            Service, as inside the Kubernetes cluster.
        token_path: file with the token; empty: it is read from its Secret.

    Raises:
        ClusterRefuses: a Secret is not there, or lacks a key.
        Forbidden: it may not be read.
        ValueError: what it holds is not usable, or the port is no number.
    """
    host, port = place_of(head)
    with credentials(kube, platform, token_path) as (path, tls):
        link = open_link(platform, host=host, port=port, token_path=path, tls=tls)
        try:
            yield link
        finally:
            link.close()


@contextmanager
def credentials(
    kube: Kube, platform: Platform, token_path: str = ""
) -> Iterator[tuple[str, Credentials | None]]:
    """Files with the token and the certificates of a platform, as long as needed.

    Args:
        kube: the platform's namespace.
        platform: the file.
        token_path: file with the token; empty: it is read from its Secret.

    Returns:
        Path of the token's file (empty for the runtime "dask"), and the files for TLS
        (None without).

    Raises:
        ClusterRefuses: a Secret is not there, or lacks a key.
        Forbidden: it may not be read.
    """
    # Files, for the libraries that take nothing else; for this user's eyes alone.
    with tempfile.TemporaryDirectory(prefix="rayshim-k8s-") as folder:
        tls = None
        if platform.tls.is_enabled:
            _write(kube, platform.tls.secret, TLS_KEYS, Path(folder))
            tls = tls_files(folder)
        if platform.runtime == "rayshim" and not token_path:
            _write(kube, names.token_secret(platform.name), ("token",), Path(folder))
            token_path = f"{folder}/token"
        yield token_path, tls


def place_of(head: str | None) -> tuple[str | None, int | None]:
    """Host and port of "HOST" or "HOST:PORT"; None for what is not said.

    Raises:
        ValueError: the port is no number.

    Example:
        >>> place_of("127.0.0.1:6379"), place_of("[::1]:6379"), place_of(None)
        (('127.0.0.1', 6379), ('::1', 6379), (None, None))
    """
    if not head:
        return None, None
    host, colon, port = head.rpartition(":")
    if not colon or head.endswith("]"):
        return head.strip("[]"), None
    if not port.isdecimal():
        raise ValueError(f"--head must be HOST or HOST:PORT, not {head!r}")
    return host.strip("[]"), int(port)


def _write(kube: Kube, secret: str, keys: tuple[str, ...], folder: Path) -> None:
    found = kube.get("Secret", secret)
    if found is None:
        raise ClusterRefuses(
            f"there is no Secret {secret} in {kube.namespace}; {_MAKERS}"
        )
    data = found.get("data") or {}
    for key in keys:
        if not data.get(key):
            raise ClusterRefuses(
                f"Secret {secret} in {kube.namespace} has no key {key}; {_MAKERS}"
            )
        path = folder / key
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(data[key]))
