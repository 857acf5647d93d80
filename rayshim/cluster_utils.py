"""A cluster of several nodes on this machine, for tests and for trying things out.

Each node is a process of its own with its own executors, store folder, session folder
and Flight server; nodes and drivers reach each other over TCP on loopback only, as
separate hosts would.

Example:
    >>> cluster = Cluster(head_node_args={"num_cpus": 1})  # doctest: +SKIP
    >>> node = cluster.add_node(num_cpus=2)  # doctest: +SKIP
    >>> ray.init(address=cluster.address)  # doctest: +SKIP
    >>> cluster.remove_node(node, allow_graceful=False)  # doctest: +SKIP
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rayshim._core import session_folders
from rayshim._core.init_options import InitOptions
from rayshim._core.node_launch import NodeProcess, node_config
from rayshim.adapters.wire.address import place_of
from rayshim.adapters.wire.oneshot import OneShot
from rayshim.exceptions import RaySystemError

#: All nodes of a cluster on one machine are reached here.
LOOPBACK = "127.0.0.1"
#: Seconds for a head that does not answer to end, and say why.
LAST_WORDS_S = 2.0
#: Seconds for a node that is asked to end.
END_LIMIT_S = 5.0
#: Seconds in which the values of a node that is removed gracefully have to get fewer.
EVACUATION_LIMIT_S = 30.0
NO_HEAD = "the cluster has no head yet: call add_node()"


#: Clusters of this process: ``init()`` without an address joins the newest one.
running: dict[Cluster, None] = {}


class ClusterNode:
    """One node, or the head, of a :class:`Cluster`: a process and its folders."""

    def __init__(
        self, config: dict[str, Any], folder: Path, store_dir: Path | None
    ) -> None:
        self._folder = folder
        self._store_dir = store_dir
        self.config = config
        #: ``HOST:PORT`` of the cluster.
        self.gcs_address = ""
        #: Hex id, as ``ray.nodes()`` shows it.
        self.node_id: str = config["node_id"]
        self.node_ip_address = LOOPBACK
        #: The process; None once it was ended.
        self.process: NodeProcess | None = None
        #: Address of the process itself, known once it is ready.
        self.process_address = ""
        #: Added to the environment of its process.
        self.env_vars: dict[str, str] = {}

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the cluster, as Ray's nodes have it."""
        return self.gcs_address

    @property
    def session_name(self) -> str:
        """Name of the node's session folder."""
        return self._folder.name

    @property
    def raylet_socket_name(self) -> str:
        """Path of the raylet's unix socket."""
        return f"{self._folder}/sockets/node-{self.node_id[:8]}.sock"

    @property
    def plasma_store_socket_name(self) -> str:
        """Path of the store; a folder here, not a socket."""
        return str(self._store_dir)

    @property
    def node_labels(self) -> dict[str, str]:
        """Labels that it was started with."""
        return dict(self.config["labels"])

    def is_head(self) -> bool:
        """Whether it is the head's node."""
        return bool(self.config.get("is_head_node"))

    def live_processes(self) -> list[tuple[str, Any]]:
        """``[("raylet", Popen)]`` while its process runs."""
        if self.process is None or not self.any_processes_alive():
            return []
        return [("raylet", self.process.process)]

    def dead_processes(self) -> list[tuple[str, Any]]:
        """``[("raylet", Popen)]`` of a process that ended by itself."""
        if self.process is None or self.any_processes_alive():
            return []
        return [("raylet", self.process.process)]

    def kill_raylet(self, check_alive: bool = True) -> None:
        """SIGKILL the node's process, as :meth:`kill_all_processes`.

        Raises:
            RuntimeError: it is gone already.
        """
        self.kill_all_processes(check_alive=check_alive)

    @property
    def unique_id(self) -> str:
        """The id again, under Ray's other name."""
        return self.node_id

    @property
    def pid(self) -> int:
        """Process id of the node; 0 once it was ended."""
        return self.process.pid if self.process is not None else 0

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self.process = NodeProcess(self.config, self.env_vars)

    def wait_ready(self, limit_s: float) -> None:
        """Wait until it listens.

        Raises:
            RaySystemError: it did not come up; the text says why.
        """
        assert self.process is not None
        self.process_address = self.process.wait_ready(limit_s)["address"]

    def kill(self) -> None:
        """SIGKILL, as a host that fails; what the process left is removed."""
        if self.process is not None:
            self.process.process.kill()
            self.process.end(END_LIMIT_S)
            self.process = None
        self._remove_folders()

    def kill_all_processes(
        self, check_alive: bool = True, allow_graceful: bool = False, wait: bool = False
    ) -> None:
        """End the node's processes.

        Args:
            check_alive: raise if they are gone already.
            allow_graceful: SIGTERM, then SIGKILL; else SIGKILL at once.
            wait: as in Ray; the end is always waited for.

        Raises:
            RuntimeError: the node is gone already.
        """
        if self.process is None:
            if check_alive:
                raise RuntimeError(f"node {self.node_id[:8]} was ended already")
            return
        if allow_graceful:
            self.end()
        else:
            self.kill()

    def end(self) -> None:
        """SIGTERM, then SIGKILL after a while."""
        if self.process is not None:
            process, self.process = self.process, None
            process.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                # First the wait: the end of its lifeline is another reason to end.
                process.process.wait(END_LIMIT_S)
            process.end(0.0)
        self._remove_folders()

    def any_processes_alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.process.poll() is None

    def _remove_folders(self) -> None:
        stores = [self._store_dir] if self._store_dir is not None else []
        session_folders.remove(self._folder, *stores)

    def __repr__(self) -> str:
        return f"ClusterNode({self.node_id[:8]}, pid={self.pid or 'ended'})"


class _HeadNode(ClusterNode):
    """The first node, which the head's process belongs to."""

    def __init__(
        self,
        config: dict[str, Any],
        folder: Path,
        store_dir: Path,
        head: ClusterNode,
    ) -> None:
        super().__init__(config, folder, store_dir)
        self._head = head

    def kill_gcs_server(self, check_alive: bool = True, wait: bool = True) -> None:
        """SIGKILL the head's process; its folder and journal stay for a restart.

        Args:
            check_alive: raise if it is gone already.
            wait: as in Ray; the end is always waited for.

        Raises:
            RuntimeError: it is gone already.
        """
        process = self._head.process
        if process is None or process.process.poll() is not None:
            if check_alive:
                raise RuntimeError("the head's process was ended already")
            return
        process.process.kill()
        process.end(END_LIMIT_S)
        self._head.process = None

    def start_gcs_server(self) -> None:
        """Start the head's process again, at its port and on its journal."""
        self._head.launch()
        limit_s = self._head.config["settings"]["start_timeout_s"]
        self._head.wait_ready(limit_s)
        # It listens before it has taken up its journal; this answer comes after.
        token = Path(self._head.config["token_path"]).read_text()
        with OneShot(self._head.process_address, bytes.fromhex(token), limit_s) as head:
            head.ask("cluster_info")


class Cluster:
    """Several nodes on this machine.

    Args:
        initialize_head: start the head and its node at once.
        connect: join it from this process (``ray.init``), too.
        head_node_args: parameters of :meth:`add_node` for the head's node.
        shutdown_at_exit: end it when this process exits.

    Raises:
        RaySystemError: a process did not come up; the text says why.
    """

    #: ``HOST:PORT``; None while there is no head.
    address: str | None

    def __init__(
        self,
        initialize_head: bool = False,
        connect: bool = False,
        head_node_args: dict[str, Any] | None = None,
        shutdown_at_exit: bool = True,
    ) -> None:
        if connect and not initialize_head:
            raise RuntimeError("Cannot connect to uninitialized cluster.")
        if head_node_args and not initialize_head:
            raise ValueError(
                "head_node_args are used with initialize_head=True; pass them to "
                "the first add_node() instead"
            )
        #: The head's node, and the others by id.
        self.head_node: _HeadNode | None = None
        self.worker_nodes: set[ClusterNode] = set()
        #: ``HOST:PORT`` for ``init(address=...)``; None without a head.
        self.address = None
        #: True once this process was connected by :meth:`connect`.
        self.connected = False
        #: Added to the environment of each process that is started from now on.
        self.env_vars: dict[str, str] = {}
        self._head: ClusterNode | None = None
        self._token = b""
        if shutdown_at_exit:
            atexit.register(self.shutdown)
        if initialize_head:
            self.add_node(**(head_node_args or {}))
            if connect:
                self.connect()

    @property
    def gcs_address(self) -> str | None:
        """The head's address under Ray's other name."""
        return self.address

    @property
    def head_process_address(self) -> str:
        """Address of the head's process, for its messages.

        Raises:
            RuntimeError: the cluster has no head (yet).
        """
        if self._head is None:
            raise RuntimeError(NO_HEAD)
        return self._head.process_address

    @property
    def token(self) -> bytes:
        """What proves to the head, and to nodes, that one belongs to them."""
        return self._token

    # -- nodes -------------------------------------------------------------------

    def launch_node(self, **node_args: Any) -> ClusterNode:
        """Start a node without waiting until it is up; the head has to be there.

        Args:
            **node_args: as of :meth:`add_node`.
        """
        node = self._new_node(_node_options(node_args), is_head_node=False)
        self.worker_nodes.add(node)
        node.launch()
        return node

    def add_node(self, wait: bool = True, **node_args: Any) -> ClusterNode:
        """Start a node; the first one is the head's.

        Args:
            wait: until the node has joined.
            **node_args: as of ``init``: num_cpus (default 1), num_gpus, resources,
                labels, object_store_memory (bytes, default 150 MiB), memory (bytes),
                _system_config (settings; those of the first node are the head's too).

        Returns:
            The node, for :meth:`remove_node`.

        Raises:
            RaySystemError: it did not come up, or did not join in time.
            TypeError: a parameter that nodes do not have.
        """
        options = _node_options(node_args)
        if self._head is None:
            running[self] = None
            session_folders.remove_stale(session_folders.session_root(None))
            self._token = os.urandom(32)
            self._start_head(options)
            node = self._new_node(options, is_head_node=True)
            assert isinstance(node, _HeadNode)
            self.head_node = node
        else:
            node = self._new_node(options, is_head_node=False)
            self.worker_nodes.add(node)
        node.launch()
        node.wait_ready(options.settings.start_timeout_s)
        if wait:
            self._wait_for_node(node, options.settings.start_timeout_s)
        return node

    def _start_head(self, options: InitOptions) -> None:
        folder = session_folders.session_root(None) / session_folders.new_name()
        token_path = session_folders.make(folder, None, self._token)
        config = {
            "session": folder.name,
            "session_dir": str(folder),
            "node_id": os.urandom(28).hex(),
            "token_path": str(token_path),
            "with_raylet": False,
            "listen_ip": LOOPBACK,
            "origin": "cluster",
            "settings": asdict(options.settings),
        }
        self._head = head = ClusterNode(config, folder, None)
        head.env_vars = dict(self.env_vars)
        head.launch()
        head.wait_ready(options.settings.start_timeout_s)
        self.address = place = place_of(head.process_address)
        # A restart has to be found at the same place.
        head.config = {**config, "port": int(place.rpartition(":")[2])}

    def _new_node(self, options: InitOptions, *, is_head_node: bool) -> ClusterNode:
        assert self._head is not None, NO_HEAD
        node_id = os.urandom(28).hex()
        folder = session_folders.session_root(None) / session_folders.new_name()
        store_dir = session_folders.store_of(folder, node_id)
        token_path = session_folders.make(folder, store_dir, self._token)
        config = {
            **node_config(options, folder, store_dir, node_id, token_path),
            "with_raylet": True,
            "head_address": self._head.process_address,
            "listen_ip": LOOPBACK,
            "is_head_node": is_head_node,
        }
        node: ClusterNode
        if is_head_node:
            node = _HeadNode(config, folder, store_dir, self._head)
        else:
            node = ClusterNode(config, folder, store_dir)
        node.gcs_address = self.address or ""
        node.env_vars = dict(self.env_vars)
        return node

    def remove_node(self, node: ClusterNode, allow_graceful: bool = True) -> None:
        """End a node.

        Args:
            node: as :meth:`add_node` returned it.
            allow_graceful: let other nodes take over the values that only it has,
                before it goes; its running calls end.
                False: SIGKILL, as a host that fails.

        Raises:
            ValueError: it is the head's node, which the driver is connected to.
            KeyError: it is none of this cluster (any more).
        """
        if node is self.head_node:
            raise ValueError(
                "Removing a node that is connected to this Ray client is not allowed "
                "because it will break the driver. Use shutdown() to end the cluster."
            )
        self.worker_nodes.remove(node)
        if allow_graceful and node.any_processes_alive():
            self._evacuate(node)
        node.kill_all_processes(check_alive=False, allow_graceful=allow_graceful)
        self._wait_gone(node)

    def _evacuate(self, node: ClusterNode) -> None:
        """Have a node leave by itself, once nobody needs its values."""
        order = {
            "node_id": node.node_id,
            "reason": "it was removed",
            "limit_s": EVACUATION_LIMIT_S,
            "waits_work": False,
        }
        process = node.process
        # No head: no owner would hear of it.
        with (
            contextlib.suppress(ConnectionError),
            OneShot(self.head_process_address, self._token) as head,
        ):
            if process is None or not head.ask("drain_node", order):
                return
            note, changed_s = "", time.monotonic()
            while time.monotonic() - changed_s < EVACUATION_LIMIT_S + END_LIMIT_S:
                if _until(lambda: process.process.poll() is not None, 1.0):
                    return
                # It says how many values are left.
                rows = head.ask("node_table")
                notes = {row["node_id"]: row["drain_note"] for row in rows}
                if notes.get(node.node_id, "") != note:
                    note, changed_s = notes.get(node.node_id, ""), time.monotonic()

    def list_all_nodes(self) -> list[ClusterNode]:
        """The head's node and the others."""
        head = [self.head_node] if self.head_node is not None else []
        return [*head, *self.worker_nodes]

    # -- waiting -----------------------------------------------------------------

    def _alive_ids(self) -> set[str]:
        assert self._head is not None, NO_HEAD
        try:
            with OneShot(self._head.process_address, self._token) as head:
                return {row["NodeID"] for row in head.ask("nodes") if row["Alive"]}
        except ConnectionError as error:
            process = self._head.process
            if process is None or not _until(
                lambda: process.process.poll() is not None, LAST_WORDS_S
            ):
                raise
            raise RaySystemError(
                RuntimeError(f"the head ended; it says:\n{process.last_words()}")
            ) from error

    def _wait_for_node(self, node: ClusterNode, timeout_s: float) -> None:
        if not _until(lambda: node.node_id in self._alive_ids(), timeout_s):
            raise TimeoutError(
                f"node {node.node_id[:8]} (pid {node.pid}) did not join the cluster "
                f"within {timeout_s:g} s"
            )

    def _wait_gone(self, node: ClusterNode) -> None:
        try:
            _until(lambda: node.node_id not in self._alive_ids(), END_LIMIT_S)
        except ConnectionError:
            pass  # the head is gone too: nobody to ask

    def wait_for_nodes(self, timeout: float = 30) -> None:
        """Wait until the cluster's head sees exactly the nodes of this object.

        Args:
            timeout: in seconds.

        Raises:
            TimeoutError: it does not in time.
        """
        wanted = {node.node_id for node in self.list_all_nodes()}
        if not _until(lambda: self._alive_ids() == wanted, timeout):
            raise TimeoutError(
                f"Timed out waiting for nodes to join: {len(self._alive_ids())} of "
                f"{len(wanted)} nodes are alive after {timeout:g} s"
            )

    # -- drivers -----------------------------------------------------------------

    def connect(self, namespace: str | None = None) -> None:
        """Join the cluster from this process.

        Args:
            namespace: of named actors.

        Raises:
            RuntimeError: a session is open already.
        """
        import rayshim

        assert self.address is not None, NO_HEAD
        assert not self.connected, "this process is connected already"
        rayshim.init(
            address=self.address, namespace=namespace, ignore_reinit_error=True
        )
        self.connected = True

    def shutdown(self) -> None:
        """End all nodes and the head. Idempotent."""
        atexit.unregister(self.shutdown)
        nodes = self._everything()
        for node in nodes:
            if node.process is not None:
                node.process.process.send_signal(signal.SIGTERM)
        for node in nodes:
            node.end()
        self.worker_nodes.clear()
        self.head_node = None
        self._head = None
        self.address = None
        running.pop(self, None)

    def remaining_processes_alive(self) -> bool:
        """Whether the head and every node that was not removed run."""
        return all(node.any_processes_alive() for node in self._everything())

    def _everything(self) -> list[ClusterNode]:
        """The nodes and the head, which ends last."""
        head = [self._head] if self._head is not None else []
        return [*self.list_all_nodes(), *head]


def _node_options(node_args: dict[str, Any]) -> InitOptions:
    args = dict(node_args)
    args.setdefault("num_cpus", 1)
    args.setdefault("num_gpus", 0)
    args.setdefault("object_store_memory", 150 * 1024 * 1024)
    memory = args.pop("memory", None)
    if memory is not None:
        args["_memory"] = memory
    known = {
        "num_cpus",
        "num_gpus",
        "resources",
        "labels",
        "object_store_memory",
        "include_dashboard",
        "dashboard_host",
        "dashboard_port",
        "_memory",
        "_system_config",
        "node_name",
    }
    for name in args:
        if name not in known:
            raise TypeError(
                f"add_node(): {name!r} is not supported; nodes have "
                f"{', '.join(sorted(known))}"
            )
    args["_node_name"] = args.pop("node_name", None)
    return InitOptions.validate(address="local", configure_logging=False, **args)


def __getattr__(name: str) -> Any:
    """``AutoscalingCluster``, whose package is imported when it is first used."""
    if name == "AutoscalingCluster":
        from rayshim.autoscaler.autoscaling_cluster import AutoscalingCluster

        return AutoscalingCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _until(condition: Any, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
