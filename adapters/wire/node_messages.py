"""The messages that several nodes, and the limits of a store, add to :mod:`.messages`.

Between peers and their raylet (files that are spilled, values on other nodes), and
between nodes and the control service.
"""

from __future__ import annotations

from msgspec import Struct

from rayshim.adapters.wire.messages import CreateActor, RequestLease, Segment

# --- peer <-> raylet, about the store and other nodes ---------------------------


class MakeRoom(Struct, array_like=True, tag=80):
    """A writer found the store full; answered by RoomMade when it may try again."""

    request_id: int
    size_bytes: int


class RoomMade(Struct, array_like=True, tag=81):
    request_id: int
    freed_bytes: int
    #: "", "full" (nothing can be spilled) or "disk" (no room to spill to).
    error: str = ""
    #: Text with numbers and the largest holders, for the error.
    report: str = ""
    #: Folder on disk to write to instead: everything in memory is in use.
    outside: str = ""


class RestoreSegments(Struct, array_like=True, tag=82):
    """Files that a reader did not find in the store of its own node."""

    request_id: int
    names: list[str]


class SegmentsRestored(Struct, array_like=True, tag=83):
    request_id: int
    #: Names that are in the store again; the others are lost.
    names: list[str]
    #: Why some are not, for people.
    error: str = ""
    #: Names that memory has no room for now, to be read from a folder on disk.
    outside_names: list[str] = []
    outside: str = ""


class DiscardSegments(Struct, array_like=True, tag=84):
    """Nobody needs these files, nor what was spilled of them."""

    names: list[str]


class SegmentsSpilled(Struct, array_like=True, tag=85):
    """The raylet took files out of the store: forget cached mappings of them."""

    names: list[str]


class AskHoldings(Struct, array_like=True, tag=86):
    """The store is full: what do you own in it?"""

    request_id: int


class Holding(Struct, array_like=True, gc=False):
    """One large object of a process."""

    object_id: bytes
    name: str
    size_bytes: int
    call_site: str


class Holdings(Struct, array_like=True, tag=87):
    request_id: int
    #: The largest ones, at most 20.
    holdings: list[Holding]
    #: Objects of any size that it owns and other processes hold.
    lent: int = 0


class PullObject(Struct, array_like=True, tag=88):
    """A reader needs a value whose segment is on another node, on this one."""

    object_id: bytes
    segment: Segment
    #: Hex ids of other nodes with a copy ``o-<hex id>``.
    copies: list[str] = []


class ObjectPulled(Struct, array_like=True, tag=89):
    object_id: bytes
    #: The copy on this node, pinned for the asker until UnpinCopies; None: failed.
    segment: Segment | None
    #: Why it failed, for people.
    error: str = ""
    #: True: every source says that it has no such file. False: none could be reached.
    is_gone: bool = False


class UnpinCopies(Struct, array_like=True, tag=90):
    """The sender reads these pulled copies no more."""

    object_ids: list[bytes]


class FreeCopies(Struct, array_like=True, tag=91):
    """The owner freed these objects: remove the copies (any peer to any raylet)."""

    object_ids: list[bytes]


class NodeInfo(Struct, array_like=True, gc=False):
    """A node as everybody knows it."""

    #: Hex.
    node_id: str
    #: Address of its raylet.
    address: str
    #: ``HOST:PORT`` of its Flight server; empty when it has none.
    flight_address: str
    node_ip: str
    alive: bool
    #: For a dead one: when (seconds since the epoch) and why.
    died_s: float = 0.0
    death: str = ""
    #: It will leave: owners move their values away from it.
    draining: bool = False


class NodeTable(Struct, array_like=True, tag=92):
    """All nodes, dead ones too: to a peer after its Hello, and at each change."""

    nodes: list[NodeInfo]


class Standing(Struct, array_like=True, gc=False):
    """One wait that has lasted a while."""

    #: Counts the waits of its process: the same number is the same wait.
    number: int
    #: Id of the call whose own thread waits; empty for any other thread.
    call: bytes
    #: Concurrency group whose slot the call has.
    group: str
    #: What is waited for and is not known yet, all of it.
    objects: list[bytes]
    #: Addresses of their owners.
    owners: list[str]
    #: False if the wait may end otherwise: a timeout, any of several.
    certain: bool
    #: What waits, for people.
    label: str
    #: True if no other call of the process can go on meanwhile.
    stops_all: bool = False


class Making(Struct, array_like=True, gc=False):
    """What the owner of an object knows of the call that makes it."""

    object_id: bytes
    task_id: bytes
    #: "executor" (runs at ``address``), "actor" (with ``address``: sent to it),
    #: "lease" (queued), "arguments" (waits for ``objects``), "other".
    kind: str
    #: What makes it, for people.
    label: str
    address: str = ""
    actor_id: bytes = b""
    #: Requests that are under way, any of which would do.
    lease_ids: list[bytes] = []
    #: Missing arguments of the call, or of one that must start before it.
    objects: list[bytes] = []
    owners: list[str] = []
    #: Leases (address, call that runs there) that would run it when they are free.
    slots: list[tuple[str, bytes]] = []


class WaitReport(Struct, array_like=True, tag=93):
    """How the sender waits, to the control service.

    Unasked (round 0) when a wait has lasted a while and when it is over; else the
    answer to AskWaits.
    """

    round: int
    #: What the process is, for people.
    title: str
    waits: list[Standing]
    #: The objects that were asked for, and those that ``waits`` name, if owned here.
    makings: list[Making] = []
    #: Concurrency group -> calls that may run at once.
    slots: dict[str, int] = {}
    #: Calls asked for that came and have not ended -> their group.
    accepted: dict[bytes, str] = {}
    #: Call of the constructor that runs.
    constructing: bytes = b""
    #: Of a driver: its program is inside a wait of some kind.
    is_waiting: bool = True


class Deadlock(Struct, array_like=True, tag=94):
    """These waits of the receiver never end."""

    numbers: list[int]
    #: The cycle, one line for each wait.
    cycle: list[str]


class AskWaits(Struct, array_like=True, tag=95):
    """The control service wants a WaitReport with this round."""

    round: int
    objects: list[bytes]
    tasks: list[bytes]


# --- node <-> control service ------------------------------------------------------


class RunningActor(Struct, array_like=True, gc=False):
    """An actor that a joining node runs."""

    actor_id: bytes
    incarnation: int
    worker_id: bytes
    address: str
    pid: int
    repr_name: str = ""
    #: False while its constructor runs.
    is_created: bool = True
    gpu_ids: list[int] = []


class HeldBundle(Struct, array_like=True, gc=False):
    """A bundle that a joining node has reserved."""

    group: bytes
    index: int
    resources: dict[str, float]


class JoinNode(Struct, array_like=True, tag=100):
    """First frame of a node after its Hello (role "raylet"), at each connection."""

    info: NodeInfo
    resources: dict[str, float]
    labels: dict[str, str]
    hostname: str
    pid: int
    is_head_node: bool
    session_dir: str
    store_dir: str
    #: Path of its unix socket, for drivers of the same host.
    socket_path: str
    actors: list[RunningActor] = []
    bundles: list[HeldBundle] = []
    #: TCP port of its metrics; 0: none.
    metrics_port: int = 0


class NodeLoad(Struct, array_like=True, tag=101):
    """Heartbeat: what a node has free, at each change and at least once a second."""

    available: dict[str, float]
    #: Requests that wait there: (label, resources, count).
    demand: list[tuple[str, dict[str, float], int]] = []
    idle_s: float = 0.0
    store_used_bytes: int = 0
    store_limit_bytes: int = 0
    spilled_bytes: int = 0
    #: What nobody holds of each bundle that the node has.
    bundles: list[HeldBundle] = []
    #: Ids of requests that were placed here and came since the last load.
    arrived: list[bytes] = []
    #: Ids of requests placed here that were granted since the last load.
    granted: list[bytes] = []
    #: Ids of such leases that ended since the last load.
    ended: list[bytes] = []
    #: At most so many bytes of values may be on no other node.
    primary_bytes: int = 0
    #: What a drain waits for, or why the last one was refused.
    drain_note: str = ""
    #: Ids of actors' leases placed here that the node cannot grant now, each once.
    waiting: list[bytes] = []


class PlaceLease(Struct, array_like=True, tag=102):
    """A raylet cannot grant now: who can? Answered when there is room somewhere."""

    request: RequestLease
    #: The asking raylet does not look for room itself, and may be the answer.
    is_away: bool = False


class LeasePlaced(Struct, array_like=True, tag=103):
    lease_id: bytes
    #: Raylet to ask; empty with an ``error`` when it can never run.
    address: str
    error: str = ""
    #: Of an error: as in LeaseRejected.
    kind: str = "infeasible"


class CancelPlacement(Struct, array_like=True, tag=104):
    lease_id: bytes


class ShrinkLease(Struct, array_like=True, tag=105):
    lease_id: bytes
    resources: dict[str, float]


class RelayToExecutor(Struct, array_like=True, tag=106):
    """The control service to an executor, through its raylet."""

    worker_id: bytes
    create: CreateActor | None
    #: Else an Interrupt with this reason.
    interrupt: str = ""
    #: Kill it if it has not left after this many seconds; 0: let it be.
    patience_s: float = 0.0


class JobEnded(Struct, array_like=True, tag=107):
    job_id: bytes


class OwnersDied(Struct, array_like=True, tag=112):
    """Processes of a node are gone: a node to the head, and the head to all nodes."""

    addresses: list[str]


class ReserveBundles(Struct, array_like=True, tag=108):
    """First phase of a placement group on one node."""

    group: bytes
    indexes: list[int]
    bundles: list[dict[str, float]]
    #: Seconds to wait for room before refusing; below 0: for ever.
    patience_s: float = 0.0
    #: Which try of the group this is; the answer says it again.
    attempt: int = 0


class BundlesReserved(Struct, array_like=True, tag=109):
    group: bytes
    ok: bool
    attempt: int = 0


class FreeBundles(Struct, array_like=True, tag=110):
    """A group is gone, and what runs in it ends; or bundles are taken back."""

    group: bytes
    #: False: only these bundles go, since the group takes them elsewhere.
    is_removed: bool = True
    indexes: list[int] = []


class LeaveCluster(Struct, array_like=True, tag=111):
    """Drain: the node ends; ``graceful`` after its running work and primary copies."""

    reason: str
    graceful: bool
    #: Seconds for all of that; below 0: as the node's settings say.
    limit_s: float = -1.0
    #: True: a node that is busy, or has values that nobody takes, stays and says why.
    is_refusable: bool = False
    #: False: only the values are waited for.
    waits_work: bool = True


class MoveRefused(Struct, array_like=True, tag=113):
    """An owner to a draining node: some of its values found no other place yet."""

    count: int
    reason: str
