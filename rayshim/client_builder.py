"""``ray.client(...)``: the older way to say ``ray.init("ray://...")``.

Example:
    >>> import rayshim as ray
    >>> ray.client("head:10001").namespace("mine").connect()  # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING, Any

from rayshim._core.ray_context import RayContext
from rayshim.job_config import JobConfig

if TYPE_CHECKING:
    from rayshim._core.session import Session

__all__ = ["ClientBuilder", "ClientContext", "client"]

_DEPRECATED = (
    "Starting a connection through `ray.client` is deprecated in favor of `ray.init`. "
    "You can replace your call to `ray.client().connect()` with: ray.init({arguments})"
)


class ClientContext(RayContext):
    """What ``init("ray://...")`` and ``client(...).connect()`` return.

    Leaving its ``with`` block, or :meth:`disconnect`, ends the connection.

    Args:
        dashboard_url: ``HOST:PORT`` of the cluster's dashboard; empty without one.
        python_version: of the cluster, as "3.11.4".
        ray_version: of the API.
        ray_commit: of the API.
        _num_clients: drivers of this process, which is 1.
        _context_to_restore: None: a process has one connection.
    """

    def __init__(
        self,
        dashboard_url: str | None = None,
        python_version: str = "",
        ray_version: str = "",
        ray_commit: str = "",
        _num_clients: int = 1,
        _context_to_restore: Any = None,
    ) -> None:
        super().__init__(None)
        self.dashboard_url = dashboard_url or ""
        self.python_version = python_version or self.python_version
        self.ray_version = ray_version or self.ray_version
        self.ray_commit = ray_commit or self.ray_commit
        self._num_clients = _num_clients
        self._context_to_restore = _context_to_restore

    @classmethod
    def of_session(cls, session: Session | None) -> ClientContext:
        """The context of a session that was just opened."""
        facts = RayContext(session)
        context = cls(facts.dashboard_url)
        context.address_info = facts.address_info
        context._resources = facts._resources
        return context

    def __enter__(self) -> ClientContext:
        return self


class ClientBuilder:
    """Gathers the parameters of a connection to a cluster.

    Args:
        address: ``HOST:PORT`` of the cluster.

    Raises:
        ValueError: there is no address.
    """

    def __init__(self, address: str | None) -> None:
        if not address and type(self) is ClientBuilder:
            raise ValueError(
                "ClientBuilder needs an address: 'host:port' of the cluster; for a "
                "session on this machine call ray.init()"
            )
        self.address = address
        self._job_config = JobConfig()
        self._deprecation_warn_enabled = True

    def env(self, env: dict[str, Any]) -> ClientBuilder:
        """Set the runtime environment of the job.

        Args:
            env: as ``init(runtime_env=...)``.
        """
        self._job_config.set_runtime_env(env)
        return self

    def namespace(self, namespace: str) -> ClientBuilder:
        """Set the namespace of the job.

        Args:
            namespace: of named actors.
        """
        self._job_config.set_ray_namespace(namespace)
        return self

    def connect(self) -> ClientContext:
        """Connect to the cluster.

        RAY_NAMESPACE and RAY_RUNTIME_ENV (JSON) stand in for what was not set.

        Raises:
            ConnectionError: there is no such cluster.
            RuntimeError: a session is open already.
        """
        if self._deprecation_warn_enabled:
            self._warn()
        self._fill_from_environment()
        import rayshim

        rayshim.init(self._init_address(), job_config=self._job_config)
        from rayshim._core import session

        return ClientContext.of_session(session.session)

    def _init_address(self) -> str | None:
        return f"ray://{self.address}"

    def _fill_from_environment(self) -> None:
        namespace = os.environ.get("RAY_NAMESPACE")
        if namespace and self._job_config.ray_namespace is None:
            self.namespace(namespace)
        env = os.environ.get("RAY_RUNTIME_ENV")
        if env and not self._job_config.runtime_env:
            self.env(json.loads(env))

    def _warn(self) -> None:
        address = self._init_address()
        arguments = [f'"{address}"'] if address else []
        if self._job_config.ray_namespace:
            arguments.append(f'namespace="{self._job_config.ray_namespace}"')
        if self._job_config.runtime_env:
            arguments.append("runtime_env=...")
        text = _DEPRECATED.format(arguments=", ".join(arguments))
        warnings.warn(text, DeprecationWarning, stacklevel=3)


class _LocalClientBuilder(ClientBuilder):
    """Of ``client()`` and ``client("local")``: a driver on this machine."""

    def _init_address(self) -> str | None:
        return self.address


def client(
    address: str | None = None, _deprecation_warn_enabled: bool = True
) -> ClientBuilder:
    """A builder for the connection to a cluster.

    Args:
        address: "host:port" or "ray://host:port"; "local" for a new session on this
            machine; None: RAY_ADDRESS, else as ``init()`` without an address.
        _deprecation_warn_enabled: whether ``connect`` warns that ``init`` is the way.

    Returns:
        The builder; :meth:`ClientBuilder.connect` connects.

    Raises:
        ValueError: the address is empty, or of another protocol than ray://.

    Example:
        >>> client("head:10001").address
        'head:10001'
    """
    if address == "":
        raise ValueError("address must be None or 'host:port', not an empty text")
    address = address or os.environ.get("RAY_ADDRESS") or None
    builder: ClientBuilder
    if address is None or address == "local":
        builder = _LocalClientBuilder(address)
    else:
        protocol, separator, place = address.rpartition("://")
        if separator and protocol != "ray":
            raise ValueError(
                f"address {address!r}: {protocol}:// is no protocol of a cluster; use "
                "'host:port' or 'ray://host:port'"
            )
        builder = ClientBuilder(place)
    builder._deprecation_warn_enabled = _deprecation_warn_enabled
    return builder
