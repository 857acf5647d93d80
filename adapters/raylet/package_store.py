"""Files of runtime_envs that processes hand to the cluster: kept on the head's disk.

They travel in pieces, so that neither side ever holds one as a whole in memory; they
outlive who uploaded them, as detached actors do, and a restart of the head. When all
of them together exceed a limit, those go that were not asked for the longest.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rayshim.adapters.raylet.control import ControlService

#: Bytes of one piece.
PIECE_BYTES = 1 << 20
#: Seconds after which an upload that does not go on counts as given up.
ABANDONED_S = 600.0
_NAME = re.compile(r"_ray_pkg_[0-9a-f]{16,64}\.(zip|whl|jar|py|pkl|tgz|tar\.[gx]z)")
_UPLOAD = re.compile(r"[0-9a-f]{8,64}")


class PackageName(msgspec.Struct):
    """Payload of ``package_size``."""

    name: str


class PackagePut(msgspec.Struct):
    """Payload of ``package_put``."""

    name: str
    #: Hex, chosen by the sender: two may upload the same package.
    upload: str
    offset: int
    data: bytes
    is_last: bool = False


class PackageGet(msgspec.Struct):
    """Payload of ``package_get``."""

    name: str
    offset: int


class PackageStore:
    """A folder of packages, by names that their content gives.

    Args:
        folder: Where they are; it is made at the first upload.
        limit_bytes: What all may have together.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes

    def size(self, payload: bytes) -> int:
        """The size of a package in bytes; -1 if it is not here."""
        path = self._path(msgspec.msgpack.decode(payload, type=PackageName).name)
        try:
            os.utime(path)
            return path.stat().st_size
        except OSError:
            return -1

    def put(self, payload: bytes) -> bool:
        """Take one piece; doing so twice is doing it once.

        Raises:
            ValueError: the name is none of a package, or a piece before it is missing.
        """
        piece = msgspec.msgpack.decode(payload, type=PackagePut)
        path = self._path(piece.name)
        if not _UPLOAD.fullmatch(piece.upload):
            raise ValueError(f"{piece.upload!r} is no name of an upload")
        if len(piece.data) > PIECE_BYTES:
            raise ValueError(f"a piece has at most {PIECE_BYTES} bytes")
        part = self.folder / f"{piece.name}.{piece.upload}.part"
        if not part.exists() and piece.offset and path.exists():
            return True  # the last piece, said again
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with part.open("ab" if piece.offset else "wb") as file:
            if file.tell() < piece.offset:
                raise ValueError(
                    f"the upload of {piece.name} misses the pieces from byte "
                    f"{file.tell()} on; upload it again"
                )
            if file.tell() == piece.offset:
                file.write(piece.data)
        if piece.is_last:
            part.rename(path)
            self._make_room(path)
        return True

    def get(self, payload: bytes) -> bytes:
        """One piece of a package, empty at its end.

        Raises:
            ValueError: it is not here.
        """
        wanted = msgspec.msgpack.decode(payload, type=PackageGet)
        try:
            with self._path(wanted.name).open("rb") as file:
                file.seek(wanted.offset)
                return file.read(PIECE_BYTES)
        except FileNotFoundError:
            raise ValueError(
                f"the cluster has no package {wanted.name} (any more): it was removed "
                "when newer ones needed the room (setting runtime_env_store_bytes); "
                "have a driver upload it again"
            ) from None

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a package")
        return self.folder / name

    def _make_room(self, newest: Path) -> None:
        now, used = time.time(), 0
        known = []
        for path in self.folder.iterdir():
            about = path.stat()
            if path.suffix == ".part":
                if now - about.st_mtime > ABANDONED_S:
                    path.unlink()
                continue
            used += about.st_size
            if path != newest:
                known.append((about.st_mtime, about.st_size, path))
        for _, size_bytes, path in sorted(known):
            if used <= self._limit_bytes:
                return
            path.unlink()
            used -= size_bytes


def of(control: ControlService) -> PackageStore:
    """The store of a control service, made when it is first asked for."""
    if control.packages is None:
        config = control._server.config
        limit_bytes = config.settings.get("runtime_env_store_bytes", 10 << 30)
        folder = Path(config.session_dir) / "packages"
        control.packages = PackageStore(folder, limit_bytes)
    return control.packages
