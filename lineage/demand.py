"""What a cluster lacks and what its nodes do: the facts that an autoscaler plans with.

The control service fills a :class:`Demand` in, and answers it over its channels and
over HTTP as JSON; whoever starts and stops nodes (a local provider, ``k8s/``) reads it.
Amounts are floats as users write them, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: Label with the name of the group (of equal nodes) that a node was started for.
NODE_GROUP_LABEL = "ray.io/node-group"
#: Of the JSON; a reader refuses one that it does not know.
VERSION = 1


@dataclass(frozen=True, slots=True)
class ShapeDemand:
    """Equal requests for a lease that wait."""

    #: Amount of each resource that one of them needs.
    resources: Mapping[str, float]
    count: int
    #: Selector that a node's labels must satisfy; empty: any node.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: What the first one is for, for messages.
    label: str = ""
    #: How long the oldest one has waited.
    oldest_s: float = 0.0
    #: No node that is there would have room for it, even if it were idle.
    is_infeasible: bool = False
    #: Selectors that do as well, when no node satisfies ``labels``, in this order.
    fallback_labels: tuple[Mapping[str, str], ...] = ()
    #: Hex ids of the nodes of which one has to be it; empty: any node.
    node_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GangDemand:
    """A placement group that waits; its bundles are placed together or not at all."""

    group_id: str
    #: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
    strategy: str
    #: Of the bundles that have no node, amounts of each.
    bundles: tuple[Mapping[str, float], ...]
    #: Selector of each of these bundles; empty: none has one.
    labels: tuple[Mapping[str, str], ...] = ()
    #: Hex ids of the nodes of its other bundles.
    placed_on: tuple[str, ...] = ()
    name: str = ""
    oldest_s: float = 0.0
    is_infeasible: bool = False
    #: Label of which all its nodes must have the same value; empty: none.
    topology: str = ""
    #: That value, if some of its bundles are placed.
    domain: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One living node."""

    #: Hex.
    node_id: str
    #: Its group's name; empty for a node that nobody started for a group.
    group: str
    total: Mapping[str, float]
    available: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    ip: str = ""
    #: Seconds without a lease, actor or bundle; 0 while there is one.
    idle_s: float = 0.0
    is_draining: bool = False
    #: Never to be drained: the node of the head, or of a driver.
    is_pinned: bool = False
    #: Bytes of values of which no other node has a copy.
    sole_copies_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """The whole, at one moment."""

    #: Of this life of the control service: another one has forgotten what waits.
    instance: str
    #: Unix time.
    time_s: float
    nodes: tuple[NodeFacts, ...] = ()
    leases: tuple[ShapeDemand, ...] = ()
    gangs: tuple[GangDemand, ...] = ()
    #: What ``request_resources`` asks to have room for, busy or not.
    requested: tuple[Mapping[str, float], ...] = ()
    #: Selector of each of them; empty: none has one.
    requested_labels: tuple[Mapping[str, str], ...] = ()
    #: Hex ids of the placement groups that are being given places: they are not among
    #: ``gangs``, and may be among them again if it does not come to that.
    placing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a map of plain lists, maps, numbers and texts."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Demand:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: the record is of another version, or not a demand.
        """
        version = record.get("version")
        if version != VERSION:
            raise ValueError(
                f"the demand has version {version!r}, this reader knows {VERSION}: use "
                "the same release of rayshim on both sides"
            )
        try:
            return cls(
                instance=record["instance"],
                time_s=record["time_s"],
                nodes=tuple(NodeFacts(**one) for one in record["nodes"]),
                leases=tuple(_shape(one) for one in record["leases"]),
                gangs=tuple(_gang(one) for one in record["gangs"]),
                requested=tuple(record["requested"]),
                requested_labels=tuple(record.get("requested_labels", ())),
                placing=tuple(record.get("placing", ())),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not a demand: {error}") from error


def _shape(record: Mapping[str, Any]) -> ShapeDemand:
    names = ("fallback_labels", "node_ids")
    tuples = {name: tuple(record.get(name, ())) for name in names}
    return ShapeDemand(**{**record, **tuples})


def _gang(record: Mapping[str, Any]) -> GangDemand:
    tuples = {name: tuple(record[name]) for name in ("bundles", "labels", "placed_on")}
    return GangDemand(**{**record, **tuples})
