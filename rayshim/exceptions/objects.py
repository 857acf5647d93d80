"""Errors of getting, putting and keeping values."""

from __future__ import annotations

from typing import Any, ClassVar

from .base import RayError


class GetTimeoutError(RayError, TimeoutError):
    """A value was not there within the timeout."""


class DeadlockError(GetTimeoutError):
    """A value will never be there: what makes it waits for the one who asks."""


class ObjectRefStreamEndOfStreamError(RayError):
    """A streaming generator has no further reference."""


class OufOfBandObjectRefSerializationException(RayError):
    """A reference was pickled by other means than this package while that is off."""


class ObjectStoreFullError(RayError):
    """The node store has no room, and nothing in it may be moved out."""

    def __str__(self) -> str:
        return (
            super().__str__() + "\nThe local object store is full of objects that are "
            "still in scope. Free references (del ref), or give init() a larger "
            "object_store_memory."
        ).lstrip("\n")


class OutOfDiskError(RayError):
    """The node store is full and so is the disk that it spills to."""

    def __str__(self) -> str:
        return (
            super().__str__() + "\nThe object cannot be created: the local object "
            "store is full and the disk for spilled objects is over its limit. Free "
            "disk space (`df` shows it) or references."
        ).lstrip("\n")


class PlasmaObjectNotAvailable(RayError):
    """An object is not in the node store yet."""


class ObjectLostError(RayError):
    """Every copy of an object is gone.

    Args:
        object_ref_hex: the object.
        owner_address: address of its owner, if known.
        call_site: where the reference was made, if recorded.
    """

    def __init__(self, object_ref_hex: str, owner_address: Any, call_site: str) -> None:
        self.args = (object_ref_hex, owner_address, call_site)
        self.object_ref_hex = object_ref_hex
        self.owner_address = owner_address
        self.call_site = call_site.replace("\\n", "\n  ")
        #: Who owned it, where, and what became of them; may be empty.
        self.details = ""

    def add_details(self, text: str) -> None:
        """Say more at the end of the message."""
        self.details = text

    def __str__(self) -> str:
        text = f"Failed to retrieve object {self.object_ref_hex}."
        if self.call_site:
            text += f" The ObjectRef was created at: {self.call_site}"
        text = f"{text}\n\n{self._explanation()}"
        return f"{text}\n{self.details}" if self.details else text

    def _explanation(self) -> str:
        return (
            f"All copies of {self.object_ref_hex} have been lost, most likely with "
            "the nodes that held them."
        )


class ObjectFetchTimedOutError(ObjectLostError):
    """No copy of an object was found in time."""

    def _explanation(self) -> str:
        return (
            f"Fetch for object {self.object_ref_hex} timed out: no node said that it "
            "has a copy."
        )


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """An object is asked for that nobody should know any more."""

    def _explanation(self) -> str:
        return (
            "Its owner has already deleted the object, since it knew of no further "
            "reference. A reference that travelled outside of this package (a file, "
            "a socket) is not counted."
        )


class ObjectFreedError(ObjectLostError):
    """An object was freed by hand."""

    def _explanation(self) -> str:
        return (
            "The object was manually freed with `free`, which is only right when "
            "nobody will ask for it again."
        )


class OwnerDiedError(ObjectLostError):
    """The process that owned the object is gone, and the object with it."""

    def _explanation(self) -> str:
        return (
            "The object's owner has exited: the process that first made the reference "
            f"with `.remote()` or `put()`, at address {self.owner_address!r}. Let a "
            "process that lives longer create the object."
        )


class ObjectReconstructionFailedError(ObjectLostError):
    """An object was lost and cannot be made again.

    Args:
        object_ref_hex: the object.
        reason: key of ``REASON_MESSAGES``.
        reason_message: text in place of the one that belongs to ``reason``.
        owner_address: address of its owner, if known.
        call_site: where the reference was made, if recorded.
    """

    #: Reason number -> text. The numbers are those of Ray's error types.
    REASON_MESSAGES: ClassVar[dict[int, str]] = {
        12: "its task was run again as often as max_retries allows; raise "
        "`@ray.remote(max_retries=N)`.",
        13: "the description of its task (its lineage) was dropped to save memory.",
        27: "it was created by ray.put(), and no task can make it again; return "
        "the value from a task instead.",
        28: "its task has max_retries=0; allow retries with "
        "`@ray.remote(max_retries=N)`.",
        29: "this process only borrowed it, and only its owner can do that.",
        30: "its owner has no record of it.",
        31: "the task that would make it was cancelled.",
        32: "making lost objects again is turned off.",
    }
    _REASON_NAMES: ClassVar[dict[int, str]] = {
        12: "MAX_ATTEMPTS_EXCEEDED",
        13: "LINEAGE_EVICTED",
        27: "PUT",
        28: "RETRIES_DISABLED",
        29: "BORROWED",
        30: "REF_NOT_FOUND",
        31: "TASK_CANCELLED",
        32: "LINEAGE_DISABLED",
    }

    def __init__(
        self,
        object_ref_hex: str,
        reason: int | None = None,
        reason_message: str | None = None,
        owner_address: Any = None,
        call_site: str = "",
    ) -> None:
        super().__init__(object_ref_hex, owner_address, call_site)
        if reason is not None and reason not in self.REASON_MESSAGES:
            raise ValueError(f"{reason} is not one of {sorted(self.REASON_MESSAGES)}")
        self.reason = reason
        if reason_message is None and reason is not None:
            reason_message = (
                "The object cannot be reconstructed because "
                + self.REASON_MESSAGES[reason]
            )
        self.reason_message = reason_message or (
            "The object cannot be reconstructed, for a reason that was not recorded."
        )

    def _explanation(self) -> str:
        name = "UNKNOWN"
        if self.reason is not None:
            name = f"OBJECT_UNRECONSTRUCTABLE_{self._REASON_NAMES[self.reason]}"
        return f"[{name}] {self.reason_message}"
