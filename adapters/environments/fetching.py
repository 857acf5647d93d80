"""Packages of runtime_envs, brought from the cluster or from anywhere else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayshim.adapters.environments.context import SetupFailed

#: How names begin of packages that the cluster keeps.
CLUSTER = "gcs://"


def fetch(uri: str, target: Path, ask: Callable[[str, Any], Any]) -> None:
    """Copy what a URI names into a file, piece by piece.

    Args:
        uri: ``gcs://NAME`` of the cluster, or one that fsspec knows.
        target: The file to write.
        ask: Asks the control service.

    Raises:
        SetupFailed: that does not work; the text says why and what to do.
    """
    try:
        with target.open("wb") as sink:
            if uri.startswith(CLUSTER):
                _fetch_from_cluster(uri.removeprefix(CLUSTER), sink, ask)
            elif uri.startswith(("http://", "https://")):
                import urllib.request

                with urllib.request.urlopen(uri) as source:
                    shutil.copyfileobj(source, sink, 1 << 20)
            else:
                import fsspec

                with fsspec.open(uri, "rb") as source:
                    shutil.copyfileobj(source, sink, 1 << 20)
    except (ImportError, ValueError) as error:
        raise SetupFailed(
            f"cannot download {uri}: {error} (fsspec reads it; each kind of storage "
            "needs its package on every node, as s3fs for s3://)"
        ) from error
    except Exception as error:
        raise SetupFailed(
            f"cannot download {uri}: {type(error).__name__}: {error}"
        ) from error


def _fetch_from_cluster(name: str, sink: Any, ask: Callable[[str, Any], Any]) -> None:
    offset = 0
    while data := ask("package_get", {"name": name, "offset": offset}):
        sink.write(data)
        offset += len(data)
