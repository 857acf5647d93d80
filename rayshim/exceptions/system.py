"""Errors of the system: processes, nodes, messages, placement."""

from __future__ import annotations

from typing import Any

from .base import DefaultTextError, RayError


class LocalRayletDiedError(DefaultTextError):
    """The raylet of the node that ran the task died."""

    _default_text = (
        "The task's local raylet died, and with it all executors of that node. "
        "The node's log in the session folder has its last words."
    )


class WorkerCrashedError(DefaultTextError):
    """The executor process died while it ran the task."""

    _default_text = (
        "The worker died unexpectedly while executing this task, and no retries are "
        "left. Its log in the session folder has its last words."
    )


class OutOfMemoryError(RayError):
    """The node killed the executor before its memory ran out.

    Args:
        message: which process, how much memory, who uses most.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NodeDiedError(RayError):
    """The node is dead or its death was noticed while a call ran there."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RpcError(RayError):
    """A message could not be delivered or answered.

    Args:
        message: what happened.
        rpc_code: number of the transport's own error, if any.
    """

    def __init__(self, message: str, rpc_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.rpc_code = rpc_code


class AuthenticationError(RayError):
    """The token of the cluster is missing or does not match."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return (
            f"{self.message}. The token of a cluster is the file `token` in the head's "
            "session folder; give the same one to every process that joins."
        )


class RuntimeEnvSetupError(RayError):
    """The ``runtime_env`` that a task or actor asks for cannot be made."""

    def __init__(self, error_message: str | None = None) -> None:
        super().__init__(*([] if error_message is None else [error_message]))
        self.error_message = error_message

    def __str__(self) -> str:
        text = "Failed to set up runtime environment."
        return f"{text}\n{self.error_message}" if self.error_message else text


class TaskPlacementGroupRemoved(DefaultTextError):
    """The task's placement group was removed."""

    _default_text = "The placement group corresponding to this task has been removed."


class ActorPlacementGroupRemoved(DefaultTextError):
    """The actor's placement group was removed."""

    _default_text = "The placement group corresponding to this Actor has been removed."


class TaskUnschedulableError(RayError):
    """No node may ever run the task."""

    def __init__(self, error_message: str) -> None:
        super().__init__(error_message)
        self.error_message = error_message

    def __str__(self) -> str:
        return f"The task is not schedulable: {self.error_message}"


class ActorUnschedulableError(RayError):
    """No node may ever run the actor."""

    def __init__(self, error_message: str) -> None:
        super().__init__(error_message)
        self.error_message = error_message

    def __str__(self) -> str:
        return f"The actor is not schedulable: {self.error_message}"


class RaySystemError(RayError):
    """Something in the system failed that has no class of its own.

    Args:
        client_exc: the exception, or a text.
        traceback_str: its traceback as text.
    """

    def __init__(self, client_exc: Any, traceback_str: str | None = None) -> None:
        # OSError, a base of some subclasses, forgets its arguments otherwise.
        self.args = (
            (client_exc,) if traceback_str is None else (client_exc, traceback_str)
        )
        self.client_exc = client_exc
        self.traceback_str = traceback_str

    def __str__(self) -> str:
        text = f"System error: {self.client_exc}"
        if self.traceback_str:
            text += f"\ntraceback: {self.traceback_str}"
        return text


class InternalError(RaySystemError):
    """A state that must not occur: a bug of this package.

    Args:
        client_exc: what was found, with the numbers.
        traceback_str: the story: which events led to it.
    """

    def __str__(self) -> str:
        text = f"{self.client_exc}. This is a bug of rayshim, not of your program"
        text += "; please report it with this text."
        if self.traceback_str:
            text += f"\nWhat led to it:\n{self.traceback_str}"
        return text


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """A generator task that was run again gave another number of objects."""


class RayDirectTransportError(RaySystemError):
    """A transfer between devices failed."""


class RayChannelError(RaySystemError):
    """A channel of a compiled graph failed."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """A channel of a compiled graph had nothing in time."""


class RayCgraphCapacityExceeded(RaySystemError):
    """A compiled graph has as many executions under way as it may."""
