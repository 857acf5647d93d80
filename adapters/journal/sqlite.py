"""The journal in a SQLite file."""

from __future__ import annotations

import os
import sqlite3

from rayshim.adapters.journal.journal import JournalError, check_table

#: Seconds that a write waits for another process to let go of the file.
BUSY_S = 5.0


class SqliteJournal:
    """One file, mode 0600, in write-ahead mode.

    A commit survives the death of the process at once, and that of the machine as
    soon as the file system writes back (``synchronous=NORMAL``): the cluster does not
    survive its head's machine either, unless the journal is elsewhere.

    Args:
        path: of the file; made if it is missing.
        cluster: a name of this cluster among others in the same file.

    Raises:
        JournalError: the file cannot be opened or is none of SQLite's.
    """

    def __init__(self, path: str, cluster: str) -> None:
        self._path = path
        self._cluster = cluster
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS records (cluster TEXT, tab TEXT, key BLOB, "
                "value BLOB, PRIMARY KEY (cluster, tab, key)) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as error:
            raise JournalError(
                f"the journal {path} cannot be opened: {error}"
            ) from None

    def load(self, table: str) -> dict[bytes, bytes]:
        """See :meth:`Journal.load`."""
        rows = self._run(
            "SELECT key, value FROM records WHERE cluster = ? AND tab = ?",
            (self._cluster, table),
        )
        return {bytes(key): bytes(value) for key, value in rows}

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """See :meth:`Journal.put`."""
        self._run(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)",
            (self._cluster, check_table(table), key, value),
        )

    def delete(self, table: str, key: bytes) -> None:
        """See :meth:`Journal.delete`."""
        self._run(
            "DELETE FROM records WHERE cluster = ? AND tab = ? AND key = ?",
            (self._cluster, table, key),
        )

    def clear(self) -> None:
        """See :meth:`Journal.clear`."""
        self._run("DELETE FROM records WHERE cluster = ?", (self._cluster,))

    def close(self) -> None:
        """See :meth:`Journal.close`."""
        self._db.close()

    def _run(self, text: str, values: tuple[object, ...]) -> list[tuple[bytes, bytes]]:
        try:
            return self._db.execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise JournalError(
                f"the journal {self._path} failed: {error}. Is its disk full?"
            ) from None
