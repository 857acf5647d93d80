"""TLS sockets that behave as plain ones."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rayshim.adapters.wire import tls
from rayshim.cli.cert import cert

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    done = CliRunner().invoke(cert, [str(folder), "--host", "127.0.0.1"])
    assert done.exit_code == 0, done.output
    return folder


def credentials_in(folder: Path, name: str = "rayshim") -> tls.Credentials:
    paths = [str(folder / one) for one in ("ca.pem", "cert.pem", "key.pem")]
    return tls.Credentials(*paths, name=name)


@pytest.fixture
def pair(tls_folder: Path) -> Iterator[tuple[tls.TlsStream, tls.TlsStream]]:
    """Both ends of a connection; the first has accepted it."""
    known = credentials_in(tls_folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted = tls.TlsStream.accepted(listener.accept()[0], known)
    assert accepted.send(b"first") == 5  # waits for the handshake
    connected: list[ssl.SSLSocket] = []
    thread = threading.Thread(
        target=lambda: connected.append(tls.connect(client, known))
    )
    thread.start()
    while thread.is_alive():
        select.select([accepted], [], [], 0.05)
        with pytest.raises(BlockingIOError):
            accepted.recv_into(bytearray(1 << 18))
    other = tls.TlsStream(connected[0], is_ready=True)
    other.setblocking(False)
    yield accepted, other
    accepted.close()
    other.close()


def read(stream: tls.TlsStream, size: int) -> bytes:
    data, buffer = b"", bytearray(1 << 18)
    while len(data) < size:
        select.select([stream], [], [], 5)
        try:
            count = stream.recv_into(buffer)
        except BlockingIOError:
            continue
        if not count:
            break
        data += buffer[:count]
    return data


Pair = tuple[tls.TlsStream, tls.TlsStream]


def test_what_was_sent_before_the_handshake_arrives(pair: Pair) -> None:
    assert read(pair[1], 5) == b"first"


def test_much_more_than_a_record_arrives_whole(pair: Pair) -> None:
    accepted, other = pair
    read(other, 5)
    wanted = bytes(range(256)) * (1 << 14)  # 4 MiB

    def send() -> None:
        left = memoryview(wanted)
        while left:
            try:
                left = left[accepted.send(left) :]
            except BlockingIOError:
                select.select([], [accepted], [], 5)

    thread = threading.Thread(target=send)
    thread.start()
    assert read(other, len(wanted)) == wanted
    thread.join()


def test_nothing_stays_unseen_in_the_library(pair: Pair) -> None:
    accepted, other = pair
    read(other, 5)
    for size in (
        1,
        tls.RECORD_BYTES - 1,
        tls.RECORD_BYTES,
        tls.RECORD_BYTES + 1,
        99999,
    ):
        sent = accepted.send(b"x" * size)
        assert read(other, sent) == b"x" * sent
        assert other._sock.pending() == 0


def test_the_end_is_seen(pair: Pair) -> None:
    accepted, other = pair
    read(other, 5)
    other.close()
    select.select([accepted], [], [], 5)
    try:
        assert accepted.recv_into(bytearray(1 << 18)) == 0
    except BlockingIOError:
        pytest.fail("the end was taken for silence")
    except OSError:
        pass  # an end without TLS's own goodbye is an error, and an end


def test_a_certificate_of_another_authority_is_refused(
    tls_folder: Path, tmp_path: Path
) -> None:
    assert CliRunner().invoke(cert, [str(tmp_path / "other")]).exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted = tls.TlsStream.accepted(
            listener.accept()[0], credentials_in(tls_folder)
        )
    failures: list[BaseException] = []

    def connect() -> None:
        try:
            tls.connect(client, credentials_in(tmp_path / "other")).close()
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    with pytest.raises(OSError):
        while True:
            select.select([accepted], [], [], 0.05)
            try:
                if not accepted.recv_into(bytearray(1 << 18)):
                    raise ConnectionError("it ended")
            except BlockingIOError:
                continue
    accepted.close()
    thread.join()
    client.close()
    assert isinstance(failures[0], ssl.SSLCertVerificationError)


def test_settings_name_all_files_or_none() -> None:
    assert tls.of_settings({}) is None
    with pytest.raises(ValueError, match="tls_cert, tls_key"):
        tls.of_settings({"tls_ca": "a"})
    wanted = tls.Credentials("a", "b", "c", "n")
    named = {"tls_ca": "a", "tls_cert": "b", "tls_key": "c", "tls_name": "n"}
    assert tls.of_settings(named) == wanted


def test_files_are_checked_before_use(tls_folder: Path, tmp_path: Path) -> None:
    good = credentials_in(tls_folder)
    good.check()
    with pytest.raises(ValueError, match="no file that can be read"):
        good._replace(ca=str(tmp_path / "none")).check()
    with pytest.raises(ValueError, match="do not go together"):
        good._replace(cert=good.key).check()
    loose = tmp_path / "key.pem"
    loose.write_bytes(Path(good.key).read_bytes())
    loose.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        good._replace(key=str(loose)).check()


@pytest.mark.parametrize(
    ("mode", "owner", "is_open"),
    [
        (0o600, 1000, False),
        (0o440, 1000, True),
        (0o440, 0, False),  # as Kubernetes mounts a Secret
        (0o460, 0, True),
        (0o444, 0, True),
    ],
)
def test_a_group_may_read_what_is_roots(mode: int, owner: int, is_open: bool) -> None:
    about = os.stat_result((0o100000 | mode, 0, 0, 1, owner, 1000, 0, 0, 0, 0))
    assert tls.is_open_to_others(about) is is_open


def test_certificates_are_not_replaced_by_accident(tls_folder: Path) -> None:
    before = (tls_folder / "cert.pem").read_bytes()
    done = CliRunner().invoke(cert, [str(tls_folder)])
    assert done.exit_code == 1
    assert "--force" in done.output
    assert (tls_folder / "cert.pem").read_bytes() == before
