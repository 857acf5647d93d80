"""What is asked and told about why something waits, inside :mod:`.why_messages`."""

from __future__ import annotations

from msgspec import Struct

from rayshim.lineage.reasons import Reason


class Question(Struct):
    """What is asked."""

    #: Beginning of the id of an object or call, for its owner.
    about: bytes = b""
    #: For an executor: a call that was sent to it.
    call: bytes = b""
    #: For a node: leases that may wait there.
    lease_ids: list[bytes] = []
    #: For a node: a need whose holders are to be named.
    need: dict[str, float] = {}
    #: For a node: leases that may wait for ever, and the bundles that they draw on.
    facts_of: list[bytes] = []


class Told(Struct):
    """What an owner says, and what the control service can say more about."""

    subject: str
    state: str
    reasons: list[Reason] = []
    #: Leases that are asked for, any of which would do.
    lease_ids: list[bytes] = []
    actor_ids: list[bytes] = []
    groups: list[bytes] = []
    #: Missing arguments: (id, address of its owner).
    objects: list[tuple[bytes, str]] = []
    #: Where calls are: (address of the executor, id of the call).
    places: list[tuple[str, bytes]] = []


class Leases(Struct):
    """What a node says."""

    reasons: list[Reason] = []


class HolderFacts(Struct, array_like=True):
    """Who holds resources; ``kind`` "task" or "actor", or "group" with its id."""

    address: str
    units: dict[str, int]
    kind: str
    group: bytes = b""


class SourceFacts(Struct, array_like=True):
    """A bundle (of ``group``), or the node itself."""

    group: bytes
    index: int
    total: dict[str, int]
    holders: list[HolderFacts]


class WaitingFacts(Struct, array_like=True):
    """A request that waits at the node."""

    lease_id: bytes
    label: str
    need: dict[str, int]
    group: bytes
    bundle: int
    #: Hex ids of the only nodes that will do; empty: others may.
    bound_to: list[str]


class Facts(Struct):
    """What a node says for the graph of waits."""

    node_id: str = ""
    waiting: list[WaitingFacts] = []
    sources: list[SourceFacts] = []


class Why(Struct):
    """Payload of the control request ``why``: any of these."""

    #: An id in hex, or the beginning of one (8 digits at least).
    id: str = ""
    lease_ids: list[bytes] = []
    actor_ids: list[bytes] = []
    groups: list[bytes] = []
    #: (id, address of its owner).
    objects: list[tuple[bytes, str]] = []
    #: (address of the executor, id of the call).
    places: list[tuple[str, bytes]] = []
    #: Seconds that each of those who are asked may take.
    limit_s: float = 1.0
