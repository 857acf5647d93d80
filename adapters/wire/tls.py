"""TLS between hosts, below the handshake that proves the token.

Both sides show a certificate that the cluster's authority (a CA of its own) has signed,
and check the other's (RFC 8446, section 4.3.2). The authority signs nothing but this
cluster's certificates, so whoever has one belongs to the cluster; the name in it is
checked only if a common one was given (``tls_name``), since the addresses of nodes are
often not known when certificates are made. Unix sockets are left as they are.

Example:
    >>> of_settings({"tls_ca": "", "tls_cert": "", "tls_key": ""}) is None
    True
"""

from __future__ import annotations

import functools
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

#: Longest content of a record (RFC 8446, section 5.1). A read with room for one leaves
#: nothing behind in the library, where epoll would not see it.
RECORD_BYTES = 16 * 1024
#: Seconds that the handshake of the connecting side may take.
HANDSHAKE_S = 10.0


def is_open_to_others(about: os.stat_result) -> bool:
    """Whether a file with a secret may be read or changed by whom it does not concern.

    A group may read what belongs to root: so Kubernetes mounts Secrets for a pod's user
    (``fsGroup``), and so libpq has it for keys
    (https://www.postgresql.org/docs/current/libpq-ssl.html).
    """
    return bool(about.st_mode & (0o037 if about.st_uid == 0 else 0o077))


class Credentials(NamedTuple):
    """Paths of a host's certificate, and of what it checks others by."""

    #: Certificate of the cluster's authority.
    ca: str
    cert: str
    key: str
    #: Name that all certificates have; empty: names are not checked.
    name: str = ""

    def check(self) -> None:
        """Look at the files before anything depends on them.

        Raises:
            ValueError: one cannot be read, is none, or others may read the key.
        """
        for path in (self.ca, self.cert, self.key):
            if not os.access(path, os.R_OK):
                raise ValueError(f"TLS: {path!r} is no file that can be read")
        about = os.stat(self.key)
        if is_open_to_others(about):
            raise ValueError(
                f"TLS: the key {self.key} has mode {about.st_mode & 0o777:o}; others "
                "must not read it (chmod 600)"
            )
        try:
            server_context(self)
            client_context(self)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(
                f"TLS: {self.cert}, {self.key} and {self.ca} do not go together: "
                f"{error}; `rayshim cert` makes a set"
            ) from None


def of_settings(settings: Mapping[str, Any]) -> Credentials | None:
    """What the settings ``tls_ca``, ``tls_cert``, ``tls_key``, ``tls_name`` say.

    Returns:
        None if none of the files is named.

    Raises:
        ValueError: some are named and others are not.
    """
    names = ("tls_ca", "tls_cert", "tls_key")
    paths = [str(settings.get(name) or "") for name in names]
    if not any(paths):
        return None
    if not all(paths):
        missing = [name for name, path in zip(names, paths, strict=True) if not path]
        raise ValueError(f"TLS needs the settings {', '.join(missing)} as well")
    ca, cert, key = paths
    return Credentials(ca, cert, key, str(settings.get("tls_name") or ""))


@functools.lru_cache(maxsize=8)
def server_context(credentials: Credentials) -> ssl.SSLContext:
    """For the accepting side; it demands a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return _filled(context, credentials)


@functools.lru_cache(maxsize=8)
def client_context(credentials: Credentials) -> ssl.SSLContext:
    """For the connecting side, which shows its own certificate as well."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(credentials.name)
    return _filled(context, credentials)


def _filled(context: ssl.SSLContext, credentials: Credentials) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(credentials.ca)
    context.load_cert_chain(credentials.cert, credentials.key)
    return context


def of_environment() -> Credentials | None:
    """What the settings in this process's environment say; as :func:`of_settings`."""
    from rayshim.settings import Settings

    settings = Settings.from_environment()
    names = ("tls_ca", "tls_cert", "tls_key", "tls_name")
    return of_settings({name: getattr(settings, name) for name in names})


def connect(sock: socket.socket, credentials: Credentials) -> ssl.SSLSocket:
    """A connected, blocking socket with TLS on it; it is closed if that fails.

    Raises:
        OSError: the other side speaks no TLS, or has no certificate of the authority.
    """
    before = sock.gettimeout()
    try:
        sock.settimeout(HANDSHAKE_S)
        wrapped = client_context(credentials).wrap_socket(
            sock, server_hostname=credentials.name or None
        )
        wrapped.settimeout(before)
    except ssl.SSLError as error:
        sock.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise
        raise ConnectionError(
            f"the other side does not speak TLS ({error.reason}); TLS is on here: set "
            "tls_ca, tls_cert and tls_key on every host of the cluster, or nowhere"
        ) from error
    except BaseException:
        sock.close()
        raise
    return wrapped


class TlsStream:
    """A non-blocking TLS socket that behaves as a plain one.

    What it lacks raises BlockingIOError, whichever way it lacks it. The accepting side
    shakes hands when it reads; what it sends before that waits in here.

    Args:
        sock: connected; the accepting side's has not shaken hands.
        is_ready: whether it has.
    """

    def __init__(self, sock: ssl.SSLSocket, *, is_ready: bool) -> None:
        self._sock = sock
        self._is_ready = is_ready
        self._held = bytearray()
        self.family = sock.family

    @classmethod
    def accepted(cls, sock: socket.socket, credentials: Credentials) -> TlsStream:
        """The accepting side of a connection."""
        sock.setblocking(False)
        wrapped = server_context(credentials).wrap_socket(
            sock, server_side=True, do_handshake_on_connect=False
        )
        return cls(wrapped, is_ready=False)

    def fileno(self) -> int:
        """Its descriptor."""
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """As of a socket."""
        self._sock.setblocking(flag)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        """As of a socket."""
        self._sock.setsockopt(level, name, value)

    def close(self) -> None:
        """As of a socket; the other side sees the end of the connection."""
        self._sock.close()

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send some of it.

        Returns:
            How many bytes were taken.

        Raises:
            BlockingIOError: none can be taken now.
            OSError: the connection is broken.
        """
        if not self._is_ready:
            self._held += data
            return len(data)
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Read what is there, until there is no more or no room for a whole record.

        Returns:
            How many bytes were read; 0 at the end of the connection.

        Raises:
            BlockingIOError: there is nothing now.
            OSError: the connection is broken, or its certificate is none of ours.
        """
        if not self._is_ready:
            self._shake_hands()
        view = memoryview(buffer)
        size = 0
        while len(view) - size >= RECORD_BYTES:
            try:
                read = self._sock.recv_into(view[size:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if size:
                    break
                raise BlockingIOError from None
            except OSError:
                if size:
                    break  # what came before counts; the next read says so again
                raise
            if not read:
                break
            size += read
        return size

    def _shake_hands(self) -> None:
        try:
            self._sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        self._is_ready = True
        held, self._held = self._held, bytearray()
        while held:
            # A few bytes of the token's proof: the kernel has room for them.
            del held[: self._sock.send(held)]
