"""What always holds in the lease machine of a node (:mod:`.raylet`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayshim.lineage.leases import Lease, LeaseState

if TYPE_CHECKING:
    from rayshim.lineage.raylet import Raylet


def check(raylet: Raylet) -> None:
    """Checks them.

    Raises:
        AssertionError: one does not hold.
    """
    raylet.executors.validate()
    raylet.shares.validate(raylet.leases.values())
    by_state: dict[LeaseState, set[bytes]] = {state: set() for state in LeaseState}
    held = {id(raylet.resources): [raylet.resources]}
    allocations: dict[int, list[Any]] = {id(raylet.resources): []}
    for bundles in raylet.groups.values():
        for bundle in bundles.values():
            allocations[id(raylet.resources)].append(bundle.allocation)
            held[id(bundle.resources)] = [bundle.resources]
            allocations[id(bundle.resources)] = []
    for lease_id, lease in raylet.leases.items():
        by_state[lease.state].add(lease_id)
        assert (lease.executor is not None) == (lease.state is LeaseState.GRANTED)
        holds = lease.state not in (LeaseState.WAITING, LeaseState.FORWARDED)
        assert holds == (lease.allocation is not None)
        assert not (holds and lease.is_asked_elsewhere)
        assert lease.state is not LeaseState.FORWARDED or lease.is_asked_elsewhere
        if lease.allocation is not None:
            allocations[id(lease.source)].append(lease.allocation)
    for key, sets in held.items():
        sets[0].validate(allocations[key])
    queued = {
        one.request.lease_id
        for queue in raylet._waiting.values()
        for one in queue
        if isinstance(one, Lease)
    }
    assert all(len(queue) for queue in raylet._waiting.values())
    for queue in raylet._waiting.values():
        assert len(queue) == len(list(queue))
        assert all(share.waiting for share in queue.classes.values())
    assert by_state[LeaseState.WAITING] == queued
    assert by_state[LeaseState.STARTING] == set(raylet._starting)
    soft = {
        key
        for key in by_state[LeaseState.GRANTED]
        if not raylet.leases[key].request.fixed
    }
    assert soft == set(raylet._reclaimable)
    assert set(raylet.leases) == {key for ids in raylet._held.values() for key in ids}
    assert not raylet.leases.keys() & raylet._finished.keys()
