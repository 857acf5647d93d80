"""The folders of a session: made, found, and removed when their makers are dead."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

#: What a Unix socket address holds (sun_path, less its end mark).
_MAX_SOCKET_PATH_BYTES = 107
#: ``/s<pid>-<8 hex>/sockets/w-<16 hex>.sock`` comes after the root.
_MAX_ROOT_BYTES = (
    _MAX_SOCKET_PATH_BYTES - len("/s1234567-12345678/sockets/w-.sock") - 16
)
#: Folder of the notes that say where else sessions are.
ELSEWHERE = "elsewhere"
#: A folder whose driver is not seen is left alone for this long.
STALE_AFTER_S = 10.0


def make(folder: Path, store_dir: Path | None, token: bytes) -> Path:
    """Make the folders of a node, for this user alone.

    Args:
        folder: of the session.
        store_dir: of the node's store; None for a head, which has none.
        token: the cluster's.

    Returns:
        The path of the token's file.
    """
    for path in (folder, folder / "sockets", folder / "logs"):
        path.mkdir(mode=0o700)
    if store_dir is not None:
        store_dir.mkdir(mode=0o700)
    token_path = folder / "token"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(token_path, flags, 0o600), "w") as file:
        file.write(token.hex())
    return token_path


def session_root(temp_dir: str | None) -> Path:
    name = f"rayshim-{os.getuid()}"
    root = Path(temp_dir or tempfile.gettempdir()).absolute() / name
    if len(os.fsencode(root)) > _MAX_ROOT_BYTES:
        if temp_dir:
            raise ValueError(
                f"_temp_dir {temp_dir!r} is too long: the path of a socket holds "
                f"{_MAX_SOCKET_PATH_BYTES} bytes, which leaves "
                f"{_MAX_ROOT_BYTES - len(name) - 1} for it"
            )
        root = Path("/tmp") / name
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{root} belongs to another user; remove it or pass _temp_dir"
        )
    return root


def note_root(root: Path) -> None:
    """Let commands without a folder's name find what runs in another one.

    Args:
        root: as of :func:`session_root`.
    """
    usual = session_root(None)
    if root == usual:
        return
    notes = usual / ELSEWHERE
    notes.mkdir(mode=0o700, exist_ok=True)
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    scratch = notes / f".{name}.{os.getpid()}"
    scratch.write_text(str(root))
    scratch.replace(notes / name)


def known_roots(temp_dir: str | None) -> list[Path]:
    """Where sessions of this user may be.

    Args:
        temp_dir: only there; None: in the usual folder, and in those that
            :func:`note_root` has noted.
    """
    roots = [session_root(temp_dir)]
    if temp_dir is None:
        for note in sorted((roots[0] / ELSEWHERE).glob("[0-9a-f]*")):
            root = Path(note.read_text())
            if root.is_dir() and root.stat().st_uid == os.getuid():
                roots.append(root)
            else:
                note.unlink(missing_ok=True)
    return roots


def forget_root(root: Path) -> None:
    """Take back what :func:`note_root` has noted."""
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    notes = session_root(None) / ELSEWHERE
    (notes / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        notes.rmdir()  # unless there are others


def remove_stale(root: Path) -> None:
    """Remove what sessions left whose driver and node process were both killed."""
    for folder in root.glob("s*-*"):
        pid = folder.name[1:].partition("-")[0]
        if not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
            continue
        # The folder may be shared with a container whose processes are not seen here.
        if _is_served(folder) or time.time() - folder.stat().st_mtime < STALE_AFTER_S:
            continue
        remove(folder, *store_root(folder).glob(f"rayshim-{folder.name}-*"))


def remove(folder: Path, *stores: Path) -> None:
    """Remove the folder and stores of a session, and what it has spilled elsewhere."""
    if (folder / "spilled-to").exists():
        from rayshim.adapters.raylet import spill_target

        spill_target.remove_left(str(folder))
    if (folder / "events").exists():
        from rayshim.adapters.events import history

        history.archive(folder)
    for path in (*stores, folder):
        shutil.rmtree(path, ignore_errors=True)


def new_name() -> str:
    """A name for a session of this process; :func:`remove_stale` reads the pid."""
    return f"s{os.getpid()}-{os.urandom(4).hex()}"


def store_of(folder: Path, node_id: str) -> Path:
    """Where the store of a node is.

    Args:
        folder: of the session.
        node_id: hex id of the node.
    """
    return store_root(folder) / f"rayshim-{folder.name}-{node_id[:8]}"


def _is_served(folder: Path) -> bool:
    for path in folder.glob("sockets/node-*.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                continue
            return True
    return False


def store_root(folder: Path) -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else folder


def executor_path() -> list[str]:
    """Where executors look for modules: as the driver does."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = "/"  # somebody removed the current folder
    path = [os.path.normpath(os.path.join(here, entry)) for entry in sys.path]
    if here not in path:
        path.append(here)
    return [entry for entry in path if os.path.exists(entry)]


def occupy_standard_streams() -> None:
    """Open the null device where standard input, output or error is closed.

    Else a pipe or socket of the session would get the number, and a C library that
    prints, or the start of a process, would destroy it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
