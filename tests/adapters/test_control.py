"""The control service: actors, placement groups, keys, and what the cluster is."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import fake_wire
from actor_calls_of_peers import register, start, until
from node_process import NodeProcess, Peer, call, is_alive, spec, wait_until
from rayshim.adapters.wire import messages as wire


@pytest.fixture(scope="module")
def shared_node() -> Iterator[NodeProcess]:
    with NodeProcess(resources={"CPU": 2.0, "GPU": 1.0}) as node:
        yield node


@pytest.fixture
def driver(shared_node: NodeProcess) -> Iterator[Peer]:
    peer = shared_node.peer(job_id=os.urandom(4))
    yield peer
    peer.close()
    observer = shared_node.peer(job_id=os.urandom(4))
    wait_until(
        lambda: observer.request("available_resources").get("CPU") == 2.0,
        "the return of all resources",
    )
    observer.close()


# Actors.


def test_an_actor_lives_and_holds_its_lifetime_resources(driver: Peer) -> None:
    start(driver, resources={"GPU": 1.0}, placement_resources={"CPU": 1.0, "GPU": 1.0})
    update = until(driver, "ALIVE")
    channel = driver.open(update)
    assert int(call(channel, "pid")) == update.pid
    available = driver.request("available_resources")
    assert available.get("GPU", 0.0) == 0.0
    assert available["CPU"] == 2.0
    channel.close()


def test_a_name_is_taken_until_the_actor_dies(driver: Peer) -> None:
    actor_id = start(driver, name="n")
    assert driver.expect(wire.Response).error == ""
    assert driver.request("get_actor", name="n", namespace="ns") == {
        "actor_id": actor_id,
        "handle_blob": b"methods",
        "owner": driver.address,
        "class_name": "Counter",
    }
    assert driver.request("list_named_actors", namespace="ns") == [
        {"name": "n", "namespace": "ns"}
    ]
    register(driver, name="n")
    assert driver.expect(wire.Response).error == "ActorAlreadyExistsError"
    driver.send(wire.KillActor(actor_id, True))
    until(driver, "DEAD")
    answer = driver.request("get_actor", name="n", namespace="ns")
    assert answer.error == "ValueError"
    assert b"Failed to look up actor with name 'n'" in answer.payload


def test_a_crashed_actor_restarts_as_often_as_allowed(driver: Peer) -> None:
    start(driver, max_restarts=1)
    first = until(driver, "ALIVE")
    channel = driver.open(first)
    channel.send(wire.PushTasks([spec("exit:5")]))
    update = until(driver, "RESTARTING")
    assert (update.kind, update.incarnation) == ("crash", 1)
    assert "exited with exit code 5" in update.cause
    second = until(driver, "ALIVE")
    assert second.pid != first.pid
    channel.close()
    channel = driver.open(second)
    channel.send(wire.PushTasks([spec("kill")]))
    update = until(driver, "DEAD")
    assert "was killed by SIGKILL" in update.cause
    channel.close()


def test_a_constructor_that_raises_leaves_its_error(driver: Peer) -> None:
    start(driver, "fail")
    update = until(driver, "DEAD")
    assert update.kind == "init"
    assert update.error is not None and update.error.data == b"boom"


def test_a_constructor_argument_that_failed_is_the_error(driver: Peer) -> None:
    actor_id = register(driver)
    driver.send(wire.FailActor(actor_id, wire.Payload(wire.ERROR, b"bad argument")))
    update = until(driver, "DEAD")
    assert update.error is not None and update.error.data == b"bad argument"


def test_leaving_by_its_own_will_is_final(driver: Peer) -> None:
    actor_id = start(driver, max_restarts=-1)
    channel = driver.open(until(driver, "ALIVE"))
    channel.send(wire.PushTasks([spec(f"leave:{actor_id.hex()}")]))
    update = until(driver, "DEAD")
    assert (update.kind, update.cause) == ("exit", "asked to")
    channel.close()


def test_an_actor_out_of_scope_leaves(driver: Peer) -> None:
    actor_id = start(driver)
    pid = until(driver, "ALIVE").pid
    driver.send(wire.ActorOutOfScope(actor_id))
    assert until(driver, "DEAD").kind == "scope"
    assert not is_alive(pid)


def test_actors_end_with_their_owner_but_for_detached_ones(
    shared_node: NodeProcess,
) -> None:
    peer = shared_node.peer(job_id=os.urandom(4))
    start(peer)
    pid = until(peer, "ALIVE").pid
    detached = start(peer, detached=True, name="d")
    detached_pid = until(peer, "ALIVE").pid
    peer.close()
    wait_until(lambda: not is_alive(pid), "the end of the actor")
    assert is_alive(detached_pid)
    other = shared_node.peer(job_id=os.urandom(4))
    found = other.request("get_actor", name="d", namespace="ns")
    assert found["actor_id"] == detached
    other.send(wire.SubscribeActor(detached))
    other.send(wire.KillActor(detached, True))
    until(other, "DEAD")
    other.close()


def test_an_actor_that_does_not_fit_says_why(driver: Peer) -> None:
    actor_id = start(driver, placement_resources={"CPU": 9.0})
    assert until(driver, "PENDING").pid == 0
    (line,) = driver.request("explain", actor_ids=[actor_id])
    assert "needs {CPU: 9}; the cluster has at most {CPU: 2}" in line
    rows = driver.request("state", kind="actors")
    assert rows[-1]["state"] == "PENDING"


def test_an_unknown_actor_is_dead(driver: Peer) -> None:
    driver.send(wire.SubscribeActor(b"never"))
    update = until(driver, "DEAD")
    assert "does not know it" in update.cause


# Placement groups.


def group(driver: Peer, *bundles: dict[str, float], **options: Any) -> bytes:
    group_id = secrets.token_bytes(18)
    answer = driver.request(
        "create_placement_group", id=group_id, bundles=bundles, **options
    )
    assert answer is None
    return group_id


def test_a_group_reserves_and_frees(driver: Peer) -> None:
    group_id = group(driver, {"CPU": 1.0}, {"GPU": 0.5}, name="g")
    assert driver.request("wait_placement_group", id=group_id, timeout_s=5.0) is True
    assert driver.request("available_resources")["GPU"] == 0.5
    row = driver.request("placement_group_table", id=group_id)
    assert (row["state"], row["name"]) == ("CREATED", "g")
    assert row["bundles"] == {0: {"CPU": 1.0}, 1: {"GPU": 0.5}}
    assert driver.request("remove_placement_group", id=group_id) is None
    assert driver.request("available_resources")["GPU"] == 1.0
    row = driver.request("placement_group_table", id=group_id)
    assert row["state"] == "REMOVED"


def test_a_group_that_does_not_fit_is_waited_for(driver: Peer) -> None:
    large = group(driver, {"CPU": 3.0})
    assert driver.request("wait_placement_group", id=large, timeout_s=0.02) is False
    assert driver.request("wait_placement_group", id=large, timeout_s=0.0) is False
    driver.request("remove_placement_group", id=large)
    answer = driver.request("wait_placement_group", id=large, timeout_s=5.0)
    assert answer.error == "TaskPlacementGroupRemoved"
    first = group(driver, {"CPU": 2.0})
    second = group(driver, {"CPU": 2.0})
    waiting = {"id": second, "timeout_s": 10.0}
    driver.send(wire.Request(1, "wait_placement_group", msgpack(waiting)))
    driver.request("remove_placement_group", id=first)
    assert driver.expect(wire.Response).payload == msgpack(True)
    driver.request("remove_placement_group", id=second)


def test_removal_kills_what_runs_in_the_group(driver: Peer) -> None:
    group_id = group(driver, {"CPU": 1.0}, {"CPU": 1.0})
    granted = driver.lease(b"1", placement_group=group_id, bundle_index=0)
    start(driver, placement_group=group_id, bundle_index=1, resources={"CPU": 1.0})
    pid = until(driver, "ALIVE").pid
    driver.ask(b"2", placement_group=group_id)
    driver.request("remove_placement_group", id=group_id)
    assert driver.expect(wire.LeaseLost).kind == "removed"
    assert driver.expect(wire.LeaseRejected).kind == "removed"
    update = until(driver, "DEAD")
    assert "placement group was removed" in update.cause
    assert not is_alive(pid) and not is_alive(granted.pid)


def test_a_bad_strategy_is_refused(driver: Peer) -> None:
    answer = driver.request(
        "create_placement_group", id=b"x", bundles=[{"CPU": 1.0}], strategy="NEAR"
    )
    assert answer.error == "ValueError"


# Keys.


def test_keys_are_put_read_listed_and_deleted(driver: Peer) -> None:
    ask = driver.request
    assert ask("kv_put", key=b"a1", value=b"one", namespace="t") is True
    assert ask("kv_put", key=b"a1", value=b"two", namespace="t") is False
    assert ask("kv_get", key=b"a1", namespace="t") == b"two"
    ask("kv_put", key=b"a1", value=b"three", namespace="t", overwrite=False)
    assert ask("kv_get", key="a1", namespace="t") == b"two"
    assert ask("kv_get", key=b"a1") is None
    ask("kv_put", key=b"a2", value=b"", namespace="t")
    assert ask("kv_list", prefix=b"a", namespace="t") == [b"a1", b"a2"]
    assert ask("kv_exists", key=b"a2", namespace="t") is True
    assert ask("kv_del", key=b"a", namespace="t", by_prefix=True) == 2
    assert ask("kv_exists", key=b"a2", namespace="t") is False


# The cluster.


def test_nodes_and_resources(shared_node: NodeProcess, driver: Peer) -> None:
    (row,) = driver.request("nodes")
    assert row["NodeID"] == shared_node.ready["node_id"]
    assert row["Alive"] is row["alive"] is True
    assert row["Labels"]["ray.io/node-id"] == row["NodeID"]
    total = driver.request("cluster_resources")
    assert row["Resources"] == total
    assert total["CPU"] == 2.0
    assert total[f"node:{row['NodeManagerAddress']}"] == 1.0
    assert total["node:__internal_head__"] == 1.0


def test_explain_says_what_a_lease_waits_for(driver: Peer) -> None:
    granted = driver.lease(b"1", label="train", resources={"CPU": 2.0})
    driver.ask(b"2", label="load")
    (line,) = driver.request("explain", lease_ids=[driver.lease_id(b"2")])
    assert line.startswith("load waits for ")
    assert f"in use by train {{CPU: 2}} (pid {granted.pid}, 0 s)" in line


@pytest.mark.parametrize(
    ("method", "payload", "error"),
    [
        ("no_such_method", {}, "ValueError"),
        ("kv_put", {"key": 3, "value": b""}, "TypeError"),
        ("kv_put", {}, "TypeError"),
        ("state", {"kind": "moods"}, "ValueError"),
    ],
)
def test_bad_requests_are_answered(
    driver: Peer, method: str, payload: dict[str, Any], error: str
) -> None:
    assert driver.request(method, **payload).error == error


def test_many_requests_in_one_write_are_all_answered(driver: Peer) -> None:
    frames = b""
    for number in range(1, 201):
        body = fake_wire.ENCODER.encode(wire.Request(number, "cluster_info", b""))
        frames += len(body).to_bytes(4, "little") + body
    driver.channel.sock.sendall(frames)
    answers = [driver.expect(wire.Response).request_id for _ in range(200)]
    assert answers == list(range(1, 201))


def test_a_request_without_a_number_is_carried_out_and_not_answered(
    driver: Peer,
) -> None:
    put = msgpack({"key": b"k", "value": b"v"})
    driver.channel.send(wire.Request(0, "kv_put", put))
    driver.channel.send(wire.Request(0, "no_such_method", b""))
    driver.channel.send(wire.Request(7, "kv_exists", msgpack({"key": b"k"})))
    answer = driver.expect(wire.Response)
    assert (answer.request_id, answer.error) == (7, "")
    assert answer.payload == msgpack(True)


def msgpack(value: Any) -> bytes:
    return fake_wire.ENCODER.encode(value)
