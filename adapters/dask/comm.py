"""Dask's TCP with proof of the cluster's token below its framing.

Whoever can open a connection to a plain Dask port has it unpickle what they send.
Here both sides prove the token (:mod:`rayshim.adapters.wire.auth`) with records of
fixed size before Dask reads its first byte; the client begins, so that a plain Dask
client is refused before it has read anything. Addresses read ``rayshim://HOST:PORT``;
distributed finds the scheme through the entry point group
``distributed.comm.backends``.

The token's file is named by the Dask configuration key ``rayshim.token-path``
(environment: ``DASK_RAYSHIM__TOKEN_PATH``), or for one client by
``Security(extra_conn_args={"rayshim_token_path": path})``.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from pathlib import Path
from typing import Any

import dask
from distributed.comm import registry
from distributed.comm.core import Comm, FatalCommClosedError
from distributed.comm.tcp import TCP, TCPBackend, TCPConnector, TCPListener
from tornado.iostream import IOStream, StreamClosedError

from rayshim.adapters.wire import auth, tls

logger = logging.getLogger(__name__)

SCHEME = "rayshim"
TOKEN_PATH_KEY = "rayshim.token-path"
#: ``{"tls_ca": path, ...}`` as in the settings; else the environment says.
TLS_KEY = "rayshim.tls"
HANDSHAKE_LIMIT_S = 10.0


def use_token(token_path: str, settings: dict[str, Any] | None = None) -> None:
    """Has this process's Dask servers and clients prove that token.

    Args:
        token_path: of its file.
        settings: those of the session, which may name files for TLS.
    """
    dask.config.set({TOKEN_PATH_KEY: token_path})
    if settings and settings.get("tls_ca"):
        names = ("tls_ca", "tls_cert", "tls_key")
        dask.config.set({TLS_KEY: {name: settings.get(name) for name in names}})
    registry.backends.setdefault(SCHEME, TokenBackend())


def _credentials() -> tls.Credentials | None:
    """For TLS, if this process has it; names are not checked, as tornado would do it
    by the address.
    """
    found = dask.config.get(TLS_KEY, None)
    credentials = tls.of_settings(found) if found else tls.of_environment()
    return credentials and credentials._replace(name="")


def _read_token(connection_args: dict[str, Any]) -> bytes:
    """The token for a connection or listener.

    Raises:
        ValueError: nobody said where it is.
    """
    extra = connection_args.get("extra_conn_args") or {}
    path = extra.get("rayshim_token_path") or dask.config.get(TOKEN_PATH_KEY, None)
    if not path:
        raise ValueError(
            f"{SCHEME}:// needs the cluster's token: set the Dask configuration "
            f"{TOKEN_PATH_KEY!r} to the path of its file"
        )
    return bytes.fromhex(Path(path).read_text("ascii").strip())


async def _prove_as_client(stream: IOStream, token: bytes) -> None:
    await stream.write(auth.MAGIC)
    reply, wanted = auth.answer(token, await stream.read_bytes(auth.CHALLENGE_BYTES))
    await stream.write(reply)
    proof = await stream.read_bytes(auth.DIGEST_BYTES)
    if not hmac.compare_digest(proof, wanted):
        raise auth.HandshakeError("the server does not know the token")


async def _prove_as_server(stream: IOStream, token: bytes) -> None:
    # Dask's own peers would take a challenge for the length of a huge frame.
    if await stream.read_bytes(len(auth.MAGIC)) != auth.MAGIC:
        raise auth.HandshakeError("a peer that speaks plain Dask, or something else")
    sent = auth.challenge()
    await stream.write(sent)
    reply = await stream.read_bytes(auth.ANSWER_BYTES)
    await stream.write(auth.verify(token, sent, reply))


class TokenConnector(TCPConnector):
    """Opens connections."""

    prefix = f"{SCHEME}://"

    def _get_connect_args(self, **connection_args: Any) -> dict[str, Any]:
        credentials = _credentials()
        if credentials is None:
            return {}
        return {"ssl_options": tls.client_context(credentials)}

    async def connect(
        self, address: str, deserialize: bool = True, **connection_args: Any
    ) -> Comm:
        """A proved connection.

        Raises:
            FatalCommClosedError: one of the sides does not know the token.
        """
        token = _read_token(connection_args)
        # distributed has types only here and there.
        plain: Any = super().connect
        comm: TCP = await plain(address, deserialize, **connection_args)
        try:
            async with asyncio.timeout(HANDSHAKE_LIMIT_S):
                assert comm.stream is not None
                await _prove_as_client(comm.stream, token)
        except (StreamClosedError, auth.HandshakeError, TimeoutError) as error:
            comm.abort()
            raise FatalCommClosedError(
                f"{self.prefix}{address} refused this cluster's token, or is no "
                f"server of a cluster: {error}"
            ) from error
        return comm


class TokenListener(TCPListener):
    """Accepts connections."""

    prefix = f"{SCHEME}://"

    def _get_server_args(self, **connection_args: Any) -> dict[str, Any]:
        self._token = _read_token(connection_args)
        credentials = _credentials()
        self._has_tls = credentials is not None
        if credentials is None:
            return {}
        return {"ssl_options": tls.server_context(credentials)}

    async def _prepare_stream(self, stream: IOStream, address: str) -> IOStream | None:
        try:
            async with asyncio.timeout(HANDSHAKE_LIMIT_S):
                if self._has_tls:
                    await stream.wait_for_handshake()  # type: ignore[attr-defined]
                await _prove_as_server(stream, self._token)
        except (StreamClosedError, OSError, TimeoutError) as error:
            logger.warning("refused %s: %s", address, error)
            stream.close()
            return None
        return stream


class TokenBackend(TCPBackend):
    """The scheme's backend."""

    _connector_class = TokenConnector
    _listener_class = TokenListener
