"""How large a node's store may be, and whether shared memory can hold that."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("rayshim")

#: Ray's lower bound of ``object_store_memory``.
MIN_STORE_BYTES = 75 * 1024 * 1024
#: Share of the free memory that the store may take when nobody said how much.
DEFAULT_SHARE = 0.6
#: A default below this share of the free memory is worth a warning.
POOR_SHARE = 0.1
#: Share of /dev/shm that is used: others use it too.
SHM_SHARE = 0.95


def store_limit(
    asked_bytes: int | None, total_bytes: int, free_bytes: int, shm_bytes: int | None
) -> int:
    """What the store may hold; warns if shared memory is too small for it.

    Args:
        asked_bytes: ``init(object_store_memory=...)``.
        total_bytes: memory of the machine.
        free_bytes: what of it is available.
        shm_bytes: free bytes of /dev/shm; None: the store is elsewhere.

    Raises:
        ValueError: more was asked for than the machine has.
    """
    if asked_bytes is not None and asked_bytes > total_bytes:
        raise ValueError(
            f"object_store_memory is {asked_bytes:,} bytes, but this machine has "
            f"{total_bytes:,} bytes of memory in all; what does not fit is spilled to "
            "disk, so ask for less"
        )
    wanted = asked_bytes
    if wanted is None:
        wanted = max(MIN_STORE_BYTES, int(free_bytes * DEFAULT_SHARE))
    if shm_bytes is None:
        return wanted
    usable = int(shm_bytes * SHM_SHARE)
    if wanted <= usable:
        return wanted
    if asked_bytes is not None or usable < free_bytes * POOR_SHARE:
        advice = (
            "" if asked_bytes is None else ", or pass a smaller object_store_memory"
        )
        logger.warning(
            "The object store is limited to %s MB instead of %s MB: /dev/shm has only "
            "%s MB free, and values beyond are spilled to disk, which is slower. In a "
            "container, start it with more (docker run --shm-size=%sg; in Kubernetes "
            "an emptyDir with medium: Memory at /dev/shm)%s. Otherwise enlarge it "
            "(mount -o remount,size=... /dev/shm) or remove files there.",
            usable // 10**6,
            wanted // 10**6,
            shm_bytes // 10**6,
            max(1, -(-wanted // 10**9)),
            advice,
        )
    return max(usable, 1 << 20)


def free_shm_bytes() -> int | None:
    """Free bytes of /dev/shm; None where there is none that can be written."""
    if not os.access("/dev/shm", os.W_OK):
        return None
    about = os.statvfs("/dev/shm")
    return int(about.f_bavail * about.f_frsize)
