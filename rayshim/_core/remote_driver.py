"""A driver on a host without a node: it brings a node of its own along.

That node has a store and sends values over Flight like any other, but grants no leases
and is none of those that users see (``NodeConfig.is_client``). With it, all that works
for a driver beside a node works for this one: large values lie in its store, are
fetched from there by the nodes that need them, and results are fetched to it.

The nodes of the cluster connect to this host: for the values, and executors for what
they ask the owner of a reference. So they have to be able to; the head tries it first.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from rayshim._core import session_folders
from rayshim._core.node_launch import NodeProcess, node_config
from rayshim.adapters.wire.address import own_ip_towards, parse_tcp, place_of
from rayshim.adapters.wire.oneshot import OneShot

if TYPE_CHECKING:
    from rayshim._core.attached import AttachedSession
    from rayshim._core.clusters import Found

#: Address of this host that the cluster can connect to, if not the one that leads to
#: the head.
HOST_VARIABLE = "RAYSHIM_DRIVER_IP"
#: Seconds between looks at whether the node has joined.
LOOK_S = 0.01


def start_client_node(
    session: AttachedSession, found: Found
) -> tuple[NodeProcess, dict[str, Any]]:
    """Start the node of a remote driver, and wait until it has joined.

    Args:
        session: of the driver; its folders are made.
        found: the cluster.

    Returns:
        The process, and the node's row in the head's table.

    Raises:
        ConnectionError: the cluster cannot connect to this host.
        RaySystemError: the process did not come up; the text says why.
    """
    options = session.options
    # What a full node offers is not this one's.
    options.resources = {
        "object_store_memory": options.resources["object_store_memory"]
    }
    settings = options.settings = dataclasses.replace(
        options.settings, prestart_executors=0, dashboard_port=-1, metrics_port=-1
    )
    session_folders.remove_stale(session.folder.parent)
    token_path = session_folders.make(session.folder, session.store_dir, found.token)
    session._is_remote = True
    config = {
        **node_config(
            options, session.folder, session.store_dir, session.node_id, token_path
        ),
        "labels": {},
        "preload": [],
        "head_address": found.head_address,
        "listen_ip": _own_ip(found.head_address),
        "is_head_node": False,
        "is_client": True,
        "namespace": session.namespace,
        "job_id": session.job_id.hex(),
    }
    process = NodeProcess(config, {})
    try:
        answer = process.wait_ready(settings.start_timeout_s)
        row = _joined(found, session.node_id, answer["address"], settings)
    except BaseException:
        process.end(0.0)
        raise
    return process, row


def _own_ip(head_address: str) -> str:
    named = os.environ.get(HOST_VARIABLE)
    if named:
        return named
    place = parse_tcp(head_address)
    return own_ip_towards(place.host, place.port)


def _joined(found: Found, node_id: str, address: str, settings: Any) -> dict[str, Any]:
    """The node's row, once the head has it, and can connect to it."""
    limit_s = settings.start_timeout_s
    deadline = time.monotonic() + limit_s
    with OneShot(found.head_address, found.token) as head:
        error = head.ask("can_reach", {"address": address})
        if error:
            raise ConnectionError(
                f"the cluster at {found.address} cannot connect to this host at "
                f"{place_of(address)} ({error}), as it must to read this driver's "
                "values: is there a firewall or an address translation (NAT) between "
                f"them? Set {HOST_VARIABLE} to an address of this host that the "
                "cluster reaches, run the driver on a host of the cluster, or submit "
                "it as a job (`rayshim job submit`)."
            )
        while time.monotonic() < deadline:
            for row in head.ask("node_table"):
                if row["node_id"] == node_id and row["alive"]:
                    return dict(row)
            time.sleep(LOOK_S)
    raise TimeoutError(
        f"the store of this driver did not join the cluster at {found.address} within "
        f"{limit_s:g} s (setting start_timeout_s)"
    )
