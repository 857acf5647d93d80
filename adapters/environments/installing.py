"""Python packages in folders of their own: through uv, or venv and pip."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayshim.adapters.environments.context import SetupFailed
from rayshim.adapters.processes.lifeline import die_with_parent

Log = Callable[[str], None]

#: Lines of a tool that an error repeats.
LAST_LINES = 30
_PIP_OPTIONS = ["--disable-pip-version-check", "--no-cache-dir"]
#: Makes an interpreter of the environment see what this one does, after its own.
_PARENT = "_rayshim_parent.pth"


def install_packages(
    manager: str, spec: dict[str, Any], folder: Path, *, cwd: str, log: Log
) -> None:
    """Make a virtual environment that has packages, and sees those of this interpreter.

    Args:
        manager: "pip" or "uv".
        spec: The field of the runtime_env, in its dict form.
        folder: Of the environment.
        cwd: Where the tool runs: relative paths count from there.
        log: Told each line of the tools.

    Raises:
        SetupFailed: a tool failed; the text has its last lines.
    """
    log(f"creating a virtual environment for {len(spec['packages'])} packages")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    _show_parent(folder)
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(spec["packages"]) + "\n")
    python = str(folder / "bin" / "python")
    cwd = cwd or str(folder)
    version = spec.get(f"{manager}_version")
    options = spec.get(f"{manager}_pip_install_options")
    if manager == "pip":
        options = spec.get("pip_install_options")
    uv = _uv(python, version, cwd, log) if manager == "uv" else []
    if uv:
        what = [*(options or []), "-r", str(requirements)]
        run([*uv, "pip", "install", "--python", python, *what], cwd=cwd, log=log)
        if spec.get("uv_check"):
            run([*uv, "pip", "check", "--python", python], cwd=cwd, log=log)
        return
    if manager == "uv":
        log("uv is not installed here: pip does its work")
    pip = _pip(python, version if manager == "pip" else None, cwd, log)
    what = [*(_PIP_OPTIONS if options is None else options), "-r", str(requirements)]
    run([*pip, "install", "--no-input", *what], cwd=cwd, log=log)
    if spec.get(f"{manager}_check"):
        run([*pip, "check"], cwd=cwd, log=log)


def install_wheel(wheel: Path, folder: Path, log: Log) -> None:
    """Install a wheel into a folder that is put on the module path.

    Raises:
        SetupFailed: the tool failed.
    """
    pip = [sys.executable, "-m", "pip"]
    if not _has("pip"):
        uv = _find_uv()
        if not uv:
            raise SetupFailed(
                f"neither pip nor uv is installed for {sys.executable}, which the "
                f"wheel {wheel.name} in py_modules needs"
            )
        pip = [*uv, "pip"]
    command = [*pip, "install", str(wheel), "--target", str(folder)]
    run(command, cwd=str(wheel.parent), log=log)


def site_dir(folder: Path) -> Path:
    """Where the packages of an environment are."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


def run(command: list[str], *, cwd: str, log: Log) -> None:
    """Run a tool to its end.

    Raises:
        SetupFailed: it is missing or failed; the text has its last lines.
    """
    log(f"running {' '.join(command)}")
    last: deque[str] = deque(maxlen=LAST_LINES)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # It must not go on in a folder that nobody waits for any more.
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )
    except OSError as error:
        raise SetupFailed(f"cannot run {command[0]}: {error}") from error
    assert process.stdout is not None
    with contextlib.closing(process.stdout):
        for line in process.stdout:
            last.append(line.rstrip())
            log(line.rstrip())
    if process.wait():
        raise SetupFailed(
            f"{' '.join(command)}\nfailed with exit code {process.returncode}; its "
            "last lines:\n" + "\n".join(last)
        )


def _show_parent(folder: Path) -> None:
    parents = [*site.getsitepackages(), sysconfig.get_path("purelib")]
    if site.ENABLE_USER_SITE:
        parents.append(site.getusersitepackages())
    lines = [
        f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(parents)
    ]
    target = site_dir(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / _PARENT).write_text("\n".join(lines) + "\n")


def _pip(python: str, version: str | None, cwd: str, log: Log) -> list[str]:
    if version:
        _ensure_pip(python, cwd, log)
        run([python, "-m", "pip", "install", f"pip{version}"], cwd=cwd, log=log)
        return [python, "-m", "pip"]
    if _has("pip"):
        return [sys.executable, "-m", "pip", "--python", python]
    _ensure_pip(python, cwd, log)
    return [python, "-m", "pip"]


def _ensure_pip(python: str, cwd: str, log: Log) -> None:
    if not _has("pip"):
        run([python, "-m", "ensurepip"], cwd=cwd, log=log)


def _uv(python: str, version: str | None, cwd: str, log: Log) -> list[str]:
    if not version:
        return _find_uv()
    pip = _pip(python, None, cwd, log)
    run([*pip, "install", "--no-input", f"uv{version}"], cwd=cwd, log=log)
    return [os.path.join(os.path.dirname(python), "uv")]


def _find_uv() -> list[str]:
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    found = shutil.which("uv") or (beside if os.path.exists(beside) else "")
    if found:
        return [found]
    return [sys.executable, "-m", "uv"] if _has("uv") else []


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
