"""Processes and what lies between them.

Two kinds of messages. Most go over *channels*: in order, each once, until the end of
one side, which the other hears behind all that was sent before, some time later. A
channel between living processes may also break: what was on its way is lost, and each
side takes the other for dead, at its own time. After that it may connect anew.

*Notes* are requests and answers that carry the sender's id: a tenth of them is dropped,
a tenth comes twice, and they overtake each other and everything else. Whoever sends one
repeats it until it is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim.adapters.sim.kernel import Kernel

if TYPE_CHECKING:
    from rayshim.adapters.sim.cluster import Cluster

#: Shares of notes that are dropped and that come twice.
DROP = DOUBLE = 0.1
#: A note is repeated after this long without an answer.
REPEAT_S = 0.4


class Process:
    """A simulated process. Messages are tuples: ``(kind, ...)`` goes to ``on_kind``."""

    def __init__(self, cluster: Cluster, address: str, host: str) -> None:
        self.cluster = cluster
        self.kernel: Kernel = cluster.kernel
        self.network: Network = cluster.network
        self.address = address
        #: Processes of one host share its fate in partitions.
        self.host = host
        self.alive = True
        self.paused_until_s = 0.0
        #: Addresses whose end was heard of.
        self.buried: set[str] = set()
        self.network.processes[address] = self

    def __repr__(self) -> str:
        return self.address

    def send(self, target: str, *message: Any) -> bool:
        """Send over a channel; False if the other is known to be dead."""
        return self.network.send(self, target, message)

    def note(self, target: str, *message: Any) -> bool:
        """Send a note."""
        return self.network.send(self, target, message, is_note=True)

    def later(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """A timer of this process: it stops with it."""
        self.kernel.after(delay_s, self._due, action, args)

    def _due(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.kernel.now_s < self.paused_until_s:
            rest = self.paused_until_s - self.kernel.now_s
            self.kernel.after(rest, self._due, action, args)
            return
        action(*args)

    def receive(self, source: str, message: tuple[Any, ...]) -> None:
        """Take in a message."""
        if source not in self.buried:
            getattr(self, f"on_{message[0]}")(source, *message[1:])

    def bury(self, address: str) -> None:
        """The end of another process was heard of."""
        if address == "head":
            # It comes back under the same address.
            self.network.forget(self.address, address)
            self.later(REPEAT_S, self.greet_head)
        elif address not in self.buried:
            self.buried.add(address)
            self.peer_ended(address)

    def peer_ended(self, address: str) -> None:
        """For subclasses."""

    def greet_head(self) -> None:
        """For subclasses: the head may be there again."""

    def die(self, *, is_silent: bool = False) -> None:
        """End at once; ``is_silent``: nobody gets an end of a channel."""
        if not self.alive:
            return
        self.alive = False
        self.kernel.note(f"{self.address} dies")
        self.ended()
        self.network.ended(self, is_silent=is_silent)

    def ended(self) -> None:
        """For subclasses: the last word of a dying process."""


class Network:
    """All channels."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.processes: dict[str, Process] = {}
        #: Pairs that have a channel, both ways round, in order of opening.
        self._open: dict[str, dict[str, None]] = {}
        #: (from, to) -> when the last message arrives.
        self._last: dict[tuple[str, str], float] = {}
        #: Pairs of hosts -> when they can talk again.
        self._cuts: dict[frozenset[str], float] = {}
        #: Pairs -> how often their channel broke.
        self._breaks: dict[frozenset[str], int] = {}
        #: (process, other) whose channel broke, which the process has not noticed.
        self._unnoticed: set[tuple[str, str]] = set()
        self.is_lossy = False

    def send(
        self,
        source: Process,
        target: str,
        message: tuple[Any, ...],
        *,
        is_note: bool = False,
    ) -> bool:
        """Put a message on its way."""
        if not source.alive:
            return False
        if target in source.buried:
            return False
        if (source.address, target) in self._unnoticed:
            return True
        other = self.processes.get(target)
        if target not in self._open.get(source.address, ()):
            if other is None or not other.alive:
                return False
            self._open.setdefault(source.address, {})[target] = None
            self._open.setdefault(target, {})[source.address] = None
        assert other is not None
        if not other.alive:
            return True
        breaks = self._breaks.get(frozenset((source.address, target)), 0)
        arrival = (source.address, other, message, breaks)
        if is_note and self.is_lossy:
            rng = self._kernel.rng
            if rng.random() < DROP:
                return True
            copies = 2 if rng.random() < DOUBLE else 1
            for _ in range(copies):
                delay_s = self._delay(source, other) + rng.random() * 0.2
                self._kernel.after(delay_s, self._arrive, *arrival)
            return True
        at_s = self._kernel.now_s + self._delay(source, other)
        pair = (source.address, target)
        at_s = max(at_s, self._last.get(pair, 0.0))
        self._last[pair] = at_s
        delay_s = at_s - self._kernel.now_s
        self._kernel.after(delay_s, self._arrive, *arrival)
        return True

    def _delay(self, source: Process, target: Process) -> float:
        rng = self._kernel.rng
        delay_s = 0.0001 if source.host == target.host else 0.001
        delay_s *= 1 + rng.random()
        if rng.random() < 0.02:
            delay_s += rng.random() * 0.05
        until_s = self._cuts.get(frozenset((source.host, target.host)), 0.0)
        return delay_s + max(0.0, until_s - self._kernel.now_s)

    def _arrive(
        self, source: str, target: Process, message: tuple[Any, ...], breaks: int
    ) -> None:
        if not target.alive:
            return
        if breaks != self._breaks.get(frozenset((source, target.address)), 0):
            return
        if self._kernel.now_s < target.paused_until_s:
            rest = target.paused_until_s - self._kernel.now_s
            self._kernel.after(rest, self._arrive, source, target, message, breaks)
            return
        if message[0] == "the_end":
            target.bury(source)
        else:
            target.receive(source, message)

    def ended(self, process: Process, *, is_silent: bool) -> None:
        """Tell the others of the end of a process."""
        for other in self._open.pop(process.address, {}):
            if not is_silent:
                self._end(process, other)

    def forget(self, one: str, other: str) -> None:
        """A channel is at its end for ``one``, which may open another."""
        self._open.get(one, {}).pop(other, None)

    def break_channel(self, one: Process, other: Process) -> bool:
        """Break a channel between two living processes, if there is one."""
        if other.address not in self._open.get(one.address, ()):
            return False
        pair = frozenset((one.address, other.address))
        self._breaks[pair] = self._breaks.get(pair, 0) + 1
        for source, target in ((one, other), (other, one)):
            self._open[source.address].pop(target.address, None)
            self._unnoticed.add((source.address, target.address))
            delay_s = source.kernel.rng.random() * 0.5
            source.kernel.after(delay_s, self._sever, source, target.address)
        return True

    def _sever(self, process: Process, address: str) -> None:
        self._unnoticed.discard((process.address, address))
        if process.alive:
            process.bury(address)

    def has_broken(self, one: str, other: str) -> bool:
        """Whether a channel of the two ever broke."""
        return frozenset((one, other)) in self._breaks

    def reconnect(self, source: Process, target: str, dead_hosts: set[str]) -> bool:
        """Open another channel after one broke; False if the other is dead."""
        other = self.processes[target]
        if other.host in dead_hosts:
            return False
        if not other.alive or (target, source.address) in self._unnoticed:
            return False
        source.buried.discard(target)
        other.buried.discard(source.address)
        return True

    def _end(self, process: Process, target: str) -> None:
        other = self.processes[target]
        pair = (process.address, target)
        delay_s = self._delay(process, other) + self._kernel.rng.random() * 0.02
        at_s = max(self._kernel.now_s + delay_s, self._last.get(pair, 0.0))
        self._kernel.after(
            at_s - self._kernel.now_s,
            self._arrive,
            process.address,
            other,
            ("the_end",),
            self._breaks.get(frozenset(pair), 0),
        )

    def cut(self, one: str, other: str, seconds: float) -> None:
        """Part two hosts for a while: what they say arrives afterwards."""
        until_s = self._kernel.now_s + seconds
        self._cuts[frozenset((one, other))] = until_s
