"""Where the parts of a value lie in a segment, and how large segments are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from rayshim.adapters.wire.address import node_of

#: Buffers start at multiples of this, so that vector loads of numpy and Arrow are
#: aligned (Arrow's columnar format recommends 64 bytes).
ALIGNMENT_BYTES = 64
#: Step between the capacities of small segments.
SMALL_STEP_BYTES = 64 * 1024
#: From this size on the step is an eighth of the power of two below.
SMALL_LIMIT_BYTES = 512 * 1024

#: A segment of a process (its tag and a number), or ``o-<hex object id>`` for a copy
#: that was pulled from another node.
NAME = re.compile(r"[0-9a-f]+-[0-9a-f]+|o-[0-9a-f]+")


#: First bytes of a segment: they name the owner of its value.
MARK_BYTES = 20
_MARK = b"RSO1"


def owner_mark(address: str) -> bytes:
    """The first part of each segment: a short name of its owner and of that's node.

    So the raylets find what a dead process, or the processes of a dead node, owned,
    also where the creator is dead as well.
    """
    name = hashlib.blake2b(address.encode(), digest_size=8).digest()
    return _MARK + name + node_of(address).encode().ljust(8, b"\0")


def node_of_mark(mark: bytes) -> str:
    """First hex digits of the owner's node; empty in a session on one node."""
    return mark[12:].rstrip(b"\0").decode("ascii", "replace")


def aligned(offset: int) -> int:
    """The first multiple of the alignment that is not below ``offset``."""
    return (offset + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES


def plan(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Lays parts out one after the other.

    Args:
        sizes: bytes of each part, >= 0; the pickle stream first.

    Returns:
        ``[offset, size, offset, size, ...]`` and the end of the last part.
    """
    layout: list[int] = []
    end = 0
    for size_bytes in sizes:
        offset = aligned(end)
        layout += (offset, size_bytes)
        end = offset + size_bytes
    return layout, end


def is_within(layout: Sequence[int], capacity: int) -> bool:
    """Whether every part of a layout that came from a peer lies in its segment."""
    if len(layout) < 2 or len(layout) % 2:
        return False
    return all(
        0 <= offset and 0 <= size_bytes <= capacity - offset
        for offset, size_bytes in zip(layout[::2], layout[1::2], strict=True)
    )


def capacity_for(size_bytes: int) -> int:
    """The capacity of the class that holds ``size_bytes``.

    Classes are 64 KiB apart below 512 KiB and an eighth of a power of two apart
    above, so that at most 12.5 % of a large segment lies idle, and values whose
    sizes differ a little reuse each other's memory.
    """
    step = SMALL_STEP_BYTES
    if size_bytes > SMALL_LIMIT_BYTES:
        step = 1 << ((size_bytes - 1).bit_length() - 4)
    return max(step, -(-size_bytes // step) * step)
