"""A Kubernetes API server in memory, in a thread of the process that tests.

It keeps and validates objects, tells watchers of them, and deletes what has no owner or
no namespace any more. Nothing else acts on them: Deployment controller, scheduler and
kubelet are clients like any other.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import uvicorn
import yaml

from rayshim.k8s.testing.localkube.answering import Answerer, PodLog
from rayshim.k8s.testing.localkube.authorizing import (
    MASTERS,
    Authenticator,
    Authorizer,
    Call,
)
from rayshim.k8s.testing.localkube.certificates import self_signed
from rayshim.k8s.testing.localkube.decoding import Write
from rayshim.k8s.testing.localkube.faults import Faults, How
from rayshim.k8s.testing.localkube.removing import Remover
from rayshim.k8s.testing.localkube.resources import Registry
from rayshim.k8s.testing.localkube.serving import Application
from rayshim.k8s.testing.localkube.statuses import Refusal
from rayshim.k8s.testing.localkube.store import KEPT_EVENTS, Store
from rayshim.k8s.testing.localkube.writing import Admission, Writer

__all__ = ["Admission", "ApiServer", "Call", "PodLog", "Refusal", "Store"]

Object = dict[str, Any]

_HOST = "127.0.0.1"
#: Seconds for the server's thread to begin, and to end.
_START_S = 10.0
_STOP_S = 5.0
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class _Server(uvicorn.Server):
    """One that leaves signals to the process, and says when it serves."""

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self.application = application
        self.serves = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves, and says so."""
        self.loop = asyncio.get_running_loop()
        self.application.open(self.loop)
        await super().startup(sockets=sockets)
        self.serves.set()

    def cut(self, client: Any = None) -> None:
        """Cut the connection of a client's address, or all; called in the loop."""
        for one in list(self.server_state.connections):
            if client is None or getattr(one, "client", None) == client:
                transport = getattr(one, "transport", None)
                if transport is not None:
                    transport.abort()

    def end(self) -> None:
        """End watches and connections; called in the loop."""
        self.application.close()
        self.should_exit = True


class ApiServer:
    """The server.

    Args:
        enforce_rbac: answer 403 to what no Role allows. The admin (group
            "system:masters") may do all.
        tls: serve https with a certificate of its own: kubectl sends no token over
            http.
        port: 0 for any that is free.
        kept_events: of each kind, for watches that come back; older ones get 410.

    Attributes:
        admission: hooks, called in this order when objects are created, updated or
            deleted. They run in the server's loop: they may read ``store``, but make no
            requests.
        requests: every request about objects so far, refused ones too.
        store: the objects, to look at.
        url: where it serves; the same after :meth:`pause` and :meth:`resume`.
        admin_token: of the user "admin".

    Thread safety: each method may be called from any thread but the server's own.

    Example:
        >>> with ApiServer() as api:
        ...     [one["metadata"]["name"] for one in api.store.list("namespaces")][0]
        'default'
    """

    def __init__(
        self,
        *,
        enforce_rbac: bool = False,
        tls: bool = False,
        port: int = 0,
        kept_events: int = KEPT_EVENTS,
    ) -> None:
        self.admission: list[Admission] = []
        self.requests: list[Call] = []
        self.store = Store(Registry(), kept_events)
        self._faults = Faults()
        self._authenticator = Authenticator()
        self._authorizer = Authorizer(self._roles, is_enforced=enforce_rbac)
        self._writer = Writer(self.store, self.admission)
        self._remover = Remover(self._writer)
        self._answerer = Answerer(
            self._writer, self._remover, self._authenticator, self._authorizer
        )
        self._application = Application(
            self._answerer, self._faults, self.requests, self._cut
        )
        self.admin_token = self._authenticator.token("admin", [MASTERS])
        self._certificate, self._key = self_signed() if tls else (b"", b"")
        self._port = port
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        #: Bound while the server is paused, so that nobody else takes the port.
        self._reserved: socket.socket | None = None
        self.url = ""
        for name in _NAMESPACES:
            self.install(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            )

    @property
    def pod_log(self) -> PodLog | None:
        """What answers ``pods/log``: (namespace, pod, container or "", query) -> text.

        It gives what there is; nothing follows a log.
        """
        return self._answerer.pod_log

    @pod_log.setter
    def pod_log(self, reader: PodLog | None) -> None:
        self._answerer.pod_log = reader

    @property
    def enforce_rbac(self) -> bool:
        """Whether Roles are enforced; may be changed while it serves."""
        return self._authorizer.is_enforced

    @enforce_rbac.setter
    def enforce_rbac(self, is_enforced: bool) -> None:
        self._authorizer.is_enforced = is_enforced

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return self._application.watches

    def start(self) -> None:
        """Serve, from when this returns.

        Raises:
            RuntimeError: it serves already, or cannot.
        """
        if self._thread is not None:
            raise RuntimeError(f"the API server serves already at {self.url}")
        listener = self._reserved or _bound(self._port)
        self._reserved = None
        self._port = listener.getsockname()[1]
        scheme = "https" if self._certificate else "http"
        self.url = f"{scheme}://{_HOST}:{self._port}"
        listener.listen(1024)
        server = _Server(self._config(), self._application)
        self._server = server
        self._thread = threading.Thread(
            target=self._serve,
            args=(server, listener),
            name="localkube API server",
            daemon=True,  # resume() makes another one; stop() joins it
        )
        self._thread.start()
        if not server.serves.wait(_START_S):
            self.stop()
            raise RuntimeError(f"the API server at {self.url} did not begin to serve")

    def stop(self) -> None:
        """End watches, connections, and the thread."""
        self._halt(cut=False)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def token(self, user: str, groups: Iterable[str] = ()) -> str:
        """A bearer token of a user.

        Args:
            user: "system:serviceaccount:<namespace>:<name>" for example.
            groups: beside those that follow from the name.
        """
        return self._authenticator.token(user, groups)

    def kubeconfig(
        self, path: Path, *, token: str | None = None, namespace: str = "default"
    ) -> Path:
        """Write a kubeconfig, which only this user can read.

        Args:
            path: the file.
            token: another one than the admin's.
            namespace: of its context.
        """
        cluster: Object = {"server": self.url}
        if self._certificate:
            encoded = base64.b64encode(self._certificate).decode()
            cluster["certificate-authority-data"] = encoded
        name = "localkube"
        made = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token or self.admin_token}}],
            "contexts": [
                {
                    "name": name,
                    "context": {"cluster": name, "user": name, "namespace": namespace},
                }
            ],
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(made))
        return path

    def install(self, *objects: Object) -> None:
        """Create objects as the admin, without requests: CRDs, nodes, namespaces.

        Raises:
            Refusal: one of them is not valid or exists.
        """
        for made in objects:
            resource = self.store.registry.of_kind(made["apiVersion"], made["kind"])
            if resource is None:
                raise Refusal(
                    404,
                    "NotFound",
                    f"no kind {made['kind']} in {made['apiVersion']}: install its CRD "
                    "first",
                )
            namespace = made["metadata"].get("namespace", "default")
            self._writer.create(resource, namespace, made, Write(manager="localkube"))

    def fail(self, predicate: Callable[[Call], bool], how: How, times: int = 1) -> None:
        """Let the next requests fail.

        Args:
            predicate: which ones.
            how: an HTTP status, "drop" to close the connection without an answer, or
                "hang" to give none until the client leaves.
            times: how many.

        Example:
            >>> with ApiServer() as api:
            ...     api.fail(lambda call: call.verb == "delete", 500, times=2)
        """
        self._faults.add(predicate, how, times)

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._faults.clear()

    def pause(self) -> None:
        """Cut all connections, watches too, and refuse new ones."""
        self._halt(cut=True)
        self._reserved = _bound(self._port)

    def resume(self) -> None:
        """Serve again, at the same address."""
        self.start()

    def _halt(self, *, cut: bool) -> None:
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is None or thread is None:
            return
        loop = server.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended by itself.
                if cut:
                    loop.call_soon_threadsafe(server.cut)
                loop.call_soon_threadsafe(server.end)
        thread.join(_STOP_S)
        if thread.is_alive():
            raise RuntimeError(f"the API server at {self.url} did not end in time")

    def _serve(self, server: _Server, listener: socket.socket) -> None:
        try:
            asyncio.run(server.serve(sockets=[listener]))
        finally:
            listener.close()

    def _cut(self, client: Any) -> None:
        if self._server is not None:
            self._server.cut(client)

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._application,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
        )
        if self._certificate:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in (("cert", self._certificate), ("key", self._key)):
                    Path(folder, name).write_bytes(content)
                config.ssl_certfile = str(Path(folder, "cert"))
                config.ssl_keyfile = str(Path(folder, "key"))
                config.load()
        return config

    def _roles(self) -> list[Object]:
        registry = self.store.registry
        return [
            made
            for name in (
                "roles",
                "rolebindings",
                "clusterroles",
                "clusterrolebindings",
            )
            for made in self.store.scan(registry.named(name))
        ]


def _bound(port: int) -> socket.socket:
    """A socket that has a port, and does not listen yet."""
    # Named, since asyncio sets TCP_NODELAY only on sockets that say that they are TCP.
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((_HOST, port))
    except OSError as error:
        made.close()
        raise RuntimeError(f"port {port} of {_HOST} is taken: {error}") from error
    return made
