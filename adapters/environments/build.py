"""The process that builds one environment: told what on stdin, it answers on stdout.

The first line of its input is an :class:`Order`. Each line of its output is a
:class:`Told`: lines for people, and one with the context or an error in the end. Then
it keeps its locks until its input ends, so that the raylet can take over. It is a
process of its own since it may have to be killed, and since a node's event loop must go
on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rayshim.adapters.environments import conda, installing
from rayshim.adapters.environments.archives import strip_single_folder, unpack
from rayshim.adapters.environments.cache import Cache
from rayshim.adapters.environments.context import Context, SetupFailed
from rayshim.adapters.environments.fetching import CLUSTER, fetch

#: What Ray names the folder of the working_dir in the packages of ``pip`` and ``uv``.
_WORKING_DIR = "${RAY_RUNTIME_ENV_CREATE_WORKING_DIR}"
#: Of a line or an error: tools may print what has no end of line.
_MOST_CHARACTERS = 100_000
#: User and password of a URI, and its query, which may be a signature.
_USER = re.compile(r"(\w://)[^\s/?#'\"]+@")
_QUERY = re.compile(r"(\w://[^\s?#'\"]+\?)[^\s#'\"]+")
#: Seconds that an interpreter may take to say its version.
_VERSION_LIMIT_S = 60.0
_IMAGE_TEXT = (
    "runtime_env field {field!r}: executors are forked by their node and cannot run in "
    "an image of their own; start a node in that image instead (docker run IMAGE "
    "rayshim start --address=HOST:PORT --resources='{{\"in_image\": 1}}') and ask for "
    "its resource in the task or actor"
)


class Order(msgspec.Struct):
    """What is to be built, and with what."""

    #: The runtime_env without ``env_vars``.
    environment: dict[str, Any]
    #: For the tools.
    env_vars: dict[str, str]
    control_address: str
    token_path: str
    #: For what was unpacked; it ends with the session.
    session_cache: str
    #: For what was installed; the host's.
    host_cache: str
    limit_bytes: int
    max_age_days: float


class Told(msgspec.Struct):
    """One line of the answer."""

    log: str = ""
    error: str = ""
    context: Context | None = None


def main() -> None:
    """Build what the order on stdin says."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    os.environ.update(order.env_vars)

    def tell(told: Told) -> None:
        told.log = without_secrets(told.log)[:_MOST_CHARACTERS]
        told.error = without_secrets(told.error)[-_MOST_CHARACTERS:]
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()

    config = order.environment.get("config") or {}
    logs = Path(order.session_cache).parent / "logs"
    files = [logs / Path(name).name for name in config.get("log_files") or ()]

    def log(text: str) -> None:
        text = without_secrets(text)
        tell(Told(text))
        for path in files:
            with contextlib.suppress(OSError), path.open("a") as file:
                file.write(text + "\n")

    builder = Builder(order, log)
    try:
        context = builder.build()
    except SetupFailed as failure:
        log(f"failed: {failure}")
        tell(Told(error=str(failure) or "it failed without a word"))
    except Exception as error:
        tell(Told(error=f"{type(error).__name__}: {error}"))
    else:
        tell(Told(context=context))
        sys.stdin.buffer.read()
        builder.close()


class Builder:
    """Builds one environment.

    Args:
        order: What is wanted.
        log: Told of progress, for people.
    """

    def __init__(self, order: Order, log: Callable[[str], None]) -> None:
        self._order = order
        self._log = log
        limits: Any = {
            "limit_bytes": order.limit_bytes,
            "max_age_days": order.max_age_days,
            "log": log,
        }
        self._files = Cache(Path(order.session_cache), **limits)
        self._installed = Cache(Path(order.host_cache), **limits)
        self._connection: Any = None

    def build(self) -> Context:
        """Build all parts, or find them built.

        Raises:
            SetupFailed: a part cannot be built.
        """
        env, context = self._order.environment, Context()
        for field in ("image_uri", "container"):
            if env.get(field):
                raise SetupFailed(_IMAGE_TEXT.format(field=field))
        if env.get("working_dir"):
            context.working_dir = str(self._unpacked(env["working_dir"]))
            context.sys_path.append(context.working_dir)
        for uri in env.get("py_modules") or ():
            context.sys_path.append(str(self._unpacked(uri, is_module=True)))
        for manager in ("pip", "uv"):
            if env.get(manager):
                self._packages(manager, env[manager], context)
        if env.get("conda"):
            prefix = conda.prefix_of(env["conda"], self._installed, self._log)
            context.command = [str(prefix / "bin" / "python")]
            context.bin_dirs.append(str(prefix / "bin"))
            context.env_vars["CONDA_PREFIX"] = str(prefix)
            check_interpreter(context.command, f"the conda environment {prefix}")
        if env.get("py_executable"):
            context.command = shlex.split(env["py_executable"])
            cwd = context.working_dir or None
            name = f"py_executable {env['py_executable']!r}"
            check_interpreter(context.command, name, cwd)
        hook = env.get("worker_process_setup_hook") or ""
        context.hook = hook
        if hook.startswith(CLUSTER):
            context.hook = str(self._file(hook))
        for cache in (self._files, self._installed):
            for name in cache.evict():
                self._log(f"removed {name}, which nobody used for the longest time")
            context.locks += cache.locks
        return context

    def close(self) -> None:
        """Hold nothing any more."""
        self._files.close()
        self._installed.close()

    def _ask(self, method: str, payload: Any) -> Any:
        if self._connection is None:
            from rayshim.adapters.wire.oneshot import OneShot

            token = bytes.fromhex(Path(self._order.token_path).read_text().strip())
            self._connection = OneShot(self._order.control_address, token)
        return self._connection.ask(method, payload)

    def _file(self, uri: str) -> Path:
        """A package as it is."""

        def make(folder: Path) -> None:
            folder.mkdir()
            fetch(uri, folder / "content", self._ask)

        return self._files.use(_entry_name(uri), make) / "content"

    def _unpacked(self, uri: str, *, is_module: bool = False) -> Path:
        """The folder of a package's content."""

        def make(folder: Path) -> None:
            self._log(f"unpacking {uri}")
            archive = folder.with_name(folder.name + ".download")
            try:
                fetch(uri, archive, self._ask)
                if uri.endswith(".whl"):
                    self._install_wheel(archive, os.path.basename(uri), folder)
                    return
                unpack(archive, folder)
            except ValueError as error:
                raise SetupFailed(f"cannot unpack {uri}: {error}") from error
            finally:
                archive.unlink(missing_ok=True)
            if not uri.startswith(CLUSTER):
                # As archives of repositories are made; modules keep their folder.
                if not is_module or not _is_module(folder):
                    strip_single_folder(folder)
            inside = list(folder.iterdir())
            if is_module and len(inside) == 1 and inside[0].suffix == ".whl":
                # A wheel in an archive, which has kept its name so.
                self._install_wheel(inside[0], inside[0].name, folder)

        return self._files.use(_entry_name(uri), make)

    def _install_wheel(self, file: Path, name: str, folder: Path) -> None:
        beside = folder.with_name(folder.name + ".wheel")
        beside.mkdir(exist_ok=True)
        wheel = file.rename(beside / name)
        try:
            installing.install_wheel(wheel, folder, self._log)
        finally:
            shutil.rmtree(beside)

    def _packages(self, manager: str, spec: Any, context: Context) -> None:
        text = json.dumps(spec, sort_keys=True).replace(
            _WORKING_DIR, context.working_dir or _WORKING_DIR
        )
        spec = json.loads(text)
        key = json.dumps([manager, text, sys.version, sys.prefix, sys.platform])

        def make(folder: Path) -> None:
            installing.install_packages(
                manager, spec, folder, cwd=context.working_dir, log=self._log
            )

        folder = self._installed.use(f"{manager}-{_digest(key)}", make)
        context.site_dirs.append(str(installing.site_dir(folder)))
        context.bin_dirs.append(str(folder / "bin"))
        context.env_vars["VIRTUAL_ENV"] = str(folder)
        context.python = str(folder / "bin" / "python")


def without_secrets(text: str) -> str:
    """A text for people, without what lets somebody in of the URIs in it.

    Example:
        >>> without_secrets("no https://me:word@host/x.zip?signature=1 there")
        'no https://***@host/x.zip?*** there'
    """
    text = _USER.sub(r"\1***@", text)
    return _QUERY.sub(r"\1***", text)


def check_interpreter(command: list[str], name: str, cwd: str | None = None) -> None:
    """Check that a command runs Python of this version.

    Raises:
        SetupFailed: it does not; the text has its last lines.
    """
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [*command, "-c", ask],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupFailed(f"{name} cannot be run: {error}") from error
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-installing.LAST_LINES :])
        raise SetupFailed(f"{name} failed with exit code {done.returncode}:\n{last}")
    said = (done.stdout.split() or [""])[-1]
    wanted = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if said != wanted:
        raise SetupFailed(
            f"{name} runs Python {said}, and this cluster Python {wanted}: values and "
            f"functions cannot be exchanged between them; name one of Python {wanted}"
        )


def _is_module(folder: Path) -> bool:
    inside = [path for path in folder.iterdir() if path.name != "__MACOSX"]
    shutil.rmtree(folder / "__MACOSX", ignore_errors=True)
    return len(inside) == 1 and (inside[0] / "__init__.py").exists()


def _entry_name(uri: str) -> str:
    if uri.startswith(CLUSTER):
        return uri.removeprefix(CLUSTER).partition(".")[0]
    return f"uri-{_digest(uri)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


if __name__ == "__main__":
    main()
