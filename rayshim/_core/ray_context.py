"""What ``init`` returns: facts about the session, and its end as a ``with`` block."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayshim._core.session import Session


class RayContext(Mapping[str, Any]):
    """The open session.

    Example:
        >>> with ray.init():  # doctest: +SKIP
        ...     print(ray.cluster_resources())
    """

    def __init__(self, session: Session | None) -> None:
        import rayshim

        self.dashboard_url = ""
        self.python_version = ".".join(map(str, sys.version_info[:3]))
        self.ray_version = rayshim.__version__
        self.ray_commit = rayshim.__commit__
        self.address_info: dict[str, Any] = {}
        self._resources: dict[str, float] = {}
        if session is not None and session.peer is not None:
            peer = session.peer
            self.dashboard_url = session.dashboard_url
            self._resources = session.options.resources
            self.address_info = {
                "node_ip_address": peer.node_ip,
                "redis_address": None,
                "object_store_address": str(session.store_dir),
                "raylet_socket_name": peer.raylet_address,
                "webui_url": session.dashboard_url,
                "session_dir": str(session.folder),
                "metrics_export_port": None,
                "gcs_address": peer.cluster_address,
                "address": peer.cluster_address,
                "dashboard_agent_listen_port": None,
                "node_id": session.node_id,
            }

    def __getitem__(self, key: str) -> Any:
        return self.address_info[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.address_info)

    def __len__(self) -> int:
        return len(self.address_info)

    def __enter__(self) -> RayContext:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """End the session."""
        from rayshim._core import session

        session.close_session()

    def _rows(self) -> list[tuple[str, str]]:
        amounts = {k: v for k, v in self._resources.items() if ":" not in k}
        return [
            ("Python version", self.python_version),
            ("rayshim version", _versions()),
            ("Session", str(self.address_info.get("session_dir", ""))),
            ("Resources", ", ".join(_amount(k, v) for k, v in amounts.items())),
            *self._links(),
        ]

    def _links(self) -> list[tuple[str, str]]:
        """Where to look into the session; no token in it, as notebooks are shared."""
        if not self.dashboard_url:
            return []
        return [("Dashboard", f"http://{self.dashboard_url}")]

    def __repr__(self) -> str:
        return (
            f"RayContext(dashboard_url={self.dashboard_url!r}, "
            f"python_version={self.python_version!r}, "
            f"ray_version={self.ray_version!r}, ray_commit={self.ray_commit!r})"
        )

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td>{_linked(value)}</td></tr>"
            for name, value in self._rows()
        )
        note = (
            "<p>The dashboard asks for the session's token once: "
            "<code>!rayshim get-auth-token</code> shows it.</p>"
            if self.dashboard_url
            else ""
        )
        return f"<table>{rows}</table>{note}"

    def __rich__(self) -> Any:
        """A table for rich consoles."""
        from rich.table import Table

        table = Table(title="rayshim session", show_header=False)
        for name, value in self._rows():
            table.add_row(name, value)
        return table


def _versions() -> str:
    import rayshim

    api = rayshim.__version__.partition("+")[0]
    return f"{rayshim.RAYSHIM_VERSION} (the API of Ray {api})"


def _amount(name: str, amount: float) -> str:
    """A resource for people; of memory only bytes are counted."""
    if name in ("memory", "object_store_memory"):
        return f"{name} {amount / 2**30:.1f} GiB"
    return f"{name} {amount:g}"


def _linked(value: str) -> str:
    """A text as HTML, as a link if it is one."""
    text = html.escape(value)
    if value.startswith("http://"):
        return f"<a href='{text}' target='_blank' rel='noopener'>{text}</a>"
    return text
