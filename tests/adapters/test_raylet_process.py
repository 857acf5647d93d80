"""The node process: leases, executors, log lines, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_wire
from node_process import NodeProcess, Peer, call, is_alive, spec, wait_until
from rayshim.adapters.wire import auth
from rayshim.adapters.wire import messages as wire


@pytest.fixture(scope="module")
def shared_node() -> Iterator[NodeProcess]:
    with NodeProcess(resources={"CPU": 2.0, "GPU": 2.0}) as node:
        yield node


@pytest.fixture
def driver(shared_node: NodeProcess) -> Iterator[Peer]:
    """A driver of a job of its own, so that its end does not end the node."""
    peer = shared_node.peer(job_id=os.urandom(4))
    yield peer
    peer.close()
    wait_until_free(shared_node)


def wait_until_free(node: NodeProcess) -> None:
    """Waits until no job holds anything."""
    observer = node.peer(job_id=os.urandom(4))
    wait_until(
        lambda: (
            observer.request("state", kind="leases") == []
            and observer.request("available_resources")["CPU"] == 2.0
        ),
        "the return of all leases",
    )
    observer.close()


# Leases.


def test_a_granted_executor_runs_calls(driver: Peer) -> None:
    granted = driver.lease(b"1", resources={"CPU": 1.0, "GPU": 0.5})
    assert granted.gpu_ids == [0]
    channel = driver.open(granted)
    assert int(call(channel, "pid")) == granted.pid != os.getpid()
    channel.close()


def test_a_returned_executor_is_leased_again(driver: Peer) -> None:
    first = driver.lease(b"1")
    driver.send(wire.ReturnLease(b"1"))
    assert driver.lease(b"2").pid == first.pid
    driver.send(wire.ReturnLease(b"2", dispose=True))
    assert driver.lease(b"3").pid != first.pid
    wait_until(lambda: not is_alive(first.pid), "the end of a disposed executor")


def test_requests_wait_and_can_be_cancelled(driver: Peer) -> None:
    driver.lease(b"1", resources={"CPU": 2.0})
    driver.ask(b"2")
    driver.ask(b"3")
    driver.send(wire.CancelLease(b"2"))
    rejected = driver.expect(wire.LeaseRejected)
    assert (rejected.lease_id, rejected.kind) == (b"2", "cancelled")
    driver.send(wire.ReturnLease(b"1"))
    assert driver.expect(wire.LeaseGranted).lease_id == b"3"


def test_a_holder_is_asked_for_what_another_class_waits_for(driver: Peer) -> None:
    driver.lease(b"1", resources={"CPU": 2.0})
    driver.ask(b"2", label="g")
    assert driver.expect(wire.ReclaimLease).lease_id == b"1"


def test_negative_resources_are_rejected(driver: Peer) -> None:
    driver.ask(b"1", resources={"CPU": -1.0})
    assert driver.expect(wire.LeaseRejected).kind == "infeasible"


def test_a_blocked_executor_lets_others_run(driver: Peer) -> None:
    channel = driver.open(driver.lease(b"1", resources={"CPU": 2.0}))
    driver.ask(b"2", resources={"CPU": 2.0})
    call(channel, "block:1")
    assert driver.expect(wire.LeaseGranted).lease_id == b"2"
    call(channel, "block:0")
    assert "CPU" not in driver.request("available_resources")
    channel.close()


# The death of executors.


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [("exit:3", 3, "exited with exit code 3"), ("kill", -9, "was killed by SIGKILL")],
)
def test_the_holder_learns_how_its_executor_died(
    driver: Peer, method: str, code: int, text: str
) -> None:
    channel = driver.open(driver.lease(b"1"))
    channel.send(wire.PushTasks([spec(method)]))
    lost = driver.expect(wire.LeaseLost)
    assert (lost.lease_id, lost.exit_code) == (b"1", code)
    assert text in lost.reason
    channel.close()


def test_a_holder_can_have_its_executor_killed(driver: Peer) -> None:
    granted = driver.lease(b"1")
    driver.send(wire.KillExecutor(b"1"))
    assert driver.expect(wire.LeaseLost).exit_code == -signal.SIGKILL
    assert not is_alive(granted.pid)


def test_what_an_executor_started_dies_with_it(driver: Peer) -> None:
    channel = driver.open(driver.lease(b"1"))
    child_pid = int(call(channel, "child"))
    assert is_alive(child_pid)
    channel.send(wire.PushTasks([spec("exit:0")]))
    driver.expect(wire.LeaseLost)
    wait_until(lambda: not is_alive(child_pid), "the end of a grandchild")
    channel.close()


def test_the_end_of_a_holder_kills_what_runs_for_it(shared_node: NodeProcess) -> None:
    peer = shared_node.peer(job_id=os.urandom(4))
    granted = peer.lease(b"1")
    peer.close()
    wait_until(lambda: not is_alive(granted.pid), "the end of the executor")
    wait_until_free(shared_node)


# Log lines.


def test_lines_come_with_the_name_of_the_task(driver: Peer) -> None:
    granted = driver.lease(b"1")
    channel = driver.open(granted)
    call(channel, "print:first", "train")
    call(channel, "print:second", "test")
    lines = [driver.expect(wire.LogLines) for _ in range(2)]
    assert [(one.name, one.lines, one.stream, one.pid) for one in lines] == [
        ("train", ["first"], "out", granted.pid),
        ("test", ["second"], "out", granted.pid),
    ]
    channel.close()


def test_the_last_words_come_before_the_news_of_the_death(driver: Peer) -> None:
    channel = driver.open(driver.lease(b"1"))
    channel.send(wire.PushTasks([spec("write:" + "x" * 100_000), spec("exit:1")]))
    driver.expect(wire.LeaseLost)
    lines = [one for one in driver.others if isinstance(one, wire.LogLines)]
    assert "".join(text for one in lines for text in one.lines) == "x" * 100_000
    assert {one.stream for one in lines} == {"err"}
    channel.close()


def test_a_line_without_an_end_is_shown_soon(driver: Peer) -> None:
    channel = driver.open(driver.lease(b"1"))
    call(channel, "write:prompt> ")
    assert driver.expect(wire.LogLines).lines == ["prompt> "]
    channel.close()


@pytest.mark.slow
def test_a_driver_that_does_not_read_makes_its_executors_wait(
    shared_node: NodeProcess, driver: Peer
) -> None:
    channel = driver.open(driver.lease(b"1"))
    channel.send(wire.PushTasks([spec("flood:" + str(64 << 20))]))
    with pytest.raises(TimeoutError):
        channel.receive(1.0)
    rss_pages = Path(f"/proc/{shared_node.process.pid}/statm").read_text().split()[1]
    assert int(rss_pages) * os.sysconf("SC_PAGE_SIZE") < 120e6
    channel.close()


def test_lines_are_kept_in_a_file(shared_node: NodeProcess, driver: Peer) -> None:
    granted = driver.lease(b"1")
    channel = driver.open(granted)
    call(channel, "print:kept", "f")
    driver.expect(wire.LogLines)
    name = f"worker-{granted.worker_id.hex()}-ffffffff-{granted.pid}.out"
    path = shared_node.session_dir / "logs" / name
    assert "kept\n" in path.read_text()
    channel.close()


# Memory, security.


def test_an_idle_executor_is_small(driver: Peer) -> None:
    channel = driver.open(driver.lease(b"1"))
    assert int(call(channel, "stat")) < 25e6
    channel.close()


def test_a_peer_without_the_token_is_refused(shared_node: NodeProcess) -> None:
    with pytest.raises(auth.HandshakeError):
        fake_wire.Channel.connect(shared_node.address, bytes(32))


@pytest.mark.parametrize(
    "frame", [b"\x04\0\0\0" + b"\xff" * 4, b"\xff\xff\xff\xff", b"\x02\0\0\0\x91\x20"]
)
def test_a_peer_that_breaks_the_protocol_is_dropped(
    shared_node: NodeProcess, frame: bytes
) -> None:
    channel = fake_wire.Channel.connect(shared_node.address, shared_node.token)
    channel.sock.sendall(frame)
    assert channel.receive() is None
    channel.close()


def test_a_peer_must_say_hello_first(shared_node: NodeProcess) -> None:
    channel = fake_wire.Channel.connect(shared_node.address, shared_node.token)
    channel.send(wire.Blocked(True))
    assert channel.receive() is None
    channel.close()


def test_the_socket_is_for_its_user_only(shared_node: NodeProcess) -> None:
    mode = Path(shared_node.address.removeprefix("unix:")).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


# The end.


def test_shutdown_leaves_nothing_behind() -> None:
    with NodeProcess() as node:
        peer = node.peer()
        channel = peer.open(peer.lease(b"1"))
        pids = [int(call(channel, "pid")), int(call(channel, "child"))]
        assert peer.request("shutdown") is None
        assert not any(is_alive(pid) for pid in pids)
        assert not node.session_dir.exists()
        assert not node.store_dir.exists()
        assert node.process.wait(5) == 0
        channel.close()
        peer.close()


@pytest.mark.parametrize("how", ["lifeline", "channel"])
def test_the_end_of_the_driver_ends_the_node(how: str) -> None:
    with NodeProcess() as node:
        peer = node.peer()
        granted = peer.lease(b"1")
        if how == "lifeline":
            node.close_lifeline()
        else:
            peer.close()
        assert node.process.wait(5) == 0
        assert not is_alive(granted.pid)
        assert not node.session_dir.exists()
        assert not node.store_dir.exists()
        peer.close()


def test_a_killed_node_takes_all_along() -> None:
    with NodeProcess() as node:
        peer = node.peer()
        channel = peer.open(peer.lease(b"1"))
        pids = [int(call(channel, "pid")), int(call(channel, "child"))]
        node.process.kill()
        node.process.wait()
        wait_until(lambda: not any(map(is_alive, pids)), "the end of the executors")
        channel.close()
        peer.close()


def test_a_killed_fork_server_ends_the_node() -> None:
    with NodeProcess() as node:
        peer = node.peer()
        granted = peer.lease(b"1")
        (server,) = (
            Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
            .read_text()
            .split()
        )
        os.kill(int(server), signal.SIGKILL)
        node.process.wait(5)
        wait_until(lambda: not is_alive(granted.pid), "the end of the executor")
        peer.close()


def test_a_start_that_fails_says_why() -> None:
    with NodeProcess(session_dir="/nowhere") as node:
        assert "error" in node.ready
        assert node.process.wait(5) == 1


def test_executors_that_cannot_start_are_reported() -> None:
    with NodeProcess(executor_entry="no_such_module:main", prestart=0) as node:
        peer = node.peer()
        peer.ask(b"1")
        rejected = peer.expect(wire.LeaseRejected)
        assert rejected.kind == "setup"
        peer.close()


def test_ctrl_c_reaches_neither_node_nor_executors() -> None:
    with NodeProcess() as node:
        peer = node.peer()
        granted = peer.lease(b"1")
        os.killpg(node.process.pid, signal.SIGINT)
        channel = peer.open(granted)
        assert int(call(channel, "pid")) == granted.pid
        channel.close()
        peer.close()


def test_the_socket_is_no_listener_on_a_network(shared_node: NodeProcess) -> None:
    text = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    listening = {row.split()[9] for row in text.splitlines() if " 0A " in row}
    own = set()
    for link in Path(f"/proc/{shared_node.process.pid}/fd").iterdir():
        try:
            own.add(os.readlink(link).removeprefix("socket:[").rstrip("]"))
        except OSError:
            continue
    assert not own & listening
