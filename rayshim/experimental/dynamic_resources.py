"""Resources that change while a node runs: gone from Ray, refused here too."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["set_resource"]


def set_resource(resource_name: str, capacity: float, node_id: Any = None) -> NoReturn:
    """Refuse to change a node's resources.

    Raises:
        DeprecationWarning: always, as in Ray.
    """
    raise DeprecationWarning(
        f"set_resource({resource_name!r}, {capacity}): resources of a node do not "
        "change while it runs. Give them at its start (`init(resources=...)`, "
        "`Cluster.add_node(resources=...)`), or use placement groups."
    )
