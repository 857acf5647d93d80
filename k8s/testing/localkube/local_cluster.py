"""The whole test cluster: API server, controllers, kubelet, DNS, operator, Kueue."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from rayshim.k8s.api import Kube, KubeError, Object
from rayshim.k8s.crds import crd_objects
from rayshim.k8s.testing.localkube import operator_process
from rayshim.k8s.testing.localkube.apiserver import ApiServer
from rayshim.k8s.testing.localkube.controllers import Controllers, token_of
from rayshim.k8s.testing.localkube.descriptions import describe
from rayshim.k8s.testing.localkube.kueue_emulator import KueueEmulator, kueue_crds
from rayshim.k8s.testing.localkube.nodes import DEFAULT_NODES, FakeNode
from rayshim.k8s.testing.localkube.operator_process import OperatorProcess
from rayshim.k8s.testing.localkube.pod_environment import PATH

T = TypeVar("T")

#: Seconds after which a condition is asked again even if nothing has changed.
LOOK_S = 0.2


class LocalCluster:
    """A Kubernetes cluster whose pods are processes of this machine.

    Args:
        nodes: what pods are placed on; :meth:`add_node` adds more.
        namespaces: that are there from the beginning, beside "default".
        operator: run the dask-kubernetes operator, unmodified; its CRDs are installed
            in any case.
        kueue: emulate Kueue. A map gives quotas: ClusterQueue -> resource -> amount
            (each also a LocalQueue of that name in every namespace); True takes them
            from the LocalQueues and ClusterQueues in the API server.
        enforce_rbac: let ServiceAccounts do only what Roles allow.
        port: of the API server; 0 for any that is free.
        tls: serve https, which `kubectl` needs.

    Thread safety: each method may be called from any thread.

    Example:
        >>> with LocalCluster() as cluster:  # doctest: +SKIP
        ...     kube = cluster.kube("default")
        ...     kube.apply(deployment)
        ...     cluster.wait_for("a pod", lambda: cluster.pods("default"))
    """

    def __init__(
        self,
        nodes: Sequence[FakeNode] = DEFAULT_NODES,
        *,
        namespaces: Sequence[str] = (),
        operator: bool = False,
        kueue: bool | Mapping[str, Mapping[str, float]] = False,
        enforce_rbac: bool = False,
        port: int = 0,
        tls: bool = False,
    ) -> None:
        self._nodes = nodes
        self._namespaces = namespaces
        #: The API server, for faults and for its record of requests.
        self.api = ApiServer(enforce_rbac=enforce_rbac, port=port, tls=tls)
        #: The Kueue emulator; None if there is none.
        self.kueue: KueueEmulator | None = None
        if kueue is not False:
            self.kueue = KueueEmulator(None if kueue is True else kueue)
        #: The operator's process; None if there is none.
        self.operator: OperatorProcess | None = None
        self._with_operator = operator
        #: (kubeconfig, namespace) -> connection.
        self._kubes: dict[tuple[Path, str], Kube] = {}
        self._controllers: Controllers | None = None
        self._folder: Path | None = None

    # -- life --------------------------------------------------------------------

    def start(self) -> Self:
        """Start everything; returns when it serves.

        Raises:
            RuntimeError: the operator does not come up.
        """
        # Short: paths of sockets in pods' folders hold 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        folder = self.folder
        if self.kueue is not None:
            self.api.admission.append(self.kueue.admission)
        self.api.pod_log = self._pod_log
        self.api.start()
        self.api.kubeconfig(self.kubeconfig)
        self.api.install(*crd_objects())
        if self.kueue is not None:
            self.api.install(*kueue_crds())
        self.api.install(*(_namespace(name) for name in self._namespaces))
        self.api.install(*(node.to_object() for node in self._nodes))
        self._controllers = Controllers(self.api, folder, self.kueue)
        self._controllers.start()
        if self._with_operator:
            token = self.api.token(operator_process.USER, ("system:masters",))
            path = self.api.kubeconfig(folder / "operator.yaml", token=token)
            environment = {**self._pod_like(), "KUBECONFIG": str(path)}
            self.operator = OperatorProcess(
                self._controllers.host, folder, environment, self._operator_watches
            )
            self.start_operator()

    def stop(self) -> None:
        """End everything; nothing of it is left."""
        failures: list[str] = []
        try:
            if self._controllers is not None:
                if self.operator is not None:
                    self.stop_operator()
                failures = list(self._controllers.failures)
                self._controllers.stop()
        finally:
            self._controllers = None
            for kube in self._kubes.values():
                kube.close()
            self._kubes.clear()
            self.api.stop()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None
        if failures:
            raise RuntimeError(
                "a controller of the local cluster ended: " + "; ".join(failures)
            )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """Where the cluster has its files; removed by :meth:`stop`."""
        if self._folder is None:
            raise RuntimeError("the local cluster is not started")
        return self._folder

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator."""
        return self.folder / "kubeconfig"

    # -- access ------------------------------------------------------------------

    def kube(self, namespace: str = "default") -> Kube:
        """A namespace, as its administrator sees it; closed by :meth:`stop`."""
        return self._kube(self.kubeconfig, namespace)

    def kube_as(self, service_account: str, namespace: str = "default") -> Kube:
        """A namespace, as a ServiceAccount of it may see it."""
        return self._kube(self.kubeconfig_of(service_account, namespace), namespace)

    def kubeconfig_of(self, service_account: str, namespace: str = "default") -> Path:
        """A kubeconfig with the token of a ServiceAccount."""
        return self.api.kubeconfig(
            self.folder / f"kubeconfig-{namespace}-{service_account}",
            token=token_of(self.api, namespace, service_account),
            namespace=namespace,
        )

    def environment(
        self, service_account: str = "", namespace: str = "default"
    ) -> dict[str, str]:
        """Environment variables of a process that is to see the cluster as a pod does.

        It resolves the names of Services; KUBECONFIG is an administrator's, or that of
        a ServiceAccount.
        """
        kubeconfig = (
            self.kubeconfig_of(service_account, namespace)
            if service_account
            else self.kubeconfig
        )
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        own = {"KUBECONFIG": str(kubeconfig), "HOME": str(home), "TMPDIR": str(home)}
        return {**self._pod_like(namespace), **own}

    @contextmanager
    def dns(self, namespace: str = "default") -> Iterator[None]:
        """Let this process resolve the names of Services, as pods do."""
        with self._running.dns.in_this_process(namespace):
            yield

    def resolve(self, host: str, namespace: str = "default") -> str | None:
        """The address behind a name of the cluster now; None: it has none."""
        found = self._running.dns.resolve(host, namespace)
        return found[0] if found else None

    # -- pods --------------------------------------------------------------------

    def pods(
        self, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Pods of a namespace, or all, in the order of their names."""
        wanted = ",".join(
            f"{name}={value}" if value else name
            for name, value in (labels or {}).items()
        )
        return self.api.store.list("pods", namespace or "", wanted)

    def logs(
        self,
        pod: str,
        namespace: str = "default",
        *,
        container: str = "",
        previous: bool = False,
    ) -> str:
        """What a container has printed; also of pods that are gone."""
        kubelet = self._running.kubelet
        assert kubelet is not None
        log = kubelet.log(namespace, pod, container, previous=previous)
        return log.decode(errors="replace")

    def kill_container(
        self, pod: str, namespace: str = "default", *, container: str = ""
    ) -> None:
        """Kill all processes of a container, as if its first one had crashed.

        The kubelet starts it again as the pod's restartPolicy says.

        Args:
            pod: name.
            namespace: of the pod.
            container: name; empty: all of the pod's.

        Raises:
            LookupError: there is no such pod or container.
        """

        async def kill() -> None:
            kubelet = self._running.kubelet
            assert kubelet is not None
            kubelet.kill_container(namespace, pod, container)

        self._running.call(kill)

    # -- nodes -------------------------------------------------------------------

    def add_node(self, node: FakeNode) -> None:
        """Let a machine join."""
        self.api.install(node.to_object())

    def remove_node(self, name: str) -> None:
        """Lose a machine at once: its pods' processes are killed, its pods deleted.

        Raises:
            LookupError: there is no such node.
        """
        if not self.kube().delete("Node", name):
            raise LookupError(f"there is no node {name}")

        async def kill() -> None:
            kubelet = self._running.kubelet
            assert kubelet is not None
            await kubelet.kill_node(name)

        self._running.call(kill)

    # -- operator ----------------------------------------------------------------

    def start_operator(self) -> None:
        """Start the operator, and wait until it works.

        Raises:
            RuntimeError: it does not come up.
        """
        assert self.operator is not None, "the cluster was made without operator"
        operator = self.operator
        self._operator_since = len(self.api.requests)

        async def start() -> None:
            operator.start()
            await operator.wait_ready()

        self._running.call(start)

    def stop_operator(self) -> None:
        """Kill the operator, as if its machine were lost."""
        assert self.operator is not None, "the cluster was made without operator"
        self._running.call(self.operator.kill)

    def _operator_watches(self) -> frozenset[str]:
        return frozenset(
            call.resource
            for call in self.api.requests[self._operator_since :]
            if call.user == operator_process.USER and call.verb == "watch"
        )

    # -- waiting -----------------------------------------------------------------

    def wait_for(
        self, what: str, condition: Callable[[], T], timeout_s: float = 20.0
    ) -> T:
        """Wait until a condition is true, and return what it returned.

        The condition is asked again whenever something changes in the API server, and
        each 0.2 s; a ``KubeError`` or ``ConnectionError`` of it counts as not yet.

        Raises:
            TimeoutError: names ``what``, and says how all pods are and what those that
                are not ready have printed last.
        """
        deadline = time.monotonic() + timeout_s
        problem = ""
        changed = self._running.changed
        while True:
            version = self._running.version
            try:
                if found := condition():
                    return found
            except (KubeError, ConnectionError) as error:
                problem = f"; the last look failed: {error}"
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(
                    f"after {timeout_s:g} s still not there: {what}{problem}\n"
                    + self.describe()
                )
            with changed:
                if self._running.version == version:
                    changed.wait(min(LOOK_S, left_s))

    def describe(self) -> str:
        """How all pods are, with the last lines of those that are not ready."""

        def read(namespace: str, pod: str, container: str, previous: bool) -> str:
            return self.logs(pod, namespace, container=container, previous=previous)

        text = "Pods:\n" + describe(self.pods(), read)
        if self.operator is not None:
            lines = self.operator.last_words().splitlines()[-8:]
            state = "runs" if self.operator.is_running else "does not run"
            text += f"\nThe operator {state}:\n" + "\n".join(f"  | {o}" for o in lines)
        if self.kueue is not None:
            for (namespace, group), why in sorted(self.kueue.waiting().items()):
                text += f"\nGroup {namespace}/{group} waits: {why}"
        return text

    # -- inside ------------------------------------------------------------------

    @property
    def _running(self) -> Controllers:
        if self._controllers is None:
            raise RuntimeError("the local cluster is not started")
        return self._controllers

    def _kube(self, kubeconfig: Path, namespace: str) -> Kube:
        key = (kubeconfig, namespace)
        if key not in self._kubes:
            self._kubes[key] = Kube.load(
                namespace=namespace, kubeconfig=str(kubeconfig)
            )
        return self._kubes[key]

    def _pod_like(self, namespace: str = "default") -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG",) if name in os.environ}
        return {
            **kept,
            "PATH": PATH,
            "PYTHONUNBUFFERED": "1",
            **self._running.dns.environment(namespace),
        }

    def _pod_log(
        self, namespace: str, pod: str, container: str, query: dict[str, Any]
    ) -> bytes:
        previous = str(query.get("previous", "")).lower() in ("1", "true")
        with contextlib.suppress(RuntimeError):
            text = self.logs(pod, namespace, container=container, previous=previous)
            return text.encode()
        return b""


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
