"""Only who knows the token reads, and only what a ticket names."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyarrow import flight

from flight_process import TOKEN, Sender, sender, write_value
from rayshim.adapters.flight import tickets
from rayshim.adapters.flight.client import FlightReceiver, SourceBroken, Stopper
from rayshim.adapters.flight.proofs import ClientProof
from rayshim.adapters.flight.tickets import Ticket, TicketError

X = b"x" * 28
KEY = tickets.derive_key(TOKEN, b"ticket")
NOW = 1e9


def ticket(**changes: object) -> Ticket:
    fields: dict[str, object] = {
        "name": "a1-1",
        "object_id": X,
        "offset": 0,
        "size_bytes": 10,
        "expiry_s": NOW + 60,
        **changes,
    }
    return Ticket(**fields)  # type: ignore[arg-type]  # Wrong ones are wanted, too.


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sender]:
    folder = tmp_path_factory.mktemp("there")
    write_value(folder, "a1-1", 1000)
    with sender(folder) as made:
        yield made


def fetch(source: Sender, path: Path, token: bytes = TOKEN, name: str = "a1-1") -> None:
    receiver = FlightReceiver(token)
    fd = os.open(path / "copy", os.O_RDWR | os.O_CREAT)
    try:
        receiver.fetch(source.address, name, X, (0, 10), fd, Stopper())
    finally:
        os.close(fd)
        receiver.close()


def test_a_signed_ticket_is_read_back() -> None:
    made = ticket()
    assert tickets.verify(KEY, tickets.sign(KEY, made), NOW) == made


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "../token"}, "names no value"),
        ({"name": "a1-1.w"}, "names no value"),
        ({"name": "o-ab"}, "names no value"),
        ({"object_id": b"x"}, "names no value"),
        ({"offset": -1}, "range"),
        ({"size_bytes": 0}, "range"),
        ({"size_bytes": 1 << 63}, "range"),
        ({"expiry_s": NOW - 1}, "expired"),
        ({"expiry_s": NOW + 1e6}, "expired"),
        ({"expiry_s": float("nan")}, "expired"),
        ({"offset": "0"}, "schema"),
    ],
)
def test_a_wrong_ticket_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(TicketError, match=reason):
        tickets.verify(KEY, tickets.sign(KEY, ticket(**changes)), NOW)


def test_a_signature_of_another_key_is_refused() -> None:
    record = tickets.sign(tickets.derive_key(b"other", b"ticket"), ticket())
    with pytest.raises(TicketError, match="not signed"):
        tickets.verify(KEY, record, NOW)


def test_every_changed_byte_is_noticed() -> None:
    record = tickets.sign(KEY, ticket())
    for place in range(len(record)):
        for wrong in (record[:place], _flip(record, place), record + b"x"):
            with pytest.raises(TicketError):
                tickets.verify(KEY, wrong, NOW)


def test_a_receiver_without_the_token_gets_nothing(
    source: Sender, tmp_path: Path
) -> None:
    with pytest.raises(SourceBroken, match="without this cluster's token"):
        fetch(source, tmp_path, token=b"n" * 32)
    assert (tmp_path / "copy").read_bytes() == b""


def test_a_call_without_any_proof_is_refused(source: Sender) -> None:
    client = flight.FlightClient(f"grpc+tcp://{source.address}")
    with client:
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(client.list_flights())
        made = tickets.sign(KEY, ticket(expiry_s=time.time() + 60))
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_get(flight.Ticket(made)).read_all()


def test_an_expired_ticket_is_refused_by_the_server(source: Sender) -> None:
    with proved_client(source) as client:
        made = tickets.sign(KEY, ticket(expiry_s=time.time() - 1))
        with pytest.raises(flight.FlightUnauthorizedError, match="expired"):
            client.do_get(flight.Ticket(made)).read_all()


def test_methods_beside_reading_are_not_there(source: Sender) -> None:
    with proved_client(source) as client, pytest.raises(NotImplementedError):
        list(client.do_action("shutdown"))


@pytest.mark.slow
def test_a_server_survives_thousands_of_mutated_tickets(
    source: Sender, tmp_path: Path
) -> None:
    draw = random.Random(7)
    good = tickets.sign(KEY, ticket(expiry_s=time.time() + 200))
    with proved_client(source) as client:
        for number in range(3000):
            body = bytearray(good)
            for _ in range(draw.randint(1, 4)):
                body[draw.randrange(len(body))] = draw.randrange(256)
            wrong = bytes(body[: draw.randint(0, len(body))])
            if number % 3 == 0:  # Signed, so that the schema has to refuse it.
                junk = msgspec.msgpack.encode(
                    draw.choice([None, [], ["a1-1"], {"name": 1}, [1, 2, 3, 4, 5]])
                )
                body = bytearray(draw.choice([junk, wrong[32:] or b"\xc1"]))
                wrong = _signed(bytes(body))
            try:
                client.do_get(flight.Ticket(wrong)).read_all()
            except (flight.FlightError, OSError):
                continue
            tickets.verify(KEY, wrong, time.time())  # It was still a right one.

    assert source.is_alive
    fetch(source, tmp_path)


def proved_client(source: Sender) -> flight.FlightClient:
    return flight.FlightClient(
        f"grpc+tcp://{source.address}", middleware=[ClientProof(TOKEN)]
    )


def _flip(record: bytes, place: int) -> bytes:
    changed = bytearray(record)
    changed[place] ^= 1
    return bytes(changed)


def _signed(body: bytes) -> bytes:
    import hmac

    return hmac.digest(KEY, body, "sha256") + body
