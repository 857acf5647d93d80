"""``ray.util.client``: what programs ask of the connection to a cluster."""

from __future__ import annotations

from typing import Any

from rayshim.util.client_connect import connect, disconnect

__all__ = ["RayAPIStub", "connect", "disconnect", "num_connected_contexts", "ray"]


class RayAPIStub:
    """The API as ``ray.util.client.ray`` has it: that of the whole package.

    Example:
        >>> ray.is_connected()
        False
    """

    def is_connected(self) -> bool:
        """Whether this process is a driver that came with ``ray://``."""
        from rayshim._core import session

        opened = session.session
        return opened is not None and opened.options.address.startswith("ray://")

    def connect(self, conn_str: str, **arguments: Any) -> dict[str, Any]:
        """See :func:`rayshim.util.client_connect.connect`."""
        return connect(conn_str, **arguments)

    def disconnect(self) -> None:
        """End the connection."""
        disconnect()

    def __getattr__(self, name: str) -> Any:
        import rayshim

        return getattr(rayshim, name)


ray = RayAPIStub()


def num_connected_contexts() -> int:
    """How many connections this process has: 0 or 1."""
    return int(ray.is_connected())
