"""Signed tickets: what may be read, said by somebody who knows the token.

A ticket is an HMAC-SHA256 followed by the MessagePack array that it covers,
``[name, object_id, offset, size_bytes, expiry_s]``. The signature is checked before
anything is parsed, the array against a schema, and the name against the two forms
that files of values have: a ticket can name no other file. Nothing is unpickled.

The keys for tickets and for :mod:`.proofs` are derived from the cluster's token, so
that neither serves as the other.
"""

from __future__ import annotations

import hmac
import re

import msgspec
from msgspec import Struct

#: Seconds that a ticket is good for. Hosts' clocks may differ by this much.
LIFE_S = 300.0
#: A longer ticket is not looked at.
MAX_TICKET_BYTES = 1024
SIGNATURE_BYTES = 32
OBJECT_ID_BYTES = 28

#: ``TAG-NUMBER`` as processes name segments, ``o-HEX`` as nodes name their copies.
_NAME = re.compile(r"[0-9a-f]{1,32}-[0-9a-f]{1,16}|o-[0-9a-f]{56}")
_LIMIT = 1 << 62


class TicketError(Exception):
    """A ticket that is refused; the text says why."""


class Ticket(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Which bytes of which file."""

    name: str
    object_id: bytes
    offset: int
    size_bytes: int
    #: Seconds since the epoch.
    expiry_s: float


_DECODER = msgspec.msgpack.Decoder(Ticket)
_ENCODER = msgspec.msgpack.Encoder()


def derive_key(token: bytes, use: bytes) -> bytes:
    """A key for one use only.

    Args:
        token: the cluster's token.
        use: names the use.
    """
    return hmac.digest(token, b"rayshim flight " + use, "sha256")


def sign(key: bytes, ticket: Ticket) -> bytes:
    """The ticket as it travels."""
    body = _ENCODER.encode(ticket)
    return hmac.digest(key, body, "sha256") + body


def verify(key: bytes, record: bytes, now_s: float) -> Ticket:
    """The ticket in ``record``, once all of it is right.

    Args:
        key: as for :func:`sign`.
        record: as it came over the network.
        now_s: seconds since the epoch.

    Raises:
        TicketError: it is not signed with this key, not a ticket, or expired.
    """
    if not SIGNATURE_BYTES < len(record) <= MAX_TICKET_BYTES:
        raise TicketError(f"{len(record)} bytes are no ticket")
    signature, body = record[:SIGNATURE_BYTES], record[SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, hmac.digest(key, body, "sha256")):
        raise TicketError("the ticket is not signed with this cluster's token")
    try:
        ticket = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise TicketError(f"the ticket does not fit its schema: {error}") from None
    if not _NAME.fullmatch(ticket.name) or len(ticket.object_id) != OBJECT_ID_BYTES:
        raise TicketError("the ticket names no value")
    if not 0 <= ticket.offset < _LIMIT or not 0 < ticket.size_bytes < _LIMIT:
        raise TicketError("the ticket's range is none")
    # Written so that a NaN fails.
    if not now_s <= ticket.expiry_s <= now_s + 2 * LIFE_S:
        raise TicketError(
            f"the ticket expired, or the hosts' clocks differ by more than {LIFE_S:g} s"
        )
    return ticket
