"""Mutual proof of the cluster's token, before the first frame of a channel.

A challenge-response of fixed-size records, so that nothing is parsed before the
other side has proved that it knows the token (RFC 2104 HMAC over both nonces;
the role in the digest keeps a reflected answer from counting):

    server -> client   MAGIC + 32 random bytes (s)
    client -> server   32 random bytes (c) + HMAC(token, "client" + s + c)
    server -> client   HMAC(token, "server" + s + c)
"""

from __future__ import annotations

import hmac
import os
import socket

MAGIC = b"RSHM1\x00\x00\x00"
NONCE_BYTES = 32
DIGEST_BYTES = 32
CHALLENGE_BYTES = len(MAGIC) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + DIGEST_BYTES


class HandshakeError(ConnectionError):
    """The other side does not know the token, or speaks another protocol."""


def digest(token: bytes, role: bytes, server: bytes, client: bytes) -> bytes:
    """Proof for one role over both nonces."""
    return hmac.digest(token, role + server + client, "sha256")


def challenge() -> bytes:
    """The server's first record."""
    return MAGIC + os.urandom(NONCE_BYTES)


def answer(token: bytes, record: bytes) -> tuple[bytes, bytes]:
    """The client's record and the proof it must see afterwards.

    Raises:
        HandshakeError: ``record`` is not a challenge of this protocol.
    """
    if len(record) != CHALLENGE_BYTES or not record.startswith(MAGIC):
        raise HandshakeError("the other side does not speak this cluster's protocol")
    server = record[len(MAGIC) :]
    client = os.urandom(NONCE_BYTES)
    reply = client + digest(token, b"client", server, client)
    return reply, digest(token, b"server", server, client)


def verify(token: bytes, sent: bytes, reply: bytes) -> bytes:
    """The server's proof, once the client's record is right.

    Raises:
        HandshakeError: the client does not know the token.
    """
    server = sent[len(MAGIC) :]
    client, proof = reply[:NONCE_BYTES], reply[NONCE_BYTES:]
    wanted = digest(token, b"client", server, client)
    if len(reply) != ANSWER_BYTES or not hmac.compare_digest(proof, wanted):
        raise HandshakeError("a peer without this cluster's token was refused")
    return digest(token, b"server", server, client)


#: Why a side ends before it has said anything, or only when it was answered.
_SILENT = "it speaks TLS and this process does not (settings tls_*)"
_REFUSED = "it has another token"


def _receive(sock: socket.socket, size_bytes: int, why: str = _REFUSED) -> bytes:
    parts = b""
    while len(parts) < size_bytes:
        try:
            chunk = sock.recv(size_bytes - len(parts))
        except TimeoutError:
            raise TimeoutError(
                f"the other side says nothing: it is too busy, or {why}"
            ) from None
        if not chunk:
            raise HandshakeError(
                f"the other side closed during the handshake: {why}, or it is no "
                "process of a cluster"
            )
        parts += chunk
    return parts


def connect(sock: socket.socket, token: bytes) -> None:
    """Client side of the handshake on a blocking socket."""
    reply, wanted = answer(token, _receive(sock, CHALLENGE_BYTES, _SILENT))
    sock.sendall(reply)
    if not hmac.compare_digest(_receive(sock, DIGEST_BYTES), wanted):
        raise HandshakeError("the server does not know this cluster's token")


def accept(sock: socket.socket, token: bytes) -> None:
    """Server side of the handshake on a blocking socket."""
    sent = challenge()
    sock.sendall(sent)
    sock.sendall(verify(token, sent, _receive(sock, ANSWER_BYTES)))
