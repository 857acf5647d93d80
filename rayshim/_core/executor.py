"""The process of an executor: it takes calls, runs them, and answers.

The main thread runs tasks and the calls of plain actors, and reads the channels
itself while it is idle; the background thread reads while user code runs. How calls
run (one by one, on threads, in an event loop) is the business of a *lane*.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from rayshim import exceptions
from rayshim._core import current, failures, gpus, job_setup, task_output
from rayshim._core.group_places import LeaseGroup
from rayshim._core.lanes import AsyncLane, Lane, MainLane, ThreadLane
from rayshim._core.peer import Peer
from rayshim._core.running import CallContext, Runner
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel
from rayshim.adapters.wire.environment_messages import EnterEnvironment
from rayshim.settings import Settings

Work = tuple[Channel, m.TaskSpec]

#: Answers of short calls are gathered for this long.
GATHER_S = 0.0005
#: While calls wait behind one that runs, held answers are sent after this long.
HOLD_S = 0.002


class Executor:
    """What an executor has beside a peer: a queue of calls and a way to run them."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.runner = Runner(self)
        #: Calls accepted and not started.
        self.run: deque[Work] = deque()
        #: Channel -> answers not sent yet.
        self._out: dict[Channel, list[m.Result]] = {}
        self._out_count = 0
        #: When the first of them was given.
        self._held_since = 0.0
        self._cost_s = 0.0
        #: Channel -> its open lease.
        self.bindings: dict[Channel, m.BindLease] = {}
        #: Task id -> call that runs, of all lanes.
        self.running: dict[bytes, CallContext] = {}
        self.lane: Lane = MainLane(self)
        #: When the call of the main thread began, on the clock of ``perf_counter``.
        self.begun = 0.0
        self.actor: m.CreateActor | None = None
        self.instance: Any = None
        self._blocked = 0
        self._leaving = ""
        self.draining = False
        #: (task id) that the next interrupt is meant for.
        self.interrupt_for = b""
        #: True while user code of the main thread may be interrupted.
        self.interruptible = False
        self._ticking = False
        #: The runtime_env to be taken up before anything runs.
        self.entering: EnterEnvironment | None = None
        #: What :func:`main` got.
        self.config: dict[str, Any] = {}
        #: ``CUDA_VISIBLE_DEVICES`` as the node has it: what GPU indices refer to.
        self._node_devices = os.environ.get(gpus.VARIABLE)
        peer.executor = self
        peer.add_handlers(
            {
                m.RegisterFunction: self._on_function,
                m.BindLease: self._on_bind,
                m.PushTasks: self._on_push,
                m.StealTasks: self._on_steal,
                m.CancelTask: self._on_cancel,
                m.StreamAck: self._on_stream_ack,
                m.Interrupt: self._on_interrupt,
                m.CreateActor: self._on_create_actor,
                EnterEnvironment: self._on_enter,
            }
        )

    # -- messages ----------------------------------------------------------------

    def _on_function(self, channel: Channel, function: m.RegisterFunction) -> None:
        self.runner.register(function)

    def _on_bind(self, channel: Channel, lease: m.BindLease) -> None:
        self.bindings[channel] = lease
        self._enter_job(lease)

    def _enter_job(self, lease: m.BindLease) -> None:
        peer = self.peer
        peer.job_id = lease.job_id
        peer.job_env = dict(lease.env_vars)  # calls from here inherit it
        if lease.job_blob and lease.job_blob != peer.job_blob:
            peer.job_blob = lease.job_blob
            job_setup.enter(peer, lease.job_blob)
        peer.namespace = lease.namespace
        if (lease.placement_group, lease.capture_group) != peer.lease_group:
            peer.lease_group = LeaseGroup(lease.placement_group, lease.capture_group)
        peer.objects.set_job(lease.job_id)
        os.environ.update(lease.env_vars)
        if lease.gpu_ids:
            devices = self.devices(lease)
            os.environ[gpus.VARIABLE] = ",".join(map(str, devices))
        elif gpus.VARIABLE not in lease.env_vars:
            if self._node_devices is None:
                os.environ.pop(gpus.VARIABLE, None)
            else:
                os.environ[gpus.VARIABLE] = self._node_devices

    def devices(self, lease: m.BindLease) -> list[int] | list[str]:
        """What programs call the GPUs of a lease."""
        listed = lease.env_vars.get(gpus.VARIABLE, self._node_devices)
        if listed is None:
            return list(lease.gpu_ids)
        visible = gpus.visible_devices({gpus.VARIABLE: listed})
        return gpus.device_ids(lease.gpu_ids, visible)

    def _on_enter(self, channel: Channel, message: EnterEnvironment) -> None:
        self.entering = message
        self.lane.work_arrived()

    def _on_push(self, channel: Channel, push: m.PushTasks) -> None:
        self.runner.brought.arrived(push.specs)
        self.run.extend([(channel, spec) for spec in push.specs])
        self.lane.work_arrived()

    def _on_steal(self, channel: Channel, steal: m.StealTasks) -> None:
        self._give_back(channel, steal.count)

    def _give_back(self, channel: Channel, count: int) -> None:
        """Return the last ``count`` unstarted calls of a channel's owner."""
        stolen: list[bytes] = []
        kept: list[Work] = []
        while self.run and len(stolen) < count:
            try:
                work = self.run.pop()
            except IndexError:
                break  # the main thread took the last one
            if work[0] is channel:
                stolen.append(work[1].task_id)
                self.runner.brought.given_back(work[1].task_id)
            else:
                kept.append(work)
        self.run.extend(reversed(kept))
        stolen.reverse()
        channel.send(m.StolenTasks(stolen))

    def _on_cancel(self, channel: Channel, cancel: m.CancelTask) -> None:
        task_id = cancel.task_id
        if self.peer.canceller.cancel_owned(task_id, cancel.force, cancel.recursive):
            return
        context = self.running.get(task_id)
        if context is not None:
            context.cancelled = True
            if cancel.recursive:
                self.peer.canceller.cancel_children(task_id, cancel.force)
            if cancel.force:
                self._send_answers()
                os._exit(1)
            self.lane.interrupt(context)
            return
        for work in list(self.run):
            if work[1].task_id == task_id:
                try:
                    self.run.remove(work)
                except ValueError:
                    break  # it has just been started: too late to take it back
                error = exceptions.TaskCancelledError()
                result = m.Result(task_id, [failures.error_payload(error)])
                work[0].send(m.Results([result], 0.0))
                self.runner.note_cancelled(work[1])
                self.runner.brought.given_back(task_id)
                break

    def _on_stream_ack(self, channel: Channel, ack: m.StreamAck) -> None:
        context = self.running.get(ack.task_id)
        if context is not None:
            context.acknowledge(ack.consumed)

    def _on_interrupt(self, channel: Channel, interrupt: m.Interrupt) -> None:
        if interrupt.reason == m.END_NOW:
            try:
                job_setup.end()
            finally:
                os.killpg(os.getpgrp(), signal.SIGKILL)
        self._leaving = interrupt.reason or "asked to leave"
        self.lane.work_arrived()

    def _on_create_actor(self, channel: Channel, create: m.CreateActor) -> None:
        if self.actor is not None:
            return  # a head that was restarted may say it twice
        self.actor = create
        self._enter_job(create.lease)
        self.bindings[channel] = create.lease
        self.lane.work_arrived()

    # -- main thread ---------------------------------------------------------------

    def serve(self) -> None:
        """Run calls until the executor is told to leave."""
        reactor = self.peer.reactor
        while True:
            reactor.wait(self._has_work)
            if self.entering is not None:
                from rayshim._core import runtime_env_entering

                message, self.entering = self.entering, None
                runtime_env_entering.enter(self, message)
            if self.actor is not None:
                break
            if self.run:
                self._run_batch()
            elif self._may_leave():
                self.leave()
        self._become_actor(self.actor)

    def _has_work(self) -> bool:
        return (
            bool(self.run)
            or self._may_leave()
            or self.actor is not None
            or self.entering is not None
        )

    def _may_leave(self) -> bool:
        """Asked to leave, and nobody needs an object that lives here."""
        return bool(self._leaving) and not self.peer.objects.has_lends()

    def _run_batch(self) -> None:
        run = self.run
        if len(run) > 1:
            self._tick_later()
        clock = time.perf_counter
        log = self.peer.call_log
        note = log.noted.append
        count, begun = 0, clock()
        last = self.begun = begun
        if not log.is_armed:
            log.arm()
        while run:
            try:
                channel, spec = run.popleft()
            except IndexError:
                break  # the background thread gave the last ones back
            result = self.runner.run(channel, spec)
            count += 1
            now = clock()
            note(
                (
                    spec.task_id,
                    spec.name,
                    spec.attempt,
                    last,
                    now,
                    spec.parent,
                    spec.function or spec.method,
                )
            )
            last = self.begun = now
            self._cost_s = (now - begun) / count
            self.hold(channel, result)
            if now - begun > GATHER_S or self._out_count >= 64:
                self._send_answers()
                count, begun = 0, clock()
                if not log.is_armed:
                    log.arm()
        self._send_answers()

    def hold(self, channel: Channel, result: m.Result) -> None:
        """Keep an answer for the next batch."""
        with self.peer.lock:
            if not self._out_count:
                self._held_since = time.perf_counter()
            self._out.setdefault(channel, []).append(result)
            self._out_count += 1

    def _send_answers(self) -> None:
        with self.peer.lock:
            if not self._out_count:
                return
            out, self._out = self._out, {}
            self._out_count = 0
            for channel, results in out.items():
                channel.send(m.Results(results, self._cost_s, self.draining))
        if self.draining and self.actor is None:
            self._drain_rest()

    def _drain_rest(self) -> None:
        """Give back what was pushed behind the last call of a spent executor."""
        with self.peer.lock:
            for channel in {work[0] for work in self.run}:
                self._give_back(channel, len(self.run))

    def answer_soon(self, *, more: bool) -> None:
        """Send held answers now, or with the next ones if more calls wait."""
        late = time.perf_counter() - self._held_since > GATHER_S
        if not more or late or self._out_count >= 64:
            self._send_answers()
        else:
            self._tick_later()

    def _tick_later(self) -> None:
        if not self._ticking:
            self._ticking = True
            self.peer.reactor.call_later(HOLD_S, self._tick)

    def _tick(self) -> None:
        """Send answers that wait behind a long call."""
        self._ticking = False
        if self._out_count:
            self._send_answers()
        if self.run:
            self._tick_later()

    @contextlib.contextmanager
    def yielding(self) -> Iterator[None]:
        """While a call waits, its CPUs and the calls behind it go to others."""
        peer = self.peer
        single = isinstance(self.lane, MainLane)
        with peer.lock:
            self._blocked += 1
            if self._blocked == 1 and single:
                peer.raylet.send(m.Blocked(True))
                if self.actor is None:
                    for channel in {work[0] for work in self.run}:
                        self._give_back(channel, len(self.run))
            if self._out_count:
                self._send_answers()
        try:
            yield
        finally:
            with peer.lock:
                self._blocked -= 1
                if self._blocked == 0 and single and not peer.raylet.closed:
                    peer.raylet.send(m.Blocked(False))

    def handle_signal(self, number: int, frame: Any) -> None:
        """SIGINT: a cancellation, or one that user code sent itself."""
        if not self.interruptible:
            return  # between calls: whatever it was meant for has ended
        if self.peer.reactor.defer_interrupt():
            self._interrupt_again()
            return
        self.take_interrupt()

    def take_interrupt(self) -> None:
        """Raise KeyboardInterrupt if the signal is for the call that runs."""
        wanted, self.interrupt_for = self.interrupt_for, b""
        if self.interruptible and (not wanted or wanted in self.running):
            raise KeyboardInterrupt

    def _interrupt_again(self) -> None:
        """The signal came at a bad moment, and the call may never wait again."""
        if self.interrupt_for:
            timer = threading.Timer(0.005, self.interrupt_main)
            timer.daemon = True
            timer.start()

    def interrupt_main(self) -> None:
        """Have the main thread look at :attr:`interrupt_for`."""
        if self.interrupt_for in self.running:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def any_context(self) -> CallContext | None:
        """The call that runs, for a thread that user code started."""
        for context in list(self.running.values()):
            return context
        if self.actor is not None:
            return CallContext(self.peer.raylet, self.actor.spec, self.actor.lease)
        return None

    def own_handle(self) -> Any:
        """A handle of the actor that lives here."""
        import cloudpickle

        from rayshim._core.actor_calls import handle_object_id
        from rayshim.actor import ActorHandle

        create = self.actor
        assert create is not None
        meta, owner = cloudpickle.loads(create.handle_blob)
        ref = None
        if owner:
            object_id = handle_object_id(create.actor_id)
            ref = self.peer.objects.adopt(object_id, owner)
        return ActorHandle(create.actor_id, meta, ref)

    def any_lease(self) -> m.BindLease | None:
        """What its calls may use; a process works for one lease at a time."""
        for channel, lease in reversed(list(self.bindings.items())):
            if not channel.closed:
                return lease
        return None

    def lease_of(self, channel: Channel) -> m.BindLease | None:
        """What the calls of a channel may use."""
        if self.actor is not None:
            return self.actor.lease
        return self.bindings.get(channel)

    # -- actors ----------------------------------------------------------------------

    def _become_actor(self, create: m.CreateActor) -> None:
        cls = self.runner.load_class(create)
        if isinstance(cls, m.Payload):
            self._constructor_failed(create, cls)
            return
        groups = dict(create.concurrency_groups)
        if self.runner.is_async(cls):
            self.lane = AsyncLane(self, create.max_concurrency, groups)
        elif create.max_concurrency > 1 or groups:
            self.lane = ThreadLane(self, create.max_concurrency, groups)
        construct = functools.partial(self.runner.construct, create, cls)
        self.lane.serve(construct)

    def constructed(self, create: m.CreateActor, error: m.Payload | None) -> bool:
        """Report the end of a constructor; False if the actor is dead."""
        if error is not None:
            self._constructor_failed(create, error)
            return False
        name = self.runner.repr_name(self.instance)
        with self.peer.lock:
            self.peer.raylet.send(
                m.ActorCreated(create.actor_id, create.incarnation, name)
            )
        return True

    def _constructor_failed(self, create: m.CreateActor, error: m.Payload) -> None:
        with self.peer.lock:
            self.peer.raylet.send(
                m.ActorFailed(create.actor_id, create.incarnation, error)
            )
        self.leave()

    def exit_actor(self, reason: str) -> None:
        """End the actor by its own will; never returns."""
        assert self.actor is not None
        with self.peer.lock:
            self.peer.raylet.send(m.ActorExiting(self.actor.actor_id, reason))
        self.leave()

    def leave(self) -> None:
        """Send what is left and end the process."""
        with self.peer.lock:
            self.peer.call_log.send()
        self._send_answers()
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._linger()
        os._exit(0)

    def _linger(self) -> None:
        """Give buffered answers a moment to leave."""
        deadline = time.monotonic() + 2.0
        reactor = self.peer.reactor
        while time.monotonic() < deadline:
            with self.peer.lock:
                if not reactor.has_unsent():
                    return
            reactor.wait(lambda: not reactor.has_unsent(), time.monotonic() + 0.05)

    def should_leave(self) -> bool:
        """True if the executor was asked to leave and has no call left."""
        return bool(self._leaving) and not self.run and not self.running


def main(config: dict[str, Any]) -> None:
    """Entry of a forked executor; never returns.

    Args:
        config: as listed in docs/design.md ("Start").
    """
    worker = config["worker_id"]
    with open(config["token_path"]) as file:
        token = bytes.fromhex(file.read().strip())
    peer = Peer(
        role="executor",
        address=f"unix:{config['session_dir']}/sockets/w-{worker[:16]}.sock",
        worker_id=bytes.fromhex(worker),
        job_id=bytes.fromhex(config.get("job_id", "") or "01000000"),
        node_id=config["node_id"],
        raylet_address=config["raylet_address"],
        token=token,
        store_dir=config["store_dir"],
        namespace=config.get("namespace", ""),
        settings=Settings(**config.get("settings", {})),
        session=config["session"],
        session_dir=config["session_dir"],
        node_ip=config.get("node_ip", "127.0.0.1"),
        control_address=config.get("control_address", ""),
        listen_ip=config.get("listen_ip", ""),
    )
    for path in reversed(config.get("sys_path", [])):
        if path not in sys.path:
            sys.path.insert(0, path)
    current.set_peer(peer)
    task_output.install()
    peer.labels = {"ray.io/node-id": config["node_id"], **config.get("labels", {})}
    executor = Executor(peer)
    executor.config = config
    if "entering" in config:
        executor.entering = EnterEnvironment(*config["entering"])
    signal.signal(signal.SIGINT, executor.handle_signal)
    peer.reactor.on_interrupt = executor.take_interrupt
    peer.on_raylet_gone = functools.partial(os._exit, 0)
    peer.start()
    peer.reactor.start("rayshim-io")
    executor.serve()
