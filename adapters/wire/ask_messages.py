"""Questions to nodes and processes, for tools, and their answers.

What is asked and told is opaque here: whoever asks encodes the one and decodes the
other, so that long answers cost those on the way nothing.
"""

from __future__ import annotations

from msgspec import Struct


class Ask(Struct, array_like=True, tag=122):
    """Asks a node, or through it its processes; answered by one Told."""

    request_id: int
    #: Which question, as in the tables of those who answer.
    method: str
    payload: bytes
    #: For a node: "" itself, "processes", "drivers" or "executors" on it.
    to: str = ""
    #: Only these processes (their worker ids); empty: all.
    workers: list[bytes] = []
    #: Seconds that the processes may take.
    limit_s: float = 0.0


class Told(Struct, array_like=True, tag=123):
    """The answer; of processes a list of :class:`ProcessTold`."""

    request_id: int
    #: What went wrong; empty on success.
    error: str
    payload: bytes


class ProcessTold(Struct, array_like=True):
    """What one process answered, inside a Told."""

    worker_id: bytes
    pid: int
    role: str
    address: str
    job_id: bytes
    #: "no answer" of one that is busy or stopped; empty on success.
    error: str
    payload: bytes


class AskAll(Struct):
    """Payload of the control request ``ask``."""

    method: str
    payload: bytes = b""
    #: "nodes", or "processes", "drivers" or "executors" of nodes.
    to: str = "nodes"
    #: Hex ids; empty: all nodes that are alive.
    node_ids: list[str] = []
    workers: list[bytes] = []
    #: Seconds that each may take.
    limit_s: float = 5.0


class NodeTold(Struct):
    """What one node answered, in the answer of ``ask``."""

    node_id: str
    error: str
    payload: bytes
