"""Keeps the events and logs of sessions that are over.

While a session runs, ``events/about.json`` in its folder says what it is and what is to
be kept of it; when its folder goes, ``events/`` and ``logs/`` are renamed to
``history/<folder>/`` beside it, which costs nothing, and the oldest of what is there
goes. Whoever removes the folder does so: the node process, the driver, or the next
``init``.

Each node has a folder of its own. Those of one cluster have the same ``cluster`` in
their ``about.json``, and lived at one time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

#: Of the folder beside those of sessions.
FOLDER = "history"
ABOUT = "about.json"
_ABOUT_KEYS = {"cluster", "is_head", "began_s", "history_sessions", "history_bytes"}
_KEPT_FOLDERS = ("events", "logs")


class Past(NamedTuple):
    """The part of one session that one node or head has left, or is writing."""

    #: Name of its folder.
    name: str
    folder: Path
    cluster: str
    is_head: bool
    #: Since the epoch; the end is 0 while it runs.
    began_s: float
    ended_s: float

    @property
    def events(self) -> Path:
        """Folder of its event files."""
        return self.folder / "events"


def begin(
    folder: Path, *, secret: bytes, head: str, is_head: bool, keep: int, keep_bytes: int
) -> None:
    """Says what a session is, in its folder.

    Args:
        folder: of the session.
        secret: what processes of one cluster have in common; only a hash is written.
        head: address of the control service.
        is_head: whether it is in this process.
        keep: sessions of which something is kept; 0: nothing is kept of this one.
        keep_bytes: that all of it may take.
    """
    cluster = hashlib.blake2b(secret + head.encode(), digest_size=8).hexdigest()
    about = {
        "cluster": cluster,
        "is_head": is_head,
        "began_s": time.time(),
        "history_sessions": keep,
        "history_bytes": keep_bytes,
    }
    events = folder / "events"
    events.mkdir(mode=0o700, exist_ok=True)
    scratch = events / f".{ABOUT}"
    scratch.write_text(json.dumps(about))
    scratch.replace(events / ABOUT)


def archive(folder: Path) -> Path | None:
    """Moves what is kept of a session that is over; the rest of its folder stays.

    Returns:
        Where it is now; None if nothing is kept.
    """
    about = _about(folder)
    if about is None or int(about.get("history_sessions", 0)) <= 0:
        return None
    root = folder.parent / FOLDER
    target = root / folder.name
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        target.mkdir(mode=0o700, exist_ok=True)
        for name in _KEPT_FOLDERS:
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.rename(folder / name, target / name)
    except OSError:
        return None  # another process has just done it, or the disk is not ours
    prune(root, int(about["history_sessions"]), int(about["history_bytes"]))
    return target


def prune(root: Path, keep: int, keep_bytes: int) -> None:
    """Removes the oldest sessions until so many are left, of so many bytes."""
    count, total = 0, 0
    seen: set[str] = set()
    for past in sorted(_past_in(root), key=lambda one: one.ended_s, reverse=True):
        if past.cluster not in seen:
            seen.add(past.cluster)
            count += 1
        total += _size_bytes(past.folder)
        is_newest = count == 1
        if count > keep or (total > keep_bytes and not is_newest):
            shutil.rmtree(past.folder, ignore_errors=True)


def _size_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _about(folder: Path) -> dict[str, Any] | None:
    try:
        about: dict[str, Any] = json.loads((folder / "events" / ABOUT).read_text())
        return about if _ABOUT_KEYS <= about.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _past_in(root: Path, *, runs: bool = False) -> list[Past]:
    found = []
    with contextlib.suppress(OSError):
        for folder in root.iterdir():
            about = _about(folder)
            if about is None and not runs and (folder / "events").is_dir():
                # It is damaged; the rest can be read.
                began_s = folder.stat().st_mtime
                about = {"cluster": folder.name, "is_head": True, "began_s": began_s}
            if about is None:
                continue
            ended_s = 0.0 if runs else folder.stat().st_mtime
            found.append(
                Past(
                    folder.name,
                    folder,
                    about["cluster"],
                    about["is_head"],
                    about["began_s"],
                    ended_s,
                )
            )
    return found


def sessions(root: Path) -> list[list[Past]]:
    """All sessions, the newest first; of each the parts that its nodes have left.

    Args:
        root: folder of the sessions of this user.
    """
    parts = _past_in(root / FOLDER) + _past_in(root, runs=True)
    parts.sort(key=lambda one: one.began_s)
    grouped: list[list[Past]] = []
    for part in parts:
        for group in grouped:
            is_same = group[0].cluster == part.cluster
            if is_same and any(_overlap(part, other) for other in group):
                group.append(part)
                break
        else:
            grouped.append([part])
    return grouped[::-1]


def _overlap(one: Past, other: Past) -> bool:
    first, second = sorted((one, other), key=lambda past: past.began_s)
    return not first.ended_s or second.began_s <= first.ended_s


def find(root: Path, name: str) -> list[Past]:
    """The parts of one session.

    Args:
        root: folder of the sessions of this user.
        name: of one of its folders, or the beginning of one; "last": the session that
            ended last, or, if none has, the newest that runs.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the beginning fits several.
    """
    known = sessions(root)
    if name == "last":
        over = [one for one in known if all(part.ended_s for part in one)]
        chosen = sorted(over, key=lambda one: max(part.ended_s for part in one))[-1:]
        chosen = chosen or known[:1]
    else:
        exact = [one for one in known if any(part.name == name for part in one)]
        chosen = exact or [
            one for one in known if any(part.name.startswith(name) for part in one)
        ]
    if not chosen:
        names = ", ".join(one[0].name for one in known[:10]) or "none"
        raise FileNotFoundError(
            f"no session {name!r} has left anything under {root} (there: {names}). The "
            "setting history_sessions says how many are kept."
        )
    if len(chosen) > 1:
        names = ", ".join(one[0].name for one in chosen)
        raise ValueError(f"{len(chosen)} sessions begin with {name!r}: {names}")
    return chosen[0]
