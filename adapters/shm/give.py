"""Names of segment files: what they say, and the renames that decide who has them.

``NAME.w`` is being written, ``NAME`` is a value, ``NAME.free`` holds nothing, and
``NAME.kept`` is a value that the raylet took over to spill it.

A process keeps segments that hold nothing for its next values. Their memory counts
against the store all the same, so another process that finds the store full has to get
at it. The name of the file says that it is free, and a rename decides who has it: the
creator that writes it anew, or the process that needs the room. The creator touches a
mapping only after its rename succeeded, so truncating the file is safe.
"""

from __future__ import annotations

import contextlib
import os
import secrets

#: Holds nothing; for its creator, or for whoever needs the memory.
FREE = ".free"
#: Is being written.
WRITTEN = ".w"
#: Holds a value and belongs to the raylet, which has spilled it or is about to.
KEPT = ".kept"
_TAKEN = ".taken"


def mark(path: str) -> bool:
    """Say that a segment holds nothing; False if it is the creator's no more."""
    try:
        os.rename(path, path + FREE)
    except FileNotFoundError:  # spilled, or the session's folder is gone
        return False
    return True


def unmark(path: str) -> bool:
    """Take a marked segment of this process to write it; False if it was taken."""
    try:
        os.rename(path + FREE, path + WRITTEN)
    except FileNotFoundError:
        return False
    return True


def publish(path: str) -> None:
    """A segment is completely written: it is a value from now on."""
    os.rename(path + WRITTEN, path)


def claim(folder: str, wanted_bytes: int) -> bool:
    """Free the memory of marked segments of all processes.

    Args:
        folder: the node's store folder.
        wanted_bytes: enough.

    Returns:
        True if anything was freed.
    """
    freed = 0
    found = False
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(FREE):
                continue
            taken = f"{entry.path}{secrets.token_hex(4)}{_TAKEN}"
            try:
                os.rename(entry.path, taken)
            except FileNotFoundError:
                continue  # its creator was faster
            freed += os.stat(taken).st_blocks * 512
            found = True
            os.truncate(taken, 0)  # the creator's mapping would keep the memory
            os.unlink(taken)
            if freed >= wanted_bytes:
                break
    return found
