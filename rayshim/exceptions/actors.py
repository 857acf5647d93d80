"""Errors of calls on actors, and of actors as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from .base import RayError
from .calls import RayTaskError


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorDeath:
    """What is known about the death of an actor; empty values are left out.

    ``reason`` is a sentence. ``never_started`` means that its constructor did not
    run to the end, ``preempted`` that its node was taken away.
    """

    reason: str
    class_name: str = ""
    #: Hexadecimal.
    actor_id: str = ""
    pid: int = 0
    name: str = ""
    namespace: str = ""
    ip: str = ""
    never_started: bool = False
    preempted: bool = False

    def to_text(self) -> str:
        """Return one line for each fact, then the reason."""
        names = ("class_name", "actor_id", "pid", "name", "namespace", "ip")
        facts = [(name, getattr(self, name)) for name in names]
        lines = [f"\t{name}: {value}" for name, value in facts if value]
        lines.append(self.reason)
        if self.never_started:
            lines.append("The actor never ran - it was cancelled before it started.")
        return "\n".join(lines)


class RayActorError(RayError):
    """An actor could not answer a call.

    Args:
        actor_id: in hex.
        error_msg: the text.
        actor_init_failed: whether the constructor raised.
        preempted: whether the actor's node was taken away.
    """

    BASE_ERROR_MSG = "The actor experienced an error before finishing this task."

    def __init__(
        self,
        actor_id: str | None = None,
        error_msg: str = BASE_ERROR_MSG,
        actor_init_failed: bool = False,
        preempted: bool = False,
    ) -> None:
        self.actor_id = actor_id
        self.error_msg = error_msg
        self._actor_init_failed = actor_init_failed
        self._preempted = preempted

    def __str__(self) -> str:
        return self.error_msg

    @property
    def preempted(self) -> bool:
        """Whether the actor died because its node was taken away."""
        return self._preempted

    @property
    def actor_init_failed(self) -> bool:
        """Whether the actor's constructor raised."""
        return self._actor_init_failed


class ActorDiedError(RayActorError):
    """The actor is dead and stays so; further calls fail too.

    Args:
        cause: ``RayTaskError`` of the constructor, an :class:`ActorDeath`, a whole
            text, or nothing.
    """

    BASE_ERROR_MSG = "The actor died unexpectedly before finishing this task."

    def __init__(self, cause: RayTaskError | ActorDeath | str | None = None) -> None:
        if isinstance(cause, RayTaskError):
            text = (
                "The actor died because of an error raised in its creation task, "
                f"{cause}"
            )
            super().__init__(cause._actor_id, text, actor_init_failed=True)
        elif isinstance(cause, ActorDeath):
            text = f"{self.BASE_ERROR_MSG}\n{cause.to_text()}"
            super().__init__(cause.actor_id or None, text, preempted=cause.preempted)
        else:
            super().__init__(None, cause or self.BASE_ERROR_MSG)

    @staticmethod
    def from_task_error(task_error: RayTaskError) -> ActorDiedError:
        """Make the error of an actor whose constructor raised ``task_error``."""
        return ActorDiedError(task_error)


class ActorUnavailableError(RayActorError):
    """The actor does not answer at the moment; it may come back.

    Args:
        error_message: what was seen.
        actor_id: its bytes, if known.
    """

    def __init__(self, error_message: str, actor_id: bytes | None) -> None:
        hex_id = actor_id.hex() if actor_id is not None else None
        super().__init__(
            hex_id,
            f"The actor {hex_id} is unavailable: {error_message}. It is not known "
            "whether the task may have been executed on the actor.",
        )


class AsyncioActorExit(RayError):
    """Ends an async actor from within."""


class ActorAlreadyExistsError(ValueError, RayError):
    """Another living actor has the name."""

    def __init__(self, error_message: str) -> None:
        super().__init__(error_message)
        self.error_message = error_message


class ActorHandleNotFoundError(ValueError, RayError):
    """A handle is of no use here, as when it is of another cluster."""

    def __init__(self, error_message: str) -> None:
        super().__init__(error_message)
        self.error_message = error_message


class PendingCallsLimitExceeded(RayError):
    """The actor's ``max_pending_calls`` calls of this process are pending already."""
