"""The journal: named tables of small records, written before an answer is given.

The control service keeps its state in memory and puts each change here first; a new
process of the head loads the tables and goes on. A backend is anything with the five
methods of :class:`Journal`.
"""

from __future__ import annotations

import re
from typing import Protocol

#: Names of tables: a part of file contents and of Redis keys.
TABLE_NAME = re.compile(r"[a-z_]+\Z")


class Journal(Protocol):
    """A durable map for each table."""

    def load(self, table: str) -> dict[bytes, bytes]:
        """All records of a table."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write one record; it is durable when this returns.

        Raises:
            JournalError: it could not be written.
        """

    def delete(self, table: str, key: bytes) -> None:
        """Remove one record; no error if there is none.

        Raises:
            JournalError: it could not be removed.
        """

    def clear(self) -> None:
        """Forget everything: the cluster has ended in order."""

    def close(self) -> None:
        """Let go of files and connections. Idempotent."""


class JournalError(Exception):
    """The journal cannot be read or written; the text says which one and why."""


class MemoryJournal:
    """Keeps nothing beyond the process: for tests, and heads that stay away."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[bytes, bytes]] = {}

    def load(self, table: str) -> dict[bytes, bytes]:
        """See :meth:`Journal.load`."""
        return dict(self._tables.get(table, {}))

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """See :meth:`Journal.put`."""
        self._tables.setdefault(check_table(table), {})[key] = value

    def delete(self, table: str, key: bytes) -> None:
        """See :meth:`Journal.delete`."""
        self._tables.get(table, {}).pop(key, None)

    def clear(self) -> None:
        """See :meth:`Journal.clear`."""
        self._tables.clear()

    def close(self) -> None:
        """See :meth:`Journal.close`."""


def check_table(table: str) -> str:
    """The name of a table, if it is one.

    Raises:
        ValueError: it is not.
    """
    if not TABLE_NAME.match(table):
        raise ValueError(f"not the name of a journal table: {table!r}")
    return table


def open_journal(url: str, *, folder: str, cluster: str) -> Journal:
    """Open the journal that a setting names.

    Args:
        url: "" for a SQLite file in ``folder``, ``sqlite:///PATH`` for one elsewhere,
            ``redis://[[USER]:PASSWORD@]HOST:PORT[/DB]`` (``rediss://`` with TLS,
            ``valkey://`` the same), or ``memory:``.
        folder: of the head's session.
        cluster: name that parts this cluster's records from those of others.

    Raises:
        JournalError: it cannot be opened.
        ValueError: the URL is of no known kind.
    """
    if url == "memory:":
        return MemoryJournal()
    if not url or url.startswith("sqlite://"):
        from rayshim.adapters.journal.sqlite import SqliteJournal

        path = url.removeprefix("sqlite://") if url else f"{folder}/journal.sqlite"
        return SqliteJournal(path, cluster)
    if url.startswith(("redis://", "rediss://", "valkey://")):
        from rayshim.adapters.journal.redis import RedisJournal

        return RedisJournal(url.replace("valkey://", "redis://", 1), cluster)
    raise ValueError(
        f"setting journal_url: {url!r} is of no known kind; use sqlite:///PATH, "
        "redis://HOST:PORT/DB, valkey://HOST:PORT/DB or memory:"
    )
