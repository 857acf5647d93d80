"""What of Dask's scheduler is overridden is still what it was written for."""

from __future__ import annotations

import hashlib
import inspect

import distributed
import pytest
from distributed.scheduler import Scheduler, SchedulerState

from rayshim.adapters.dask.lease_scheduler import LeaseScheduler
from rayshim.adapters.dask.node_workers import NodeWorkers
from rayshim.adapters.dask.servers import _NoHttp
from rayshim.adapters.dask.stealing import SpillbackStealing

#: Method of distributed's scheduler -> hash of its code in :data:`RELEASE`; and what
#: of ours goes by it.
PINS: dict[str, tuple[str, object]] = {
    # Overridden.
    "valid_workers": ("0e4c054c820b1623", LeaseScheduler.valid_workers),
    "decide_worker_non_rootish": (
        "1aa228f24ad36540",
        LeaseScheduler.decide_worker_non_rootish,
    ),
    "decide_worker_rootish_queuing_disabled": (
        "372d62b4ef0cee2e",
        LeaseScheduler.decide_worker_rootish_queuing_disabled,
    ),
    "bulk_schedule_unrunnable_after_adding_worker": (
        "2205653be0e05985",
        LeaseScheduler.bulk_schedule_unrunnable_after_adding_worker,
    ),
    "check_idle_saturated": ("95e04f2ca593f3b4", LeaseScheduler.check_idle_saturated),
    "adaptive_target": ("cb2508ba42f98d83", LeaseScheduler.adaptive_target),
    "start_http_server": ("7c5b6280fc21677e", _NoHttp.start_http_server),
    # Relied on, step by step.
    "decide_worker_rootish_queuing_enabled": (
        "7280849e5a730384",
        LeaseScheduler.check_idle_saturated,
    ),
    "is_rootish": ("8ea0f7489699d494", LeaseScheduler.decide_worker_non_rootish),
    "add_worker": ("57f6af6e5d6c19a2", NodeWorkers.join),
    "handle_worker": ("366977a9613d9deb", NodeWorkers.join),
    "remove_worker": ("4ce0b53de2993f95", NodeWorkers.left),
    "handle_worker_status_change": ("206e18419a5c35b3", NodeWorkers.set_usable),
    "_add_to_processing": ("122c70fee4513419", SpillbackStealing.move),
    "_exit_processing_common": ("14949649f5dd39f4", SpillbackStealing.move),
    "_check_no_workers": ("7f40b9b47409149d", LeaseScheduler.__init__),
}
RELEASE = "2026.8.0"


def code_hash(method: str) -> str:
    """Changes with the code."""
    source = inspect.getsource(getattr(Scheduler, method))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


@pytest.mark.parametrize("method", PINS)
def test_code_of_distributed_is_as_it_was(method: str) -> None:
    wanted, ours = PINS[method]
    found = code_hash(method)
    name = getattr(ours, "__qualname__", "")
    assert found == wanted, (
        f"distributed {distributed.__version__} has another Scheduler.{method} than "
        f"{RELEASE}: read it, see whether {name} (adapters/dask) still does what it "
        f"should with it, and then pin {found!r}"
    )


def test_nothing_else_is_overridden() -> None:
    ours = {
        name
        for kind in LeaseScheduler.__mro__
        if kind.__module__.startswith("rayshim.")
        for name in vars(kind)
        if hasattr(Scheduler, name) or hasattr(SchedulerState, name)
    }
    usual = {"__module__", "__doc__", "__init__", "__dict__", "__weakref__"}
    usual |= {"__annotations__", "__firstlineno__", "__static_attributes__"}
    assert ours - usual <= PINS.keys()
