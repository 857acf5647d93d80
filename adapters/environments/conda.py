"""Environments that conda makes, where it is installed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayshim.adapters.environments.cache import Cache
from rayshim.adapters.environments.context import SetupFailed
from rayshim.adapters.environments.installing import run

#: Seconds that conda may take to list its environments.
_LIST_LIMIT_S = 120.0


def prefix_of(value: Any, cache: Cache, log: Callable[[str], None]) -> Path:
    """The folder of a conda environment.

    Args:
        value: Name or folder of one that is there, or the content of its file as a
            dict (``{"file": text}`` for one that was a file).
        cache: Where one of the second kind is made.
        log: Told each line of conda.

    Raises:
        SetupFailed: there is no conda, no such environment, or conda failed.
    """
    conda = os.environ.get("CONDA_EXE") or shutil.which("conda")
    if not conda:
        raise SetupFailed(
            "runtime_env field 'conda': the program conda is not on the PATH of this "
            "node (and CONDA_EXE names none). Install it on every node, or list the "
            "packages in the field 'pip' or 'uv' instead"
        )
    if isinstance(value, str):
        return _named(conda, value)
    # JSON is YAML, so the content needs no other writer.
    text = value["file"] if set(value) == {"file"} else json.dumps(value)

    def make(folder: Path) -> None:
        described = folder.with_name(folder.name + ".yml")
        described.write_text(text)
        try:
            command = [conda, "env", "create", "--prefix", str(folder)]
            run([*command, "--file", str(described)], cwd=str(folder.parent), log=log)
        finally:
            described.unlink()

    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return cache.use(f"conda-{digest}", make)


def _named(conda: str, name: str) -> Path:
    if os.sep in name:
        if not os.path.isdir(name):
            raise SetupFailed(f"there is no conda environment at {name}")
        return Path(name)
    try:
        done = subprocess.run(
            [conda, "env", "list", "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIST_LIMIT_S,
            check=True,
        )
        known = [Path(path) for path in json.loads(done.stdout)["envs"]]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise SetupFailed(f"conda cannot list its environments: {error}") from error
    for path in known:
        if path.name == name:
            return path
    if name == "base" and known:
        return known[0]
    names = ", ".join(sorted(path.name for path in known)) or "none"
    raise SetupFailed(f"there is no conda environment {name!r} here; known: {names}")
