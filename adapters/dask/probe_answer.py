"""What a drill's probe hears; free of Dask, since probes of rayshim hear the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """Of an actor, or of what stands for one."""

    #: How often it was asked.
    count: int
    #: Id of its node.
    node_id: str
    #: Another one after a restart.
    life: str
