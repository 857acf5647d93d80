"""Every message that crosses a direct channel, as a typed schema.

A frame is a little-endian 4-byte length and one MessagePack array that
:data:`rayshim.adapters.wire.codec.DECODER` checks against the schemas below. A frame
that does not fit is refused before anything acts on it; nothing here is ever
unpickled. Fields named ``data``, ``blob``, ``args`` or ``buffers`` are opaque user
payloads that only drivers and executors open.

Three kinds of party speak: *peers* (drivers and executors), the *raylet* of a
node and the *control service* of the cluster. The last two share a socket while
they share a process, so the raylet's channel carries both vocabularies.

Addresses are ``unix:PATH`` or ``tcp:HOST:PORT/NODE8/NAME`` (see
:mod:`rayshim.adapters.wire.address`). One process has one address for life, so an
address also names the process. Ids are raw bytes of the lengths in
:mod:`rayshim.lineage.ids`; the messages of nodes are in
:mod:`rayshim.adapters.wire.node_messages`.
"""

from __future__ import annotations

from msgspec import Struct

#: Payload kinds.
PICKLE, SEGMENT, ERROR = 0, 1, 2
#: ``TaskSpec.num_returns`` of a streaming and of a "dynamic" generator.
STREAMING, DYNAMIC = -1, -2


class Segment(Struct, array_like=True, gc=False):
    """Where a large value lies in a node store."""

    #: File name inside the node's store folder.
    name: str
    #: Bytes that the file can hold (its recycling class).
    capacity: int
    #: Hex id of the node whose store holds it.
    node: str
    #: Address of the process that made the file and may recycle it.
    creator: str
    #: ``[offset, size, offset, size, ...]`` in bytes: the pickle stream first, then
    #: one pair for each out-of-band buffer.
    layout: list[int]


class Nested(Struct, array_like=True, gc=False):
    """A reference inside a value: who owns it and which lend this one is."""

    object_id: bytes
    owner: str
    lend: int = 0


class Payload(Struct, array_like=True, gc=False):
    """A serialized value: inline, in a segment, or an error."""

    kind: int
    data: bytes = b""
    # Tuples where most are empty: an empty tuple costs nothing, a list an object each.
    buffers: tuple[bytes, ...] = ()
    nested: tuple[Nested, ...] = ()
    segment: Segment | None = None


class Dependency(Struct, array_like=True, gc=False):
    """A top-level reference argument, replaced by its value before the call."""

    object_id: bytes
    #: Index among the positional arguments, or -1 for the keyword ``name``.
    position: int
    name: str
    value: Payload
    #: For a SEGMENT value: who owns the object and which lend this is.
    owner: str = ""
    lend: int = 0


class TaskSpec(Struct, array_like=True, gc=False):
    """One call, for a task or an actor method."""

    task_id: bytes
    #: Key of a function sent by :class:`RegisterFunction`; empty for a method.
    function: bytes
    #: Method name; empty for a task.
    method: str
    #: Pickle of ``(args, kwargs)``; empty when there are none.
    args: bytes
    buffers: tuple[bytes, ...]
    dependencies: tuple[Dependency, ...]
    nested: tuple[Nested, ...]
    #: >= 0, or STREAMING, or DYNAMIC.
    num_returns: int
    #: Name shown to people.
    name: str
    #: 0 for the first run.
    attempt: int
    #: Number of this call among its caller's calls on the actor.
    sequence: int = 0
    concurrency_group: str = ""
    #: Items that a stream may be ahead of its consumer; -1 without limit.
    backpressure: int = -1
    #: Calls after which the executor leaves; 0 for no limit.
    max_calls: int = 0
    #: The call that made this one; empty for a driver.
    parent: bytes = b""


class Result(Struct, array_like=True, gc=False):
    """The end of one call."""

    task_id: bytes
    #: One payload for each return value; exactly one ERROR payload on failure.
    values: list[Payload]
    #: Ids from the call's arguments that the executor still holds.
    kept: tuple[bytes, ...] = ()
    #: Items a finished stream yielded; -1 when it was no stream.
    streamed: int = -1
    #: Large arguments that could not be read: the call did not start and goes back.
    lost: tuple[bytes, ...] = ()


# --- peer <-> peer ----------------------------------------------------------


class Hello(Struct, array_like=True, tag=1):
    """First frame of a connecting side: who it is."""

    role: str  # "driver", "executor", "raylet"
    worker_id: bytes
    address: str
    pid: int
    job_id: bytes


class RegisterFunction(Struct, array_like=True, tag=2):
    """A pickled function, once for each channel, before its first call."""

    key: bytes
    blob: bytes
    name: str


class BindLease(Struct, array_like=True, tag=3):
    """Opens a lease on an executor: what its tasks may use."""

    lease_id: bytes
    job_id: bytes
    namespace: str
    resources: dict[str, float]
    gpu_ids: list[int]
    env_vars: dict[str, str]
    #: Pickled extras of the session (sys.path, hooks); may be empty.
    job_blob: bytes = b""
    placement_group: bytes = b""
    #: Calls made from inside go into the same placement group.
    capture_group: bool = False


class PushTasks(Struct, array_like=True, tag=4):
    specs: list[TaskSpec]


class Results(Struct, array_like=True, tag=5):
    results: list[Result]
    #: Mean seconds that a call of this batch ran.
    cost_s: float
    #: The executor takes no more calls (max_calls, exit).
    draining: bool = False


class StreamItem(Struct, array_like=True, tag=6):
    task_id: bytes
    index: int
    value: Payload
    attempt: int = 0


class StreamAck(Struct, array_like=True, tag=7):
    """The consumer took items below ``consumed``; -1 gives the stream up."""

    task_id: bytes
    consumed: int


class StealTasks(Struct, array_like=True, tag=8):
    """Asks for up to ``count`` pushed, unstarted calls back."""

    count: int


class StolenTasks(Struct, array_like=True, tag=9):
    task_ids: list[bytes]


class CancelTask(Struct, array_like=True, tag=10):
    task_id: bytes
    force: bool
    recursive: bool


class Fetch(Struct, array_like=True, tag=11):
    """A borrower asks the owner for values; each is answered once, when known."""

    object_ids: list[bytes]


class Objects(Struct, array_like=True, tag=12):
    object_ids: list[bytes]
    values: list[Payload]


class Borrow(Struct, array_like=True, tag=13):
    """Registers the sender as a borrower with the owner."""

    object_ids: list[bytes]
    #: Of the sender's registrations, to tell a late or doubled answer by.
    numbers: list[int] = []


class BorrowAck(Struct, array_like=True, tag=14):
    object_ids: list[bytes]
    #: Lend number of each registration, which the later Release names.
    lends: list[int]
    #: Ids that the owner no longer knows.
    unknown: list[bytes]
    #: As in Borrow, of ``object_ids`` and then of ``unknown``.
    numbers: list[int] = []


class Release(Struct, array_like=True, tag=15):
    """The sender holds these no more; ``lends`` are the last lends it covers."""

    object_ids: list[bytes]
    lends: list[int]


class FreeSegments(Struct, array_like=True, tag=16):
    """Segments without a reader anywhere go back to their creator."""

    names: list[str]


class ObjectsLost(Struct, array_like=True, tag=18):
    """A borrower could not read copies that the owner named: find or rebuild them.

    ``names`` are the files that were not there; the value is fetched anew after this.
    """

    object_ids: list[bytes]
    names: list[str]


class CopiesMade(Struct, array_like=True, tag=19):
    """Tells the owner that a node has copies of its objects (``o-<hex id>``)."""

    object_ids: list[bytes]
    #: Hex id of the node.
    node: str


#: As `Interrupt.reason`: leave now, whatever runs; just say what was counted.
END_NOW = "now"


class Interrupt(Struct, array_like=True, tag=17):
    """Asks the peer to leave after the calls that it has accepted (but: `END_NOW`)."""

    reason: str


# --- peer <-> raylet --------------------------------------------------------


def env_key(env_vars: dict[str, str], runtime_env: str) -> tuple[tuple[str, str], ...]:
    """The environment of executors as the lease machine compares it.

    No variable has an empty name: that entry, the first, is the rest of the
    runtime_env.
    """
    if not env_vars and not runtime_env:
        return ()
    pairs = tuple(sorted((name, env_vars[name]) for name in env_vars if name))
    return (("", runtime_env), *pairs) if runtime_env else pairs


class RequestLease(Struct, array_like=True, tag=32):
    """Asks for one executor. Sending it twice with one id asks once."""

    lease_id: bytes
    job_id: bytes
    #: Text of the scheduling class, for people ("train_step {CPU: 1}").
    label: str
    resources: dict[str, float]
    env_vars: dict[str, str]
    backlog: int
    #: Placement group id, or empty, and its bundle (-1: any).
    placement_group: bytes = b""
    bundle_index: int = -1
    capture_group: bool = False
    #: Raylets that passed the request on before.
    hops: int = 0
    #: Hex ids of nodes to choose from, in order of preference; empty: any.
    nodes: list[str] = []
    #: False: only ``nodes`` will do, however long it takes.
    soft: bool = True
    #: "" or "SPREAD".
    strategy: str = ""
    #: A lease for life (actors): never asked back.
    fixed: bool = False
    #: Who holds it, when that is not the sender ("actor:HEX" for the control service).
    holder: str = ""
    #: The work may be run again: the memory monitor prefers to kill it.
    retriable: bool = True
    #: Label selectors in order of preference, of which a node must satisfy one.
    labels: list[dict[str, str]] = []
    #: It is for a call that rebuilds a lost value: goes before others.
    urgent: bool = False
    #: The runtime_env without ``env_vars``, as JSON; empty: none.
    runtime_env: str = ""

    def env_key(self) -> tuple[tuple[str, str], ...]:
        """What the executors of such requests have in common."""
        return env_key(self.env_vars, self.runtime_env)


class LeaseGranted(Struct, array_like=True, tag=33):
    lease_id: bytes
    address: str
    worker_id: bytes
    pid: int
    resources: dict[str, float]
    gpu_ids: list[int]


class LeaseRejected(Struct, array_like=True, tag=34):
    lease_id: bytes
    reason: str
    #: "cancelled", "infeasible", "removed", "setup", "spillback"
    kind: str
    #: For "spillback": address of the raylet to ask instead, and how often the request
    #: was passed on before.
    spill_to: str = ""
    hops: int = 0


class CancelLease(Struct, array_like=True, tag=35):
    lease_id: bytes


class ReturnLease(Struct, array_like=True, tag=36):
    lease_id: bytes
    #: True: the executor must not be used again (max_calls, force cancel).
    dispose: bool = False


class ReclaimLease(Struct, array_like=True, tag=37):
    """Somebody waits for what this lease holds: return it soon."""

    lease_id: bytes
    #: Only when there are no calls for it.
    if_idle: bool = False


class LeaseLost(Struct, array_like=True, tag=38):
    """The executor of a lease is gone."""

    lease_id: bytes
    reason: str
    exit_code: int
    #: True if the node's memory monitor killed it.
    out_of_memory: bool = False
    #: "" or "removed" (its placement group is gone)
    kind: str = ""


class Blocked(Struct, array_like=True, tag=39):
    """The sender's running call waits in get or wait: its CPUs are free."""

    blocked: bool


class LogLines(Struct, array_like=True, tag=40):
    pid: int
    name: str
    #: "out" or "err"
    stream: str
    lines: list[str]
    node_ip: str
    #: Whose driver prints them, where the raylet has no channel to it.
    job_id: bytes = b""


class KillExecutor(Struct, array_like=True, tag=41):
    """Force-cancel: the holder of a lease has its executor killed."""

    lease_id: bytes


class UpdateBacklog(Struct, array_like=True, tag=42):
    """How many calls its holder has queued for the class of a lease or request."""

    lease_id: bytes
    backlog: int


# --- raylet -> executor, for actors ------------------------------------------


class CreateActor(Struct, array_like=True, tag=48):
    """Makes the executor an actor; answered by ActorCreated or ActorFailed."""

    actor_id: bytes
    incarnation: int
    lease: BindLease
    class_blob: bytes
    class_name: str
    spec: TaskSpec
    name: str
    max_concurrency: int
    #: Group name -> its own limit.
    concurrency_groups: dict[str, int]
    owner: str
    #: As in RegisterActor.
    handle_blob: bytes = b""


class ActorCreated(Struct, array_like=True, tag=49):
    actor_id: bytes
    incarnation: int
    #: repr() of the instance when the class defines one; names its log lines.
    repr_name: str = ""


class ActorFailed(Struct, array_like=True, tag=50):
    """The constructor raised; ``error`` is an ERROR payload."""

    actor_id: bytes
    incarnation: int
    error: Payload


class ActorExiting(Struct, array_like=True, tag=51):
    """The actor leaves by its own will: final, no restart."""

    actor_id: bytes
    reason: str


# --- peer <-> control service -------------------------------------------------


class Request(Struct, array_like=True, tag=64):
    """A call of the control service; ``payload`` is MessagePack."""

    #: 0: nobody waits for the answer.
    request_id: int
    method: str
    payload: bytes


class Response(Struct, array_like=True, tag=65):
    request_id: int
    #: Name of an exception in rayshim.exceptions or builtins; empty on success.
    error: str
    payload: bytes


class RegisterActor(Struct, array_like=True, tag=66):
    """Reserves an actor id (and name); its constructor follows later."""

    request_id: int
    actor_id: bytes
    job_id: bytes
    owner: str
    class_name: str
    name: str
    namespace: str
    detached: bool
    max_restarts: int
    #: Held while the constructor's placement is decided.
    placement_resources: dict[str, float]
    #: Held for life.
    resources: dict[str, float]
    env_vars: dict[str, str]
    max_concurrency: int
    concurrency_groups: dict[str, int]
    #: Pickled method table, given to whoever looks the actor up.
    handle_blob: bytes
    placement_group: bytes = b""
    bundle_index: int = -1
    #: As in RequestLease.
    nodes: list[str] = []
    soft: bool = True
    strategy: str = ""
    labels: list[dict[str, str]] = []
    #: As in BindLease.
    capture_group: bool = False
    #: Namespace of its job, in which it looks for names; empty: its own.
    job_namespace: str = ""
    #: As in RequestLease.
    runtime_env: str = ""


class StartActor(Struct, array_like=True, tag=67):
    """The constructor's arguments are known: place and run it."""

    actor_id: bytes
    class_key: bytes
    class_blob: bytes
    spec: TaskSpec
    job_blob: bytes = b""


class FailActor(Struct, array_like=True, tag=68):
    """A constructor argument failed, so that the actor is dead on arrival."""

    actor_id: bytes
    error: Payload


class SubscribeActor(Struct, array_like=True, tag=69):
    actor_id: bytes


class ActorUpdate(Struct, array_like=True, tag=70):
    """State of an actor, sent to each subscriber at once and on each change."""

    actor_id: bytes
    #: "PENDING", "ALIVE", "RESTARTING", "DEAD"
    state: str
    incarnation: int
    address: str
    #: For DEAD and RESTARTING: what happened; an ERROR payload if a
    #: constructor raised.
    cause: str
    error: Payload | None
    pid: int
    #: "", "exit", "kill", "scope", "owner", "crash", "init", "node", "oom", "setup"
    kind: str
    restarts_left: int = 0


class KillActor(Struct, array_like=True, tag=71):
    actor_id: bytes
    no_restart: bool


class ActorOutOfScope(Struct, array_like=True, tag=72):
    """The owner counts no handle: end after the calls already sent."""

    actor_id: bytes


class Publish(Struct, array_like=True, tag=73):
    """A note of the control service to whom it may concern."""

    topic: str
    payload: bytes
