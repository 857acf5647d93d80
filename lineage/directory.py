"""Where the value of an object is, beside its primary copy.

The primary copy is what ``ObjectEntry.value`` names: the segment that the call or
``put`` wrote, until it is lost and another copy takes its place. An entry without
further copies has no :class:`Copies` at all, so a session on one node pays nothing.

Rules:

1. A node has at most one copy, and the primary's node is not among ``nodes``.
2. ``near`` is a copy that this process may read now: pinned for it on its own node
   until it says otherwise.
3. A copy that is reported as unreadable is out of the directory before another is
   named, so a reader that asks again gets nearer to the end of the list each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Copies:
    """The further copies of one object."""

    __slots__ = ("near", "nodes")

    def __init__(self) -> None:
        #: The copy on this node, pinned for this process (rule 2), or None.
        self.near: Any = None
        #: Hex ids of nodes with a copy, in the order in which they were made; a dict
        #: for its order. Known to the owner only.
        self.nodes: dict[str, None] = {}

    def made(self, node: str, primary: str) -> bool:
        """A node has a copy now; False if that is no news (rule 1)."""
        if node == primary or node in self.nodes:
            return False
        self.nodes[node] = None
        return True

    def promote(self, dead: Iterable[str] = ()) -> str:
        """The node whose copy becomes the primary; empty if there is none."""
        for node in dead:
            self.nodes.pop(node, None)
        for node in self.nodes:
            del self.nodes[node]
            return node
        return ""

    def __repr__(self) -> str:
        return f"Copies({list(self.nodes)}, near={self.near is not None})"
