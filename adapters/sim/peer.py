"""A simulated process that runs user code: driver or executor."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from rayshim.adapters.sim.actors import Actors
from rayshim.adapters.sim.network import REPEAT_S, Process
from rayshim.adapters.sim.node import Node
from rayshim.adapters.sim.objects import Objects
from rayshim.adapters.sim.tasks import Tasks
from rayshim.adapters.sim.values import Ref, SimError, decode

if TYPE_CHECKING:
    from rayshim.adapters.sim.cluster import Cluster

#: User code: yields ``("get", ref)``, ``("sleep", seconds)``; see :class:`Thread`.
Body = Generator[tuple[Any, ...], Any, Any]


class Thread:
    """User code as it runs, one step after the other.

    Args:
        peer: where it runs.
        body: the code.
        done: called with (value, error) at its end.
    """

    def __init__(
        self,
        peer: Peer,
        body: Body,
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._peer = peer
        self._body = body
        self._done = done
        #: What it waits for, and since when.
        self.waits: tuple[Any, float] | None = None

    def step(self, value: Any = None, error: SimError | None = None) -> None:
        """Go on with what was waited for."""
        if not self._peer.alive:
            return
        self.waits = None
        try:
            if error is not None:
                wish = self._body.throw(SimError(error.kind, error.text))
            else:
                wish = self._body.send(value)
        except StopIteration as end:
            self._done(end.value, None)
            return
        except SimError as failure:
            failure.__traceback__ = None  # it holds references of user code
            self._done(None, failure)
            return
        del value
        getattr(self, f"_{wish[0]}")(*wish[1:])

    def _sleep(self, seconds: float) -> None:
        self._peer.later(seconds, self.step)

    def _get(self, ref: Ref) -> None:
        kernel = self._peer.kernel
        object_id = ref.object_id
        del ref  # what waits below must not hold it
        self.waits = (object_id, kernel.now_s)
        self._peer.cluster.gets += 1

        def here(data: Any) -> None:
            if not isinstance(data, SimError):
                data = decode(data, self._peer.objects)
            kernel.after(0.0, self._got, data)

        self._peer.blocks(True)
        self._peer.objects.when_here(object_id, here)

    def _got(self, data: Any) -> None:
        if not self._peer.alive:
            return
        self._peer.blocks(False)
        if isinstance(data, SimError):
            self.step(error=data)
        else:
            self.step(data)


class Peer(Process):
    """What drivers and executors have in common."""

    def __init__(self, cluster: Cluster, address: str, node: Node) -> None:
        super().__init__(cluster, address, node.name)
        self.node = node
        self._ids = 0
        #: Hosts that the head declared dead.
        self.dead_hosts: set[str] = set()
        self.objects = Objects(self)
        self.tasks = Tasks(self)
        self.actors = Actors(self)
        self.greet_head()

    def greet_head(self) -> None:
        """Tell the head that this process is there."""
        if not self.send("head", "hello"):
            self.later(REPEAT_S, self.greet_head)

    def new_id(self, kind: str) -> bytes:
        """Id of a call, an actor or a put: 24 bytes."""
        self._ids += 1
        text = f"{self.address}.{kind}{self._ids}"
        assert len(text) <= 24, text
        return text.encode().ljust(24, b".")

    def blocks(self, is_blocked: bool) -> None:
        """User code waits, or no more."""

    # -- for user code -----------------------------------------------------------

    def put(self, value: Any) -> Ref:
        """Store a value."""
        return self.objects.put(value)

    def call(self, function: str, *args: Any, retries: int = 3) -> Ref:
        """Call a task."""
        return self.tasks.submit(function, args, retries)

    def actor(self, kind: str, *args: Any, restarts: int = 0) -> Ref:
        """Make an actor; the reference is its handle."""
        return self.actors.create(kind, args, restarts)

    def method(self, handle: Ref, name: str, *args: Any, retries: int = 0) -> Ref:
        """Call a method of an actor."""
        return self.actors.call(handle, name, args, retries)

    # -- messages ----------------------------------------------------------------

    def receive(self, source: str, message: tuple[Any, ...]) -> None:
        """Messages of the parts go to the parts."""
        if source in self.buried:
            return
        kind = f"on_{message[0]}"
        for part in (self, self.objects, self.tasks):
            method = getattr(part, kind, None)
            if method is not None:
                method(source, *message[1:])
                return
        raise AssertionError(f"{self.address} does not know {message[0]}")

    def on_actor_update(
        self,
        source: str,
        actor_id: bytes,
        state: str,
        incarnation: int,
        address: str,
        kind: str,
    ) -> None:
        """The head tells how an actor is."""
        self.actors.on_update(actor_id, state, incarnation, address)

    def on_read_answer(
        self, source: str, number: int, is_there: bool, data: Any
    ) -> None:
        """A node answers a read."""
        self.objects.read_answered(number, is_there, data)

    def on_table(self, source: str, dead: tuple[tuple[str, str], ...]) -> None:
        """Who is dead."""
        for name, address in dead:
            if name == self.node.name or address in self.buried:
                continue
            processes = [
                one for one in self.network.processes.values() if one.host == name
            ]
            self.dead_hosts.add(name)
            self.bury(address)
            for process in processes:
                self.bury(process.address)
            self.objects.node_died(address)

    def peer_ended(self, address: str) -> None:
        """The end of another process."""
        self.tasks.peer_ended(address)
        self.actors.peer_ended(address)
        self.objects.owner_died(address)
        if address.endswith(".raylet"):
            self.objects.node_died(address)

    def threads(self) -> list[Thread]:
        """User code that runs here."""
        return []


class Driver(Peer):
    """The process of the user's program."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        super().__init__(cluster, "driver", node)
        self._threads: list[Thread] = []
        self.results: list[Any] = []

    def run(self, body: Body) -> None:
        """Run a program beside the others."""

        def done(value: Any, error: BaseException | None) -> None:
            self._threads.remove(thread)
            if error is not None:
                self.kernel.fail(f"a program ends with {error!r}")

        thread = Thread(self, body, done)
        self._threads.append(thread)
        thread.step()

    def threads(self) -> list[Thread]:
        """The programs that still run."""
        return self._threads
