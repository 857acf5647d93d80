"""Applies a ``LoggingConfig``: lines of text or JSON that say where they come from.

Each process of the job, the driver too, writes its log to standard error, from where
the lines of executors go to their files and to the driver. What a line says of its
process and call is what Ray's lines say, under the same names.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from rayshim._core import current

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Attributes of a record that are none of the user's ``extra``.
_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "asctime",
    "message",
    "taskName",
    "stack_info",
}
#: What every line of JSON has.
_USUAL = ("asctime", "levelname", "message", "filename", "lineno", "process")


def where() -> dict[str, str]:
    """Ids of the process, and of the call that runs in this thread or task."""
    peer = current.peer
    if peer is None:
        return {}
    found = {
        "job_id": peer.job_id.hex(),
        "worker_id": peer.worker_id.hex(),
        "node_id": peer.node_id,
    }
    executor = peer.executor
    if executor is None:
        return found
    actor = executor.actor
    if actor is not None:
        found["actor_id"] = actor.actor_id.hex()
    call = current.call.get()
    if call is not None:
        found["task_id"] = call.task_id.hex()
        found["task_name"] = executor.runner.display_name(call.spec)
        found["task_func_name"] = executor.runner.qualified_name(call.spec)
    if actor is not None and actor.name:
        found["actor_name"] = actor.name
    return found


class _Formatter(logging.Formatter):
    """What both encodings have in common.

    Args:
        attributes: of records, that each line has besides the usual ones.
    """

    def __init__(self, attributes: list[str]) -> None:
        super().__init__()
        self._attributes = attributes

    def _more(self, record: logging.LogRecord) -> dict[str, Any]:
        """Attributes that were asked for, the user's own, and where it happened."""
        asked = {name: getattr(record, name, None) for name in self._attributes}
        own = {
            name: value
            for name, value in record.__dict__.items()
            if name not in _STANDARD and name not in asked
        }
        stamp = {"timestamp_ns": int(record.created * 1e9)}
        return {**asked, **own, **where(), **stamp}


class JSONFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        line = {name: getattr(record, name) for name in _USUAL}
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exc_text"] = record.exc_text
        return json.dumps({**line, **self._more(record)}, default=str)


class TextFormatter(_Formatter):
    """Text, with ``name=value`` after the message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        message = record.getMessage()
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            message = f"{message}\n{record.exc_text}"
        more = " ".join(f"{name}={value}" for name, value in self._more(record).items())
        return (
            f"{self.formatTime(record)}\t{record.levelname} "
            f"{record.filename}:{record.lineno} -- {message} {more}"
        )


_FORMATTERS = {"JSON": JSONFormatter, "TEXT": TextFormatter}


class _ToStandardError(logging.StreamHandler[Any]):
    """Writes to what standard error is at that time."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        """The current standard error."""
        import sys

        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        """Nothing is kept."""


def apply(config: Mapping[str, Any]) -> None:
    """Set up the root logger and that of rayshim.

    Args:
        config: as ``LoggingConfig.to_dict`` gives it.

    Raises:
        ValueError: the level is unknown.
    """
    attributes = list(config.get("additional_log_standard_attrs") or ())
    handler = _ToStandardError()
    handler.setFormatter(_FORMATTERS[config["encoding"]](attributes))
    for name in ("", "rayshim"):
        logger = logging.getLogger(name)
        logger.setLevel(config["log_level"])
        logger.handlers[:] = [handler]
    logging.getLogger("rayshim").propagate = False
