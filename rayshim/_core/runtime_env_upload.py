"""What a runtime_env refers to on the driver's machine, handed to the cluster.

:func:`prepare` gives a runtime_env that means the same on every node: folders,
archives, modules and functions are replaced by names of packages that the cluster
keeps.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rayshim._core import runtime_env_packing as packing
from rayshim._core.runtime_env_fields import is_uri
from rayshim.settings import Settings

logger = logging.getLogger("rayshim")

#: ``ask(method, payload)`` -> answer of the control service.
Ask = Callable[[str, Any], Any]

SCHEME = "gcs://"
_PIECE_BYTES = 1 << 20
#: Endings of files that are packages already.
_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.xz", ".whl", ".jar")


def prepare(
    runtime_env: Mapping[str, Any],
    ask: Ask,
    *,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """Upload what a runtime_env refers to; what the cluster has already stays there.

    Args:
        runtime_env: As users write it; it is not changed.
        ask: Sends a request to the control service and gives its answer:
            ``peer.request`` of a driver or ``OneShot.ask``.
        settings: Of the session; their ``runtime_env_package_bytes`` is the limit of
            one package.

    Returns:
        A plain dict that can be written as JSON, with URIs for ``working_dir`` and
        ``py_modules``, a package for a ``worker_process_setup_hook`` that is a
        function, and without ``excludes``. Preparing it again changes nothing.

    Raises:
        ValueError: a path does not exist, or a package is larger than allowed.
        TypeError: a field has the wrong type.

    Example:
        >>> prepare({"env_vars": {"A": "1"}}, ask=print)
        {'env_vars': {'A': '1'}}
    """
    env = dict(runtime_env)
    excludes = list(env.pop("excludes", None) or [])
    limit_bytes = (settings or Settings.from_environment()).runtime_env_package_bytes
    upload = _Uploads(ask, limit_bytes, excludes)
    if env.get("working_dir"):
        env["working_dir"] = upload.working_dir(env["working_dir"])
    if env.get("py_modules"):
        env["py_modules"] = [upload.module(one) for one in env["py_modules"]]
    hook = env.get("worker_process_setup_hook")
    if hook is not None and not isinstance(hook, str):
        if not callable(hook):
            raise TypeError(
                f"worker_process_setup_hook must be a function, got {type(hook)}."
            )
        env["worker_process_setup_hook"] = upload.function(hook)
    conda = env.get("conda")
    if isinstance(conda, str) and conda.endswith((".yml", ".yaml")):
        env["conda"] = {"file": Path(conda).read_text()}
    if "config" in env:
        env["config"] = dict(env["config"])
    return env


class _Uploads:
    """The uploads of one runtime_env."""

    def __init__(self, ask: Ask, limit_bytes: int, excludes: list[str]) -> None:
        self._ask = ask
        self._limit_bytes = limit_bytes
        self._excludes = excludes

    def working_dir(self, value: Any) -> str:
        text = os.fspath(value)
        if is_uri(text):
            return str(text)
        path = Path(text).expanduser().absolute()
        if path.is_dir():
            return self._folder("working_dir", path, "")
        if path.is_file() and path.name.endswith(
            (".zip", ".tar.gz", ".tgz", ".tar.xz")
        ):
            return self._file("working_dir", path, _ending(path))
        raise ValueError(
            f"directory {text} must be an existing directory or a supported archive "
            "(.zip, .tar.gz, .tgz, .tar.xz)"
        )

    def module(self, value: Any) -> str:
        if isinstance(value, ModuleType):
            paths = list(getattr(value, "__path__", []))
            path = Path(paths[0] if paths else value.__file__ or "")
        else:
            text = os.fspath(value)
            if is_uri(text):
                return str(text)
            path = Path(text).expanduser()
        path = path.absolute()
        if path.is_dir():
            return self._folder("py_modules", path, path.name)
        if path.is_file() and path.suffix == ".py":
            about = [(path.name, path)]
            digest = hashlib.blake2b(digest_size=16)
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
            name = f"_ray_pkg_{digest.hexdigest()}.zip"
            package = packing.Package(name, about, path.stat().st_size)
            return self._package(f"py_modules {path}", package)
        if path.is_file() and path.name.endswith(_ARCHIVES):
            return self._file("py_modules", path, _ending(path))
        raise ValueError(
            f"py_modules entry {str(path)!r} must be an existing folder, a .py file, a "
            "wheel or an archive"
        )

    def function(self, hook: Callable[..., Any]) -> str:
        import cloudpickle

        try:
            blob = cloudpickle.dumps(hook)
        except Exception as error:
            raise TypeError(
                f"worker_process_setup_hook {hook!r} cannot be pickled: {error}"
            ) from error
        name = f"_ray_pkg_{hashlib.blake2b(blob, digest_size=16).hexdigest()}.pkl"
        with tempfile.NamedTemporaryFile(prefix="rayshim-package-") as file:
            file.write(blob)
            file.flush()
            self._send(name, Path(file.name))
        return SCHEME + name

    def _folder(self, field: str, path: Path, under: str) -> str:
        package = packing.pack_folder(path, self._excludes, under=under)
        return self._package(f"{field} {path}", package)

    def _package(self, what: str, package: packing.Package) -> str:
        if self._ask("package_size", {"name": package.name}) >= 0:
            return SCHEME + package.name
        logger.info("Uploading %s", packing.described(what, package))
        archive = packing.zipped(package, what, self._limit_bytes)
        try:
            self._send(package.name, archive)
        finally:
            archive.unlink()
        return SCHEME + package.name

    def _file(self, field: str, path: Path, ending: str) -> str:
        size_bytes = path.stat().st_size
        what = f"{field} {path}"
        if size_bytes > self._limit_bytes:
            raise packing.too_large(what, size_bytes, self._limit_bytes)
        if ending == ".whl":
            # Its name says what is in it; installers insist on it.
            package = packing.Package("", [(path.name, path)], size_bytes)
            digest = packing.file_name(path, "").removeprefix("_ray_pkg_")
            package = package._replace(name=f"_ray_pkg_{digest}.zip")
            return self._package(what, package)
        name = packing.file_name(path, ending)
        if self._ask("package_size", {"name": name}) < 0:
            logger.info("Uploading %s: %s", what, packing.mib(size_bytes))
            self._send(name, path)
        return SCHEME + name

    def _send(self, name: str, path: Path) -> None:
        upload = os.urandom(8).hex()
        offset, size_bytes = 0, path.stat().st_size
        with path.open("rb") as file:
            while True:
                data = file.read(_PIECE_BYTES)
                end = offset + len(data)
                piece = {"name": name, "upload": upload, "offset": offset, "data": data}
                self._ask("package_put", {**piece, "is_last": end >= size_bytes})
                offset = end
                if end >= size_bytes:
                    return


def _ending(path: Path) -> str:
    return next(ending for ending in _ARCHIVES if path.name.endswith(ending))
