"""Actors over nodes: placement, restarts, deaths of nodes, a head that restarts."""

from __future__ import annotations

from actor_calls_of_peers import register, start, until
from cluster_process import ClusterProcesses
from node_process import NodeProcess, Peer, call, is_alive, spec, wait_until
from rayshim.adapters.wire import messages as wire


def node_of(cluster: ClusterProcesses, actor_id: bytes) -> str:
    """The node that an actor runs on."""
    for row in cluster.observer.request("state", kind="actors"):
        if row["actor_id"] == actor_id.hex():
            return str(row["node_id"])
    raise AssertionError("no such actor")


def test_actors_go_where_there_is_room(cluster: ClusterProcesses, owner: Peer) -> None:
    nodes = [cluster.add(1), cluster.add(1)]
    places = []
    for _ in range(2):
        actor_id = start(owner, resources={"CPU": 1.0})
        update = until(owner, "ALIVE")
        channel = owner.open(update)
        assert int(call(channel, "pid")) == update.pid
        channel.close()
        places.append(node_of(cluster, actor_id))
    assert sorted(places) == sorted(node.node_id for node in nodes)


def test_an_actor_that_fits_nowhere_waits_for_a_node(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    cluster.add(1)
    actor_id = start(owner, placement_resources={"GPU": 1.0}, resources={"GPU": 1.0})
    until(owner, "PENDING")
    (line,) = wait_until(
        lambda: cluster.observer.request("explain", actor_ids=[actor_id]), "a reason"
    )
    assert "is not placed: actor Counter waits for" in line
    assert "no node of the cluster has that" in line
    other = cluster.add(1, resources={"GPU": 1.0})
    until(owner, "ALIVE")
    assert node_of(cluster, actor_id) == other.node_id


def test_an_actor_that_waits_at_a_busy_node_goes_to_one_that_joins(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    first = cluster.add(1)
    busy = first.peer(job_id=(2).to_bytes(4, "little"))
    busy.lease(b"1")
    cluster.wait_lacks("CPU")
    actor_id = start(owner)
    assert busy.expect(wire.ReclaimLease).lease_id == b"1"
    second = cluster.add(1)
    until(owner, "ALIVE")
    assert node_of(cluster, actor_id) == second.node_id
    busy.close()


def test_an_actor_restarts_on_another_node(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    nodes = {node.node_id: node for node in (cluster.add(1), cluster.add(1))}
    actor_id = start(owner, max_restarts=1, resources={"CPU": 1.0})
    first = until(owner, "ALIVE")
    home = nodes.pop(node_of(cluster, actor_id))
    home.process.kill()
    gone = until(owner, "RESTARTING")
    assert gone.kind == "node"
    assert f"its node {home.node_id} (127.0.0.1) died" in gone.cause
    second = until(owner, "ALIVE")
    assert (second.incarnation, second.restarts_left) == (1, 0)
    assert second.address != first.address
    assert node_of(cluster, actor_id) in nodes
    wait_until(lambda: not is_alive(first.pid), "the end of the first incarnation")


def test_an_actor_without_restarts_dies_with_its_node(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    node = cluster.add(1)
    start(owner)
    until(owner, "ALIVE")
    node.process.kill()
    update = until(owner, "DEAD")
    assert update.kind == "node"
    assert "connection ended" in update.cause


def test_a_remote_actor_dies_by_its_executor_by_kill_and_by_its_owner(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    cluster.add(3)
    start(owner)
    channel = owner.open(until(owner, "ALIVE"))
    channel.send(wire.PushTasks([spec("exit:3")]))
    update = until(owner, "DEAD")
    assert (update.kind, "exited with exit code 3" in update.cause) == ("crash", True)
    channel.close()
    killed = start(owner, max_restarts=-1)
    until(owner, "ALIVE")
    owner.send(wire.KillActor(killed, True))
    assert until(owner, "DEAD").kind == "kill"
    start(owner, "fail")
    assert until(owner, "DEAD").kind == "init"
    start(owner)
    pid = until(owner, "ALIVE").pid
    owner.close()
    wait_until(lambda: not is_alive(pid), "the end with its owner")
    cluster.wait_free(CPU=3.0)


def test_an_owner_on_a_dead_node_takes_its_actors_along(
    cluster: ClusterProcesses,
) -> None:
    cluster.add(1)
    second = cluster.add(1)
    place = second.address.rsplit("/", 1)[0]
    owner = cluster.head.peer("executor", (1).to_bytes(4, "little"))
    owner.close()
    owner = _peer_at(cluster.head, f"{place}/w-1")
    start(owner, resources={"CPU": 1.0})
    pid = until(owner, "ALIVE").pid
    detached = start(owner, resources={"CPU": 1.0}, detached=True, name="d")
    until(owner, "ALIVE")
    home = node_of(cluster, detached)
    second.process.kill()
    wait_until(lambda: not is_alive(pid), "the end of the actor")
    found = cluster.observer.request("get_actor", name="d", namespace="ns")
    if home == second.node_id:
        assert found.error == "ValueError"
    else:
        assert found["actor_id"] == detached
    owner.close()


def _peer_at(node: NodeProcess, address: str) -> Peer:
    """A peer whose address is on a given node."""
    peer = Peer.__new__(Peer)
    Peer.__init__(peer, node, "tool", (1).to_bytes(4, "little"))
    peer.close()
    import fake_wire

    peer.address = address
    peer.channel = fake_wire.Channel.connect(node.address, node.token)
    peer.channel.send(wire.Hello("executor", b"w" * 28, address, 1, peer.job_id))
    return peer


def test_a_head_that_forgot_ends_actors_it_does_not_know() -> None:
    with ClusterProcesses() as cluster:
        node = cluster.add(1)
        owner = cluster.head.peer(job_id=(1).to_bytes(4, "little"))
        start(owner, resources={"CPU": 1.0})
        pid = until(owner, "ALIVE").pid
        port = int(cluster.head.address.split("/")[0].rpartition(":")[2])
        cluster.restart_head(port)
        cluster.wait_alive(node, True)
        wait_until(lambda: not is_alive(pid), "the end of the actor")
        cluster.wait_free(CPU=1.0)
        owner.close()


def test_a_hard_wish_for_a_dead_node_is_refused(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    cluster.add(1)
    start(owner, nodes=["ab" * 28], soft=False)
    update = until(owner, "DEAD")
    assert "is dead or was never part of this cluster" in update.cause


def test_names_are_one_space_over_nodes(cluster: ClusterProcesses, owner: Peer) -> None:
    cluster.add(2)
    start(owner, name="n")
    until(owner, "ALIVE")
    other = cluster.head.peer(job_id=(2).to_bytes(4, "little"))
    register(other, name="n")
    assert other.expect(wire.Response).error == "ActorAlreadyExistsError"
    other.close()
