"""A Kubernetes API server in memory, in a thread of the process that tests.

It keeps and validates objects and tells watchers of them; nothing acts on them.
Controllers, scheduler and kubelet are clients like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Object = dict[str, Any]

#: (verb "create", "update" or "delete"; "pods" or "daskclusters.kubernetes.dask.org";
#: the object; the user) -> the object to store instead. Raises Refusal to refuse it.
Admission = Callable[[str, str, Object, str], Object]

#: (namespace, pod, container or "", query) -> the log.
PodLog = Callable[[str, str, str, dict[str, str]], bytes]


@dataclass(frozen=True, slots=True)
class Call:
    """A request, as RBAC sees it."""

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str


class Store:
    """The objects; each method may be called from any thread.

    What is given is a copy.
    """

    def get(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """One object; None if there is none.

        Args:
            resource: "pods", "deployments", "daskclusters": a plural name.
            name: of the object.
            namespace: "" for kinds that are in none.
        """
        raise NotImplementedError

    def list(
        self, resource: str, namespace: str = "", labels: str = ""
    ) -> list[Object]:
        """All objects of a kind.

        Args:
            resource: a plural name.
            namespace: "" for all.
            labels: a label selector, as in "app=web,tier in (a, b)".
        """
        raise NotImplementedError


class ApiServer:
    """The server.

    Args:
        enforce_rbac: answer 403 to what no Role allows. Users of group
            "system:masters" (the admin token's) may do all.
        tls: serve https with a certificate of its own (kubectl sends no token
            over http).
        port: 0 for any that is free.

    Attributes:
        admission: hooks, called in this order when objects are created, updated or
            deleted. They run in the server's loop: they may read ``api.store``, but make
            no requests.
        pod_log: what answers ``pods/log``.
        requests: every request so far.
        store: the objects.

    Example:
        >>> with ApiServer() as api:
        ...     api.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(
        self,
        *,
        enforce_rbac: bool = False,
        tls: bool = False,
        port: int = 0,
    ) -> None:
        self.admission: list[Admission] = []
        self.pod_log: PodLog | None = None
        self.requests: list[Call] = []
        self.store = Store()
        self.url = ""
        #: The token of user "admin", who may do all.
        self.admin_token = "admin"

    def start(self) -> None:
        """Serve, from when this returns."""
        raise NotImplementedError

    def stop(self) -> None:
        """End watches and connections, and the thread, within a second."""
        raise NotImplementedError

    def __enter__(self) -> ApiServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def token(self, user: str, groups: tuple[str, ...] = ()) -> str:
        """A bearer token of a user, "system:serviceaccount:<ns>:<name>" for example."""
        raise NotImplementedError

    def kubeconfig(
        self, path: Path, *, token: str | None = None, namespace: str = "default"
    ) -> Path:
        """Write a kubeconfig.

        Args:
            path: the file.
            token: another one than the admin's.
            namespace: of its context.
        """
        raise NotImplementedError

    def install(self, *objects: Object) -> None:
        """Create objects as the admin: CRDs (objects of their kinds may follow), nodes."""
        raise NotImplementedError

    def fail(
        self,
        predicate: Callable[[Call], bool],
        how: int | Literal["drop", "hang"],
        times: int = 1,
    ) -> None:
        """Let the next requests fail.

        Args:
            predicate: which ones.
            how: an HTTP status, "drop" to close the connection without an answer, or
                "hang" to not answer.
            times: how many.
        """
        raise NotImplementedError

    def pause(self) -> None:
        """Refuse connections, and cut those that are there, watches too."""
        raise NotImplementedError

    def resume(self) -> None:
        """Serve again, at the same address."""
        raise NotImplementedError
