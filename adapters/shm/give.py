"""Free segments, marked in the file system so that any process may take their memory.

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

FREE = ".free"
_TAKEN = ".taken"


def mark(path: str) -> None:
    """Say that a segment holds nothing."""
    with contextlib.suppress(FileNotFoundError):  # the session's folder is gone
        os.rename(path, path + FREE)


def unmark(path: str) -> bool:
    """Take a marked segment of this process back; False if its memory was taken."""
    try:
        os.rename(path + FREE, path)
    except FileNotFoundError:
        return False
    return True


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
