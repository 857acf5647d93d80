"""Drills: something is killed, and what it takes to recover is measured.

Each drill lays probe work on the platform, kills one thing as a failing machine would,
and waits until the probe is complete again. A result beyond the limits of the file is a
failed check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rayshim.k8s.api import Kube
from rayshim.k8s.config import Platform

#: Name of a drill -> what it does.
DRILLS: Final = {
    "train-worker": "kill a worker of the training group while it has work",
    "serve-replica": "kill a worker of the serving group under an actor that answers",
    "head": "delete the head's pod under an actor with a state",
}


class DrillError(RuntimeError):
    """A drill could not be held; nothing was measured."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened."""

    #: Seconds after the kill; negative: before it.
    after_s: float
    text: str


@dataclass(frozen=True, slots=True)
class DrillResult:
    """What a drill has measured."""

    name: str
    #: Seconds from the kill until everything was as before.
    recovery_s: float
    limit_s: float
    steps: tuple[Step, ...] = ()
    #: Why it did not recover; empty: it did.
    failure: str = ""

    @property
    def is_passed(self) -> bool:
        """Whether it recovered within the limit."""
        return not self.failure and self.recovery_s <= self.limit_s

    @property
    def exit_code(self) -> int:
        """0, or 1 of a failed check."""
        return 0 if self.is_passed else 1


class Probe:
    """Work on the platform whose result shows that nothing was lost."""


def run_drill(
    name: str,
    kube: Kube,
    platform: Platform,
    *,
    probe: Probe | None = None,
    head: str | None = None,
    token_path: str = "",
    say: Callable[[str], None] = print,
) -> DrillResult:
    """Hold a drill on the running platform.

    Args:
        name: one of ``DRILLS``.
        kube: the platform's namespace.
        platform: the file.
        probe: what lays the work; None: one for the platform's runtime.
        head: "HOST" or "HOST:PORT" by which this process reaches the head; None: its
            Service, as inside the Kubernetes cluster.
        token_path: file with the cluster's token; empty: it is read from its Secret.
        say: takes each line for people.

    Raises:
        DrillError: there is nothing to kill, or no way to lay the probe's work.
        ConnectionError: the head, or Kubernetes, does not answer.
    """
    raise DrillError(f"{name}: drills are not there yet")
