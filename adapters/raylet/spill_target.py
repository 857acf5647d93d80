"""Where spilled values lie: a folder of this node, or a URL.

The files are named as in the store and have the same layout, so that those in a folder
can be mapped as they are. Every method but ``close`` may take long: threads call them.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

#: Bytes that one system call copies.
CHUNK_BYTES = 64 << 20
#: In the session's folder: where its spilled values are, for the next ``init``.
NOTE = "spilled-to"
_FULL_CODES = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


class SpillFull(Exception):
    """The target takes no more."""


class SpillTarget(Protocol):
    """A place for spilled values."""

    #: For people.
    name: str

    def write(self, path: str, name: str) -> int:
        """Copy a file of the store; its size in bytes.

        Raises:
            SpillFull: it does not fit; nothing is left behind.
        """
        ...

    def read(self, name: str, path: str) -> None:
        """Copy a spilled value to a new file of the store.

        Raises:
            FileNotFoundError: there is no such value.
        """
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove values, where they exist."""
        ...

    def close(self) -> None:
        """Remove everything."""
        ...


class FolderTarget:
    """A folder on a disk of the node."""

    def __init__(self, folder: str) -> None:
        """Uses the folder, which is made at the first need."""
        self.name = self.folder = folder

    def _make(self) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def path(self, name: str) -> str:
        """The file of a value."""
        return f"{self.folder}/{name}"

    def write(self, path: str, name: str) -> int:
        """See :class:`SpillTarget`."""
        self._make()
        target = self.path(name)
        try:
            size = copy_file(path, target + ".w")
            os.rename(target + ".w", target)
        except OSError as error:
            Path(target + ".w").unlink(missing_ok=True)
            if error.errno in _FULL_CODES:
                raise SpillFull(f"{self.folder}: {error.strerror}") from None
            raise
        return size

    def read(self, name: str, path: str) -> None:
        """See :class:`SpillTarget`."""
        copy_file(self.path(name), path)

    def remove(self, names: Iterable[str]) -> None:
        """See :class:`SpillTarget`."""
        for name in names:
            Path(self.path(name)).unlink(missing_ok=True)

    def close(self) -> None:
        """See :class:`SpillTarget`."""
        shutil.rmtree(self.folder, ignore_errors=True)


class UrlTarget:
    """A folder of a file system that fsspec knows (``s3://bucket/folder``)."""

    def __init__(self, url: str) -> None:
        """Opens the file system.

        Raises:
            ImportError: fsspec, or what it needs for the URL, is not installed.
        """
        try:
            import fsspec
        except ImportError:
            raise ImportError(
                f"the setting spill_dir is a URL ({url}), for which the package fsspec "
                "is needed (and what it needs for that URL, as s3fs): install it on "
                "every node, or name a folder"
            ) from None
        self.name = url
        self._system: Any
        self._system, self._folder = fsspec.core.url_to_fs(url)

    def _remote(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def write(self, path: str, name: str) -> int:
        """See :class:`SpillTarget`."""
        try:
            self._system.makedirs(self._folder, exist_ok=True)
            self._system.put_file(path, self._remote(name))
        except OSError as error:
            self.remove([name])
            if error.errno in _FULL_CODES:
                raise SpillFull(f"{self.name}: {error.strerror}") from None
            raise
        return os.stat(path).st_size

    def read(self, name: str, path: str) -> None:
        """See :class:`SpillTarget`."""
        self._system.get_file(self._remote(name), path)
        os.chmod(path, 0o600)

    def remove(self, names: Iterable[str]) -> None:
        """See :class:`SpillTarget`."""
        for name in names:
            if self._system.exists(self._remote(name)):
                self._system.rm_file(self._remote(name))

    def close(self) -> None:
        """See :class:`SpillTarget`."""
        if self._system.exists(self._folder):
            self._system.rm(self._folder, recursive=True)


def open_target(spill_dir: str, session_dir: str, label: str) -> SpillTarget:
    """The target of a node, noted in the session's folder if it lies elsewhere.

    Args:
        spill_dir: the setting: a folder, a URL, or empty for the session's folder.
        session_dir: the session's folder on this node.
        label: name of this node's part (``rayshim-<session>-<node>``).
    """
    if not spill_dir:
        return FolderTarget(os.path.join(session_dir, "spill"))
    is_url = "://" in spill_dir
    place = f"{spill_dir.rstrip('/')}/{label}"
    if not is_url:
        place = os.path.abspath(place)
    with open(os.path.join(session_dir, NOTE), "w", encoding="utf-8") as note:
        json.dump(place, note)
    return UrlTarget(place) if is_url else FolderTarget(place)


def remove_left(session_dir: str) -> None:
    """Remove what an ended session has spilled outside of its folder."""
    try:
        place = json.loads(Path(session_dir, NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if not isinstance(place, str) or "rayshim-" not in place:
        return
    try:
        target = UrlTarget(place) if "://" in place else FolderTarget(place)
        target.close()
    except (ImportError, OSError):
        pass  # the next session of a process that can reach it tries again


def remove_file(path: str) -> None:
    """Remove a file, if it exists."""
    Path(path).unlink(missing_ok=True)


def copy_file(origin: str, target: str) -> int:
    """Copy what a file really holds; its tail may be a hole, and stays one."""
    source = os.open(origin, os.O_RDONLY | os.O_CLOEXEC)
    try:
        about = os.fstat(source)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        sink = os.open(target, flags, 0o600)
        try:
            held = min(about.st_size, about.st_blocks * 512)
            offset = 0
            while offset < held:
                count = min(CHUNK_BYTES, held - offset)
                sent = os.sendfile(sink, source, offset, count)
                if not sent:
                    break
                offset += sent
            os.ftruncate(sink, about.st_size)
        finally:
            os.close(sink)
        return about.st_size
    finally:
        os.close(source)
