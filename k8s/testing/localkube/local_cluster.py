"""The whole test cluster: API server, controllers, kubelet, DNS, operator, Kueue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from rayshim.k8s.api import Kube, Object
from rayshim.k8s.testing.localkube.nodes import DEFAULT_NODES, FakeNode

if TYPE_CHECKING:
    from rayshim.k8s.testing.localkube.apiserver import ApiServer
    from rayshim.k8s.testing.localkube.kueue_emulator import KueueEmulator

T = TypeVar("T")


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

    Thread safety: each method may be called from any thread.

    Example:
        >>> with LocalCluster() as cluster:  # doctest: +SKIP
        ...     kube = cluster.kube("default")
        ...     kube.apply(deployment)
        ...     cluster.wait_for("a pod", lambda: cluster.pods("default"))
    """

    #: The API server, for faults and for its record of requests.
    api: ApiServer
    #: The Kueue emulator; None if there is none.
    kueue: KueueEmulator | None
    #: Of an administrator.
    kubeconfig: Path
    #: Where the cluster has its files; removed by :meth:`stop`.
    folder: Path

    def __init__(
        self,
        nodes: Sequence[FakeNode] = DEFAULT_NODES,
        *,
        namespaces: Sequence[str] = (),
        operator: bool = False,
        kueue: bool | Mapping[str, Mapping[str, float]] = False,
    ) -> None:
        raise NotImplementedError

    def start(self) -> Self:
        """Start everything; returns when it serves."""
        raise NotImplementedError

    def stop(self) -> None:
        """End everything; nothing of it is left."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def kube(self, namespace: str = "default") -> Kube:
        """A namespace, as its administrator sees it; closed by :meth:`stop`."""
        raise NotImplementedError

    def kube_as(self, service_account: str, namespace: str = "default") -> Kube:
        """A namespace, as a ServiceAccount of it may see it."""
        raise NotImplementedError

    def kubeconfig_of(self, service_account: str, namespace: str = "default") -> Path:
        """A kubeconfig with the token of a ServiceAccount."""
        raise NotImplementedError

    def pods(
        self, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Pods of a namespace, or all."""
        raise NotImplementedError

    def logs(
        self,
        pod: str,
        namespace: str = "default",
        *,
        container: str = "",
        previous: bool = False,
    ) -> str:
        """What a container has printed; also of pods that are gone."""
        raise NotImplementedError

    def kill_container(
        self, pod: str, namespace: str = "default", *, container: str = ""
    ) -> None:
        """Kill all processes of a container, as if its first one had crashed.

        The kubelet starts it again as the pod's restartPolicy says.
        """
        raise NotImplementedError

    def add_node(self, node: FakeNode) -> None:
        """Let a machine join."""
        raise NotImplementedError

    def remove_node(self, name: str) -> None:
        """Lose a machine at once: its pods' processes are killed, its pods deleted."""
        raise NotImplementedError

    @contextmanager
    def dns(self) -> Iterator[None]:
        """Let this process resolve the names of Services, as pods do."""
        raise NotImplementedError

    def resolve(self, host: str) -> str | None:
        """The address behind a name of the cluster now; None: it has none."""
        raise NotImplementedError

    def environment(
        self, service_account: str = "", namespace: str = "default"
    ) -> dict[str, str]:
        """Environment variables of a process that is to see the cluster as a pod does.

        It resolves the names of Services; KUBECONFIG is an administrator's, or that of
        a ServiceAccount.
        """
        raise NotImplementedError

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
        raise NotImplementedError
