"""The runtime environments of a node, as ``ray.util.state`` lists them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer


def rows(server: NodeServer, payload: bytes) -> bytes:
    """Answers the question ``runtime_envs``.

    What was built or failed lately, and the variables of executors that run, which
    need no building.
    """
    del payload
    node_id = server.config.node_id
    found: dict[str, dict[str, Any]] = {}
    service = server._environments
    built = service._environments.items() if service is not None else ()
    for text, environment in built:
        whole = json.loads(text)
        found[text] = _row(whole, node_id, len(environment.workers), environment.error)
        found[text]["success"] = environment.context is not None
    for executor in server.raylet.executors:
        variables = dict(executor.env)
        if not variables or "" in variables:
            continue  # the others are built
        row = found.setdefault(
            json.dumps(variables), _row({"env_vars": variables}, node_id, 0, "")
        )
        row["ref_cnt"] += 1
    return msgspec.msgpack.encode(list(found.values()))


def _row(
    runtime_env: dict[str, Any], node_id: str, count: int, error: str
) -> dict[str, Any]:
    return {
        "runtime_env": runtime_env,
        "success": not error,
        "creation_time_ms": None,
        "node_id": node_id,
        "ref_cnt": count,
        "error": error or None,
    }
