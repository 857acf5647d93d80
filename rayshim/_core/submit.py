"""Tasks at their owner: submitted, pushed on leases, retried, cancelled."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import current, failures
from rayshim._core.arguments import Encoded, fill, has_lost
from rayshim._core.calls import CallRecord, FunctionRecord
from rayshim._core.lease_requests import LeaseRequests
from rayshim._core.refs import ObjectRef, dropped
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.dispatch import (
    IDLE_S,
    LATE_S,
    MAX_DEPTH,
    STEAL_AFTER_S,
    LeaseSlot,
    SchedulingClass,
)
from rayshim.lineage.tasks import TaskEvent, Verdict

if TYPE_CHECKING:
    from rayshim._core.peer import MessageHandler, Peer

#: References dropped by a program that submits and never waits are freed in lots.
COLLECT_AT = 1000
#: A submitted call that no lease is idle for is sent after this long at most.
FLUSH_S = 0.001
_SITES = "RAY_record_ref_creation_sites"


class TaskSubmitter:
    """The owner's side of tasks: queues, leases, results, retries, cancellation."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        #: Task id -> call without a result, for tasks and actor methods alike.
        self.records: dict[bytes, CallRecord] = {}
        #: Class key -> class, for classes with calls or leases.
        self.classes: dict[Any, SchedulingClass] = {}
        self._requests = LeaseRequests(peer, self.classes)
        #: Executor address -> (class, lease) in use.
        self._slots: dict[str, tuple[SchedulingClass, LeaseSlot]] = {}
        #: Lease id -> executor address.
        self._leases: dict[bytes, str] = {}
        #: Whether to note where in the program calls are made: it costs as much again.
        self.records_sites = os.environ.get(_SITES, "").lower() in ("1", "true")
        self._armed_flush = False
        self._armed_steal = False
        self._armed_watch = False
        self._armed_idle = False

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return {
            m.Results: self._on_results,
            m.StolenTasks: self._on_stolen,
            m.LeaseGranted: self._on_granted,
            m.LeaseRejected: self._on_rejected,
            m.ReclaimLease: self._on_reclaim,
        }

    # -- submission ------------------------------------------------------------------

    def submit(
        self,
        record: CallRecord,
        function: FunctionRecord,
        template: m.RequestLease,
        key: Any,
        max_depth: int,
    ) -> list[ObjectRef]:
        """Queue a task and return the references of its values."""
        peer = self._peer
        with peer.lock:
            record.function = function
            scheduling = self.classes.get(key)
            if scheduling is None:
                # The next call of what is spread belongs on another node.
                scheduling = self.classes[key] = SchedulingClass(
                    key,
                    template.label,
                    template,
                    max_depth,
                    single_use=template.strategy == "SPREAD",
                )
            record.scheduling = scheduling
            refs = self.enter(record)
            if peer.raylet.closed:
                self.fail(record, failures.error_payload(failures.node_gone()))
            elif self.await_arguments(record):
                self._enqueue(record)
        if peer.reactor.deferred:
            peer.reactor.run_deferred()
        return refs

    def refuse(self, record: CallRecord, reason: str) -> list[ObjectRef]:
        """A task that can never run: its values are the error that says why."""
        error = exceptions.TaskUnschedulableError(reason)
        with self._peer.lock:
            refs = self.enter(record)
            self.fail(record, failures.error_payload(error))
        return refs

    def enter(self, record: CallRecord) -> list[ObjectRef]:
        """Register a call and its return values (under the lock)."""
        call = current.call.get()
        if call is not None:
            record.parent = record.spec.parent = call.task_id
        if len(dropped) > COLLECT_AT:
            self._peer.objects.collect()
        self.records[record.task_id] = record
        if record.spec.num_returns < 0:
            self._peer.streams.open(record)
        own = self._peer.objects.table.own
        refs = []
        for object_id in record.return_ids:
            own(object_id).task = record
            refs.append(ObjectRef(object_id))
        if self.records_sites:
            self._peer.objects.note_site(record.return_ids)
        return refs

    def await_arguments(self, record: CallRecord) -> bool:
        """True if all arguments are known; else the call is queued when they are."""
        dependencies = record.encoded.dependencies
        if not dependencies:
            return True
        objects = self._peer.objects
        failed = False
        for entry in objects.lookup([ref for _, _, ref in dependencies]):
            value = entry.value
            if value is None:
                record.missing += 1
                record.waiting_for = entry.object_id
            elif value.kind == m.ERROR:
                failed = True
        if not record.missing:
            return not failed or self._check_arguments(record)
        for _, _, ref in dependencies:
            if objects.entries[ref._bytes].value is None:
                objects.when_known(ref._bytes, lambda _: self._argument_known(record))
        return False

    def _argument_known(self, record: CallRecord) -> None:
        record.missing -= 1
        if record.missing or record.task_id not in self.records:
            return
        if not self._check_arguments(record):
            if record.actor is not None:
                record.actor.withdraw(record)
            return
        if record.actor is not None:
            record.actor.flush(force=False)
        else:
            self._enqueue(record)

    def _check_arguments(self, record: CallRecord) -> bool:
        entries = self._peer.objects.entries
        for _, _, ref in record.encoded.dependencies:
            value = entries[ref._bytes].value
            # None: lost while others were waited for. It is missed when the call goes.
            if value is not None and value.kind == m.ERROR:
                self.fail(record, failures.for_consumer(self._peer, value, record.name))
                return False
        return True

    def _current_class(self, record: CallRecord) -> SchedulingClass:
        """The class that serves a call: its own may have been forgotten meanwhile."""
        own = record.scheduling
        assert own is not None
        scheduling = record.scheduling = self.classes.setdefault(own.key, own)
        return scheduling

    def _enqueue(self, record: CallRecord) -> None:
        scheduling = self._current_class(record)
        if record.encoded.dependencies and self._peer.nodes.nodes:
            scheduling = self._requests.near_arguments(record, scheduling)
            scheduling = self.classes.setdefault(scheduling.key, scheduling)
            record.scheduling = scheduling
        record.on(TaskEvent.ARGUMENTS_KNOWN)
        if record.kept is None:
            scheduling.queue.append(record)
        else:  # It rebuilds a lost value, and somebody waits for that.
            scheduling.queue.appendleft(record)
        self._advance(scheduling, flush=False)

    def _advance(self, scheduling: SchedulingClass, *, flush: bool) -> None:
        """Push what may be pushed, and ask for leases where they would help."""
        queue = scheduling.queue
        if scheduling.slots:
            now = time.monotonic()
            for slot, calls in scheduling.assign(flush=flush, now_s=now):
                self._push(slot, calls)
            if queue and not flush and not self._armed_flush:
                self._arm_flush()
        else:
            now = 0.0  # no lease can be late
        if queue:
            for _ in range(scheduling.leases_wanted(now)):
                self._requests.ask(scheduling)

    def _push(self, slot: LeaseSlot, records: list[CallRecord]) -> None:
        channel: Channel = slot.channel
        known = channel.known
        specs = []
        for record in records:
            encoded = record.encoded
            if encoded.dependencies and has_lost(self._peer, encoded):
                self._peer.objects.recovering.arguments_lost(record, [], "")
                continue
            function = record.function
            assert function is not None
            if function.key not in known:
                known.add(function.key)
                channel.queue(function.message)
            record.on(TaskEvent.PUSHED)
            record.slot = slot
            slot.inflight[record.task_id] = record
            if encoded.dependencies or encoded.nested:
                record.lends = fill(self._peer, record.spec, encoded, channel.address)
            specs.append(record.spec)
        if not specs:
            return
        channel.send(m.PushTasks(specs))
        if slot.single_use:
            slot.draining = slot.reclaimed = True
        elif len(slot.inflight) > 1:
            self._arm_watch()

    def flush_all(self) -> None:
        """Push everything that has room: somebody waits now (under the lock)."""
        # A call whose argument is lost has another one run, of whatever class.
        for scheduling in list(self.classes.values()):
            if scheduling.queue:
                self._advance(scheduling, flush=True)

    def flush_soon(self) -> None:
        """As :meth:`flush_all`, for somebody who may submit more at once."""
        if not self._armed_flush:
            self._arm_flush()

    def _arm_flush(self) -> None:
        self._armed_flush = True
        self._peer.reactor.call_later(FLUSH_S, self._flush_due)

    def _flush_due(self) -> None:
        self._armed_flush = False
        self.flush_all()

    # -- leases ------------------------------------------------------------------------

    def raylet_closed(self, channel: Channel) -> None:
        """The raylet of another node is gone: what was asked there is asked anew."""
        for scheduling in self._requests.raylet_closed(channel):
            self._advance(scheduling, flush=True)
        self._peer.deaths.raylet_closed(channel)

    def _on_granted(self, channel: Channel, grant: m.LeaseGranted) -> None:
        scheduling = self._requests.take(grant.lease_id)
        raylet = channel
        if scheduling is None:
            if grant.lease_id not in self._leases:  # else it is in use, and told twice
                raylet.send(m.ReturnLease(grant.lease_id))
            return
        if not scheduling.queue and scheduling.slots:
            raylet.send(m.ReturnLease(grant.lease_id))
            return
        try:
            executor = self._peer.connect(grant.address)
        except ConnectionError:
            # It died between the grant and now; the raylet's notice follows.
            raylet.send(m.ReturnLease(grant.lease_id, True))
            self._advance(scheduling, flush=True)
            return
        slot = LeaseSlot(grant.lease_id, executor, time.monotonic())
        slot.address = grant.address
        slot.pid = grant.pid
        slot.raylet = raylet
        slot.single_use = scheduling.single_use
        scheduling.slots.append(slot)
        self._slots[grant.address] = (scheduling, slot)
        self._leases[grant.lease_id] = grant.address
        template: m.RequestLease = scheduling.template
        executor.queue(
            m.BindLease(
                grant.lease_id,
                template.job_id,
                self._peer.namespace,
                grant.resources,
                grant.gpu_ids,
                template.env_vars,
                self._peer.job_blob,
                template.placement_group,
                template.capture_group,
            )
        )
        executor.flush()
        self._advance(scheduling, flush=True)
        self.review(scheduling)

    def _on_rejected(self, channel: Channel, rejection: m.LeaseRejected) -> None:
        if rejection.kind == "spillback":
            scheduling = self._requests.spill(rejection)
            if scheduling is not None:
                self._advance(scheduling, flush=True)
            return
        scheduling = self._requests.take(rejection.lease_id)
        if scheduling is None or rejection.kind == "cancelled":
            return
        error: Exception
        if rejection.kind == "removed":
            error = exceptions.TaskPlacementGroupRemoved()
        elif rejection.kind == "setup":
            error = exceptions.RuntimeEnvSetupError(rejection.reason)
        else:
            error = exceptions.TaskUnschedulableError(rejection.reason)
        payload = failures.error_payload(error)
        while scheduling.queue:
            self.fail(scheduling.queue.popleft(), payload)

    def review(self, scheduling: SchedulingClass) -> None:
        """Give back leases that are not worth keeping; look for work to steal."""
        now = time.monotonic()
        for slot in scheduling.returnable(now):
            scheduling.slots.remove(slot)
            self._slots.pop(slot.address, None)
            self._leases.pop(slot.lease_id, None)
            dispose = slot.draining and not slot.reclaimed
            slot.raylet.send(m.ReturnLease(slot.lease_id, dispose))
        if not scheduling.queue:
            if scheduling.requested:
                self._requests.cancel(scheduling)
            if len(scheduling.slots) > 1:
                self._steal(scheduling, now)
        if scheduling.slots:
            if not self._armed_idle:
                self._armed_idle = True
                self._peer.reactor.call_later(IDLE_S / 4, self._idle_due)
        elif not scheduling.queue:
            self.classes.pop(scheduling.key, None)
        if scheduling.queue:
            self._advance(scheduling, flush=True)

    def _idle_due(self) -> None:
        self._armed_idle = False
        for scheduling in list(self.classes.values()):
            self.review(scheduling)

    def _steal(self, scheduling: SchedulingClass, now: float) -> None:
        found = scheduling.steal(now)
        if found is not None:
            slot, count = found
            slot.stealing = True
            slot.channel.send(m.StealTasks(count))
        elif scheduling.may_steal_later() and not self._armed_steal:
            self._armed_steal = True
            self._peer.reactor.call_later(STEAL_AFTER_S, self._steal_due)

    def _watch_due(self) -> None:
        """Take calls back that wait behind a late one."""
        self._armed_watch = False
        now = time.monotonic()
        again = False
        for scheduling in self.classes.values():
            for slot, count in scheduling.late(now):
                slot.stealing = True
                slot.channel.send(m.StealTasks(count))
            again = again or scheduling.has_pipelines()
        if again:
            self._arm_watch()

    def _arm_watch(self) -> None:
        if not self._armed_watch:
            self._armed_watch = True
            self._peer.reactor.call_later(LATE_S, self._watch_due)

    def _steal_due(self) -> None:
        self._armed_steal = False
        now = time.monotonic()
        for scheduling in self.classes.values():
            if len(scheduling.slots) > 1:
                self._steal(scheduling, now)

    def _on_stolen(self, channel: Channel, stolen: m.StolenTasks) -> None:
        found = self._slots.get(channel.address)
        returned = []
        for task_id in stolen.task_ids:
            record = self.records.get(task_id)
            if record is None or record.slot is None:
                continue
            record.slot.inflight.pop(task_id, None)
            record.on(TaskEvent.GIVEN_BACK)
            record.slot = None
            record.lends = []  # only promised: the call brought nothing anywhere
            returned.append(record)
        if found is not None:
            found[1].stealing = False
        touched: dict[int, SchedulingClass] = {}
        for record in reversed(returned):
            scheduling = self._current_class(record)
            scheduling.queue.appendleft(record)
            touched[id(scheduling)] = scheduling
        for scheduling in touched.values():
            busy = found[1] if found is not None else None
            self._advance_around(scheduling, busy)

    def _advance_around(
        self, scheduling: SchedulingClass, busy: LeaseSlot | None
    ) -> None:
        """Push stolen calls to any lease but the one that gave them back."""
        if busy is not None and busy.inflight and not busy.draining:
            busy.draining = True
            self._advance(scheduling, flush=True)
            busy.draining = False
        else:
            self._advance(scheduling, flush=True)

    def _on_reclaim(self, channel: Channel, reclaim: m.ReclaimLease) -> None:
        address = self._leases.get(reclaim.lease_id)
        if address is None:
            return
        scheduling, slot = self._slots[address]
        if reclaim.if_idle:
            slot.wanted = True
            self.review(scheduling)
            return
        slot.reclaimed = True
        if len(slot.inflight) > 1 and not slot.stealing:
            slot.stealing = True
            slot.channel.send(m.StealTasks(MAX_DEPTH))
        self.review(scheduling)
        if not self._armed_idle:
            self._armed_idle = True
            self._peer.reactor.call_later(IDLE_S / 4, self._idle_due)

    # -- results -----------------------------------------------------------------------

    def _on_results(self, channel: Channel, results: m.Results) -> None:
        address = channel.address
        found = self._slots.get(address)
        for result in results.results:
            record = self.records.get(result.task_id)
            if record is None:
                continue
            if record.actor is not None:
                record.actor.on_result(record, result, channel)
                continue
            slot = record.slot
            if slot is not None:
                slot.inflight.pop(result.task_id, None)
            self.finish(record, result, address)
        if found is not None:
            scheduling, slot = found
            now = time.monotonic()
            slot.progress_s = now
            if not slot.inflight:
                slot.idle_since_s = now
            if results.draining:
                slot.draining, slot.reclaimed = True, False  # nobody may use it again
            scheduling.record_cost(results.cost_s)
            if scheduling.queue:
                self._advance(scheduling, flush=True)
            if not slot.inflight or slot.reclaimed or slot.draining:
                self.review(scheduling)
        self._peer.objects.settle()

    def finish(self, record: CallRecord, result: m.Result, sender: str) -> None:
        """Take in the result of a call (under the lock)."""
        values = result.values
        if result.lost:
            self._end_lends(record, result.kept, sender)
            recovering = self._peer.objects.recovering
            recovering.arguments_lost(record, result.lost, sender)
            return
        if len(values) == 1 and values[0].kind == m.ERROR:
            self._end_lends(record, result.kept, sender)
            if not self._retry(record, values[0]):
                self.fail(record, values[0], ran=True)
            return
        self.records.pop(record.task_id, None)
        record.on(TaskEvent.RESULT)
        if record.stream is not None:
            self._peer.streams.ended(record, result)
        objects = self._peer.objects
        keep = record.kept is not None
        for object_id, payload in zip(record.return_ids, values, strict=False):
            entry = objects.entries.get(object_id)
            if entry is not None:
                entry.task = None
            if payload.segment is not None:
                keep = True
            elif entry is not None and entry.value is None and not payload.nested:
                # What store_value() does with a small value: the common case.
                entry.value = payload
                if entry.waiters is not None:
                    objects.complete(entry, payload)
                continue
            objects.store_value(object_id, payload, sender)
        if keep or (record.stream is not None and record.stream.is_large):
            objects.recovering.kept(record)
        # After the values: a reference that only came back in one stays counted.
        self._end_lends(record, result.kept, sender)

    def _end_lends(self, record: CallRecord, kept: Any, address: str) -> None:
        if record.lends:
            table = self._peer.objects.table
            for object_id, lend in record.lends:
                if object_id in kept:
                    table.confirm(object_id, address, lend)
                else:
                    table.release(object_id, address, lend)
            record.lends = []

    def _retry(self, record: CallRecord, payload: m.Payload) -> bool:
        allowed = record.retry_exceptions
        if not allowed or not record.may_retry():
            return False
        error = failures.load_error(payload)
        cause = getattr(error, "cause", None) or error
        retryable = not isinstance(cause, exceptions.TaskCancelledError) and (
            allowed is True or isinstance(cause, tuple(allowed))
        )
        if record.raised(retryable=retryable) is not Verdict.AGAIN:
            return False
        self._again(record)
        return True

    def _again(self, record: CallRecord) -> None:
        """Queue a call for one more run."""
        record.spec.attempt = record.attempt
        record.slot = None
        if record.actor is not None:
            record.actor.submit_again(record)
            return
        scheduling = self._current_class(record)
        scheduling.queue.append(record)
        self._advance(scheduling, flush=True)

    def fail(
        self, record: CallRecord, payload: m.Payload, *, ran: bool = False
    ) -> None:
        """Give all values of a call the same error, which it ``ran`` into, or not."""
        if self.records.pop(record.task_id, None) is None:
            return
        if not ran:
            self._peer.call_log.never_ran(record, payload)
        record.fail()
        objects = self._peer.objects
        if record.kept is not None:
            objects.recovering.broke(record, payload)
            return
        if record.stream is not None:
            payload = self._peer.streams.failed(record, payload)
        wanted = False
        for object_id in record.return_ids:
            entry = objects.entries.get(object_id)
            if entry is not None and entry.value is None:
                entry.task = None
                is_read = record.stream is not None or entry.waiters is not None
                if payload.kind == m.ERROR and not is_read:
                    objects.unread.add(object_id)
                    self._peer.arm_sweep()
                wanted = True
                objects.complete(entry, payload)
        if not wanted and record.return_ids:
            self.report_unread(payload)
        record.encoded = Encoded()

    def report_unread(self, payload: m.Payload) -> None:
        """Print the error of a call that nobody will ask for (driver only)."""
        peer = self._peer
        if peer.role != "driver" or peer.ended or payload.kind != m.ERROR:
            return
        if os.environ.get("RAY_IGNORE_UNHANDLED_ERRORS") == "1":
            return
        error = failures.load_error(payload)
        if isinstance(error, exceptions.RayTaskError):
            cause = error.cause
            if not isinstance(cause, exceptions.TaskCancelledError):
                text = f"Unhandled error (nobody asked for this value): {error}"
                peer.reactor.deferred.append(
                    lambda: print(text, file=sys.stderr, flush=True)
                )

    def raylet_died(self, error: Exception) -> None:
        """The node is gone: nothing that waits here can go on."""
        payload = failures.error_payload(error)
        for record in list(self.records.values()):
            if record.actor is None:
                self.fail(record, payload)
        self.classes.clear()
