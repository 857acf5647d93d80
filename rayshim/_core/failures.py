"""Errors as payloads: made where something failed, raised where it is asked for."""

from __future__ import annotations

import pickle
import sys
import traceback
from types import TracebackType
from typing import TYPE_CHECKING, Any

import cloudpickle

from rayshim import exceptions
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.codec import as_text

if TYPE_CHECKING:
    from rayshim._core.peer import Peer


def error_payload(error: BaseException) -> m.Payload:
    """An ERROR payload; falls back to text where the error does not pickle."""
    try:
        data = cloudpickle.dumps(error, protocol=5)
        pickle.loads(data)
    except Exception:
        text = _formatted(error, error.__traceback__)
        substitute = exceptions.RaySystemError(
            RuntimeError(
                f"{type(error).__name__} that cannot be pickled: {_message(error)}"
            ),
            text,
        )
        data = cloudpickle.dumps(substitute, protocol=5)
    return m.Payload(m.ERROR, data)


def load_error(payload: m.Payload) -> BaseException:
    """The exception inside an ERROR payload, as it was stored."""
    try:
        error = pickle.loads(payload.data)
    except Exception as problem:
        return exceptions.RaySystemError(problem, traceback.format_exc())
    if not isinstance(error, BaseException):
        return exceptions.RaySystemError(RuntimeError(f"not an error: {error!r}"))
    return error


def to_raise(payload: m.Payload) -> BaseException:
    """The exception as user code catches it: also an instance of the cause."""
    error = load_error(payload)
    if isinstance(error, exceptions.RayTaskError):
        return error.as_instanceof_cause()
    return error


def lost(object_id: bytes, owner: str) -> m.Payload:
    """The value of an object that its owner no longer knows."""
    return error_payload(
        exceptions.ReferenceCountingAssertionError(object_id.hex(), owner, "")
    )


def task_error(
    peer: Peer,
    name: str,
    error: BaseException,
    *,
    skip_frames: int = 0,
    actor_id: str | None = None,
    actor_repr: str | None = None,
) -> exceptions.RayTaskError:
    """Wrap what a call raised, with the traceback of user code only.

    Args:
        peer: the executor's peer.
        name: what ``ray::name()`` shows.
        error: as caught.
        skip_frames: frames of this package at the top of the traceback.
        actor_id: hex id of the actor, for a method.
        actor_repr: what the actor calls itself.
    """
    tb = error.__traceback__
    for _ in range(skip_frames):
        if tb is not None and tb.tb_next is not None:
            tb = tb.tb_next
    text = _formatted(error, tb)
    kind = exceptions.RayTaskError
    if isinstance(error, exceptions.RayTaskError) and error.cause is not None:
        # An error that passed through another call keeps its original type.
        cause: Any = error.cause
    else:
        cause = error
    cause = _portable(cause)
    if cause is None:
        cause = exceptions.RaySystemError(
            RuntimeError(f"{type(error).__name__}: {_message(error)}"), text
        )
    return kind(
        function_name=name,
        traceback_str=text,
        cause=cause,
        proctitle=f"ray::{name}",
        pid=peer.pid,
        ip=peer.node_ip,
        actor_id=actor_id,
        actor_repr=actor_repr,
    )


def _formatted(error: BaseException, tb: TracebackType | None) -> str:
    """The traceback as text, also of exceptions that break when they are looked at."""
    try:
        return "".join(traceback.format_exception(type(error), error, tb))
    except Exception:
        frames = "".join(traceback.format_tb(tb))
        name = f"{type(error).__module__}.{type(error).__qualname__}"
        return (
            f"Traceback (most recent call last):\n{frames}{name}: {_message(error)}\n"
        )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its __str__ fails>"


def _portable(error: BaseException) -> BaseException | None:
    """The error itself if it survives pickling, else None."""
    try:
        pickle.loads(cloudpickle.dumps(error, protocol=5))
    except Exception:
        return None
    return error


def for_consumer(peer: Peer, payload: m.Payload, name: str) -> m.Payload:
    """An argument's failure as the failure of the call that needed it."""
    error = load_error(payload)
    if isinstance(error, exceptions.RayTaskError):
        cause, text = error.cause, str(error)
    else:
        cause, text = error, f"{type(error).__name__}: {error}"
    return error_payload(
        exceptions.RayTaskError(
            function_name=name,
            traceback_str=f"ray::{name}() was not run: a value it needs could not be "
            f"made.\n{text}",
            cause=cause,
            proctitle=f"ray::{name}",
            pid=peer.pid,
            ip=peer.node_ip,
        )
    )


def call_site(depth: int = 2) -> str:
    """``file.py:12`` of the first caller outside this package."""
    frame = sys._getframe(depth)
    while frame is not None and "rayshim" in frame.f_globals.get("__name__", ""):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return f"{as_text(frame.f_code.co_filename)}:{frame.f_lineno}"


def node_gone() -> Exception:
    """What is raised once the node process of a session is gone."""
    return exceptions.LocalRayletDiedError(
        "the node process of this session is gone, so nothing can run any more: it "
        "was killed, or the program or cluster that it belongs to has ended. Call "
        "shutdown() and init() to start again; its last words are in logs/ of the "
        "session's folder, and then in history/ beside it."
    )
