"""The journal in a Redis or Valkey server, for heads that may move to another host."""

from __future__ import annotations

from typing import Any

from rayshim.adapters.journal.journal import JournalError, check_table

#: Seconds that connecting, and each command, may take.
LIMIT_S = 5.0


class RedisJournal:
    """One hash for each table: ``rayshim:CLUSTER:TABLE``.

    How durable a write is says the server's own configuration (``appendonly``).

    Args:
        url: ``redis://`` or ``rediss://``.
        cluster: a name of this cluster among others in the same server.

    Raises:
        JournalError: the client package is missing, or the server does not answer.
    """

    def __init__(self, url: str, cluster: str) -> None:
        try:
            import redis
        except ImportError:
            raise JournalError(
                "setting journal_url names a Redis server, but the package 'redis' is "
                "not installed: pip install 'rayshim[redis]'"
            ) from None
        self._errors: type[Exception] = redis.RedisError
        self._shown = url.rpartition("@")[2]  # without the password
        self._prefix = f"rayshim:{cluster}:"
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=LIMIT_S, socket_connect_timeout=LIMIT_S
        )
        self._run("ping")

    def load(self, table: str) -> dict[bytes, bytes]:
        """See :meth:`Journal.load`."""
        return dict(self._run("hgetall", self._prefix + table))

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """See :meth:`Journal.put`."""
        self._run("hset", self._prefix + check_table(table), key, value)

    def delete(self, table: str, key: bytes) -> None:
        """See :meth:`Journal.delete`."""
        self._run("hdel", self._prefix + table, key)

    def clear(self) -> None:
        """See :meth:`Journal.clear`."""
        names = list(self._client.scan_iter(match=self._prefix + "*"))
        if names:
            self._run("delete", *names)

    def close(self) -> None:
        """See :meth:`Journal.close`."""
        self._client.close()

    def _run(self, command: str, *values: Any) -> Any:
        try:
            return getattr(self._client, command)(*values)
        except self._errors as error:
            raise JournalError(
                f"the journal at {self._shown} failed: {error}"
            ) from None
