"""What an autoscaler says of demand that it cannot meet, kept for whoever asks.

Drivers are told once of each thing that no group of nodes can hold; explanations name
it, and what nodes are being started for. A report that is not renewed is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.wire import messages as wire

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer

#: Seconds for which a report counts.
VALID_S = 30.0


class Note(msgspec.Struct):
    """A part of the demand; see :class:`rayshim.lineage.node_groups.Unmet`."""

    kind: str
    subject: str
    count: int
    text: str


class Report(msgspec.Struct):
    """Payload of ``autoscaler_report``."""

    infeasible: list[Note] = []
    waiting: list[Note] = []
    #: Group -> why its last node did not come up.
    failures: dict[str, str] = {}
    #: The state of the autoscaler in words.
    lines: list[str] = []


class AutoscalerNotes:
    """The newest report.

    Args:
        server: The process of the control service.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._report = Report()
        self._came_s = float("-inf")
        #: What each driver was told, by its address.
        self._told: dict[str, set[str]] = {}

    @property
    def is_active(self) -> bool:
        """Whether an autoscaler reports."""
        return self._server.now() - self._came_s < VALID_S

    def take(self, payload: bytes) -> None:
        """A report came."""
        self._report = msgspec.msgpack.decode(payload, type=Report)
        self._came_s = self._server.now()
        self._tell()

    def about(self, subject: str) -> list[str]:
        """What it says of a request's label, or of a placement group's hex id."""
        # Calls of one function may ask for different things, each with its own notes.
        names = (subject, subject.partition(" {")[0])
        return [
            note.text
            for note in (*self._valid.infeasible, *self._valid.waiting)
            if note.subject in names
        ]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each thing that waits, and for each group that fails."""
        report = self._valid
        rows = [
            {"state": state, **msgspec.to_builtins(note)}
            for state, notes in (
                ("infeasible", report.infeasible),
                ("waiting", report.waiting),
            )
            for note in notes
        ]
        rows += [
            {
                "state": "failed",
                "kind": "group",
                "subject": name,
                "count": 1,
                "text": f"its last node did not come up: {reason}",
            }
            for name, reason in report.failures.items()
        ]
        return rows

    def lines(self) -> list[str]:
        """The state of the autoscaler in words; empty if none reports."""
        return self._valid.lines

    @property
    def _valid(self) -> Report:
        is_old = self._server.now() - self._came_s > VALID_S
        return Report() if is_old else self._report

    def _tell(self) -> None:
        drivers = {peer.address: peer for peer in self._server.drivers.values()}
        self._told = {one: self._told.get(one, set()) for one in drivers}
        texts = {f"infeasible: {one.text}": None for one in self._report.infeasible}
        texts |= {
            f"a node of group {name} did not come up: {reason}": None
            for name, reason in self._report.failures.items()
        }
        for address, driver in drivers.items():
            new = [text for text in texts if text not in self._told[address]]
            if new:
                self._told[address].update(new)
                lines = new
                driver.connection.send(
                    wire.LogLines(0, "autoscaler", "err", lines, "", driver.job_id)
                )
