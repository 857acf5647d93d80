"""A driver that joins a cluster which is there already: ``init(address=...)``."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any

from rayshim._core import session_folders
from rayshim._core.clusters import Found, find_cluster
from rayshim._core.init_options import InitOptions
from rayshim._core.session import Session
from rayshim.adapters.wire import versions
from rayshim.adapters.wire.address import lasting
from rayshim.adapters.wire.oneshot import OneShot

#: Seconds that the table of nodes may take to come.
TABLE_LIMIT_S = 5.0
#: Seconds between two looks at a head whose nodes are coming back.
REJOIN_LOOK_S = 0.1


#: Its old name; see :mod:`rayshim._core.clusters`.
find = find_cluster


class AttachedSession(Session):
    """A session in somebody else's cluster: the end of it is only this job's end."""

    def __init__(self, options: InitOptions, address: str) -> None:
        super().__init__(options)
        self._asked = address
        self.cluster_address = ""
        self._socket_path = Path()
        #: Whether the node is this driver's own.
        self._is_remote = False

    def start(self) -> None:
        """Find the cluster and a node of this host, and connect.

        On a host without a node, a node of this driver's own is started: its store.

        Raises:
            ConnectionError: there is no such cluster, or it cannot reach this host.
            RuntimeError: the cluster has other versions; the text has a table.
        """
        session_folders.occupy_standard_streams()
        found = find_cluster(self._asked, self.options.temp_dir)
        facts = _attach(found)
        self.cluster_address = found.address
        self.dashboard_url = found.dashboard_url.partition("://")[2]
        self.job_id = int(facts["job_id"]).to_bytes(4, "little")
        self.namespace = self.options.namespace or str(uuid.uuid4())
        node = _node_here(facts["nodes"])
        control = "" if found.is_local else facts.get("head_address", "")
        if node is None and not control:
            raise ConnectionError(f"the session {found.address} ends right now")
        control = control and lasting(found.head_address, control)
        found = found._replace(head_address=control or found.head_address)
        try:
            if node is None:
                from rayshim._core.remote_driver import start_client_node

                self._process, node = start_client_node(self, found)
            self._join(node, found.token, control)
            if "RAYSHIM_JOB_SUBMISSION_ID" in os.environ and self.peer is not None:
                from rayshim.jobs import inherited

                inherited.tell(self.peer, self.job_id)
        except BaseException:
            self._end_process(0.0)
            self._remove_folders()
            raise

    def _join(self, node: dict[str, Any], token: bytes, control_address: str) -> None:
        self.node_id = node["node_id"]
        self.folder = Path(node["session_dir"])
        self.name = self.folder.name
        self.store_dir = Path(node["store_dir"])
        self.options.settings = dataclasses.replace(
            self.options.settings,
            object_store_limit_bytes=int(node["object_store_limit_bytes"]),
        )
        self.options.resources = dict(node["resources"])
        self._socket_path = self.folder / "sockets" / f"d-{os.urandom(8).hex()}.sock"
        self._open_peer(
            socket_path=self._socket_path,
            raylet_address=node["address"],
            token=token,
            node_ip=node["node_ip"],
            labels=dict(node["labels"]),
            control_address=control_address,
            listen_ip=node["listen_ip"],
        )

    def _open_peer(self, **options: Any) -> None:
        try:
            super()._open_peer(**options)
        except BaseException:
            if self.peer is not None:
                self.peer.close()
            raise
        peer = self.peer
        assert peer is not None
        peer.job_blob = job_blob(self.options.job_setup)
        if options["control_address"]:
            # Strategies that name nodes look at the table, which comes at once; a
            # session on one node has none.
            deadline = time.monotonic() + TABLE_LIMIT_S
            peer.reactor.wait(lambda: peer.nodes.nodes, deadline)

    def _end_remote(self) -> None:
        """The cluster stays: the end of the channels ends the job."""

    def _remove_folders(self) -> None:
        if self._socket_path.name:
            self._socket_path.unlink(missing_ok=True)
        if self._is_remote:
            super()._remove_folders()


def _attach(found: Found) -> dict[str, Any]:
    """The nodes of this host, and the number of a new job.

    A head that was just started again has no nodes yet; those that it knew are back
    within moments, or are taken for dead.
    """
    asked = {"hostname": socket.gethostname(), "is_remote_ok": not found.is_local}
    with OneShot(found.head_address, found.token) as head:
        versions.check(head.ask("cluster_info").get("versions", {}), "this driver")
        while True:
            facts: dict[str, Any] = head.ask("attach", asked)
            if facts["node"] is not None:
                return facts
            time.sleep(REJOIN_LOOK_S)


def _node_here(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The node that really is on this host; others may have its name."""
    for row in rows:
        if os.path.exists(row["socket_path"]):
            return row
    return None


def job_blob(setup: dict[str, Any]) -> bytes:
    """What executors of a cluster need to know of this driver's process.

    Args:
        setup: what they set up for the job (``InitOptions.job_setup``).
    """
    facts = {
        "sys_path": session_folders.executor_path(),
        # Executors are forked by nodes, which do not have this process' alias
        # (`dropin.is_inherited`, without the import).
        "as_ray": os.environ.get("RAYSHIM_DROPIN") == "1",
        **setup,
    }
    return json.dumps(facts).encode()
