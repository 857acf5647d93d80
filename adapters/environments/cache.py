"""A folder of things that take long to make, shared by processes, made once each.

An entry ``NAME`` is the folder ``NAME``, complete when there is ``NAME.ready`` (which
holds its size), and locked by ``NAME.lock``: whoever uses it holds a shared lock,
whoever makes or removes it an exclusive one. The kernel drops locks of processes that
are killed, and an entry without its mark is made anew: half of one is never used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

_DAY_S = 86400.0


class Cache:
    """Entries of one folder.

    Args:
        folder: Where they are; it is made for the first.
        limit_bytes: What all that are not in use may have together with those in use.
        max_age_days: After how long without use they go; 0: never for that.
        log: Told of what takes time.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int,
        max_age_days: float,
        log: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._max_age_s = max_age_days * _DAY_S
        self._log = log
        self._held: dict[str, IO[str]] = {}

    @property
    def locks(self) -> list[str]:
        """The lock files of the entries that this process uses."""
        return [str(self._lock_path(name)) for name in self._held]

    def use(self, name: str, make: Callable[[Path], None]) -> Path:
        """An entry's folder, made if it is not there; locked until :meth:`close`.

        Args:
            name: Of the entry.
            make: Fills the folder that it gets, which does not exist.

        Raises:
            Exception: what ``make`` raised; nothing of the entry is left then.
        """
        folder, mark = self._folder / name, self._folder / f"{name}.ready"
        if name in self._held:
            return folder
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._lock_path(name).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            while not mark.exists():
                self._lock_alone(lock, name)
                if not mark.exists():
                    self._make(folder, mark, make)
                # Not atomic: it may be removed in between, and is made again.
                fcntl.flock(lock, fcntl.LOCK_SH)
            with contextlib.suppress(OSError):
                os.utime(mark)
        except BaseException:
            lock.close()
            raise
        self._held[name] = lock
        return folder

    def evict(self) -> list[str]:
        """Remove what nobody uses and is too old, or too much; their names.

        Also what a process that was killed left of one, but that is not told.
        """
        if not self._folder.exists():
            return []
        for path in self._folder.iterdir():
            if path.is_dir() and not (self._folder / f"{path.name}.ready").exists():
                self._remove(path.name.partition(".")[0], path)
        known = []
        for mark in self._folder.glob("*.ready"):
            with contextlib.suppress(OSError, ValueError):
                size_bytes = int(mark.read_text() or 0)
                known.append((mark.stat().st_mtime, size_bytes, mark))
        used = sum(size_bytes for _, size_bytes, _ in known)
        gone = []
        for used_s, size_bytes, mark in sorted(known):
            is_old = self._max_age_s and time.time() - used_s > self._max_age_s
            if used <= self._limit_bytes and not is_old:
                continue
            name = mark.name.removesuffix(".ready")
            if self._remove(name, self._folder / name):
                used -= size_bytes
                gone.append(name)
        return gone

    def _remove(self, name: str, folder: Path) -> bool:
        """Remove an entry's folder and mark; False if somebody uses it."""
        with self._lock_path(name).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            (self._folder / f"{name}.ready").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
        return True

    def close(self) -> None:
        """Use nothing any more."""
        for lock in self._held.values():
            lock.close()
        self._held.clear()

    def _lock_path(self, name: str) -> Path:
        return self._folder / f"{name}.lock"

    def _lock_alone(self, lock: IO[str], name: str) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._log(f"waiting for another process that makes {name}")
            fcntl.flock(lock, fcntl.LOCK_EX)

    def _make(self, folder: Path, mark: Path, make: Callable[[Path], None]) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
        try:
            make(folder)
            mark.write_text(str(_size(folder)))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def hold(paths: list[str]) -> list[IO[str]] | None:
    """Shared locks on entries, as long as the files are open; None if one is gone."""
    held: list[IO[str]] = []
    for path in paths:
        lock: IO[str] = open(path, "a")
        held.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            break
        if not os.path.exists(path.removesuffix(".lock") + ".ready"):
            break
    else:
        return held
    for lock in held:
        lock.close()
    return None


def _size(folder: Path) -> int:
    size_bytes = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size_bytes += os.lstat(os.path.join(base, name)).st_blocks * 512
    return size_bytes
