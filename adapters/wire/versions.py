"""What both ends of a channel have to agree on, and a table where they do not.

Functions and values travel pickled, which another minor version of Python may not
read; messages have a fixed layout, which :data:`WIRE_VERSION` counts.

Example:
    >>> ours = {"python": "3.11.9", "wire": "1"}
    >>> differences({"python": "3.11.4", "wire": "1"}, ours)
    []
    >>> differences({"python": "3.12.0", "wire": "1"}, ours)
    [('python', '3.12.0', '3.11.9')]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

#: Changed with every change of a message that an older version cannot read.
WIRE_VERSION = 1
#: What has to be the same -> how many parts of the number count.
_PARTS = {"python": 2, "wire": 1}
NOT_TOLD = "not told"


def own() -> dict[str, str]:
    """The versions of this process."""
    # This module's own package: it need not be imported to be asked.
    package = vars(sys.modules["rayshim"])
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "rayshim": str(package["RAYSHIM_VERSION"]),
        "wire": str(WIRE_VERSION),
    }


def differences(
    theirs: Mapping[str, str], ours: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """What differs and must not: (name, theirs, ours)."""
    rows = []
    for name, parts in _PARTS.items():
        one, other = theirs.get(name, NOT_TOLD), ours.get(name, NOT_TOLD)
        if one.split(".")[:parts] != other.split(".")[:parts]:
            rows.append((name, one, other))
    return rows


def check(theirs: Mapping[str, str], what: str) -> None:
    """See that this process can work with a cluster.

    Args:
        theirs: what the cluster's head told of itself.
        what: names this process in the error.

    Raises:
        RuntimeError: it cannot; the text has a table of the differences.
    """
    ours = own()
    if not differences(theirs, ours):
        return
    lines = [f"  {'':10}{'cluster':16}{what}"]
    for name in ("python", "rayshim", "wire"):
        one, other = theirs.get(name, NOT_TOLD), ours[name]
        mark = "  <-" if differences({**ours, name: one}, ours) else ""
        lines.append(f"  {name:10}{one:16}{other}{mark}")
    raise RuntimeError(
        "Version mismatch: the minor version of Python and the version of the wire "
        "protocol have to be the same everywhere in a cluster.\n"
        + "\n".join(lines)
        + "\nRun it with the Python and the rayshim of the cluster, or start the "
        "cluster with those of this process."
    )
