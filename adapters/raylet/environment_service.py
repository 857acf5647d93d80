"""Has environments built before executors get work in them; see docs/design.md.

A grant of the lease machine whose request has a runtime_env is kept back until the
environment is built and the executor has entered it. Executors that have entered one
keep it, so this costs nothing again. Whatever fails on the way ends as a rejection of
kind "setup", with which the lease goes back to the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from typing import IO, TYPE_CHECKING

import msgspec

from rayshim.adapters.raylet.channels import Peer
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire.environment_messages import (
    EnterEnvironment,
    EnvironmentEntered,
    PrepareEnvironment,
)
from rayshim.adapters.wire.messages import env_key
from rayshim.lineage import lease_events as ev
from rayshim.lineage.lease_events import EnvKey

if TYPE_CHECKING:
    from rayshim.adapters.environments.context import Context
    from rayshim.adapters.raylet.server import NodeServer

logger = logging.getLogger(__name__)

#: Seconds for all of it where the runtime_env's config says nothing. Ray's value.
SETUP_TIMEOUT_S = 600.0
#: Seconds for which a failure answers further requests, too: those that were granted
#: at the same time.
FAILURE_S = 1.0
#: Seconds without executors after which files of an environment may be removed.
KEEP_S = 600.0
#: Bytes of a line of the builder.
_LINE_BYTES = 1 << 20
#: Lines of the builder that an error repeats when it is killed.
_LAST_LINES = 10


class Kept:
    """A grant that waits for its environment."""

    __slots__ = ("command", "env", "timer")

    def __init__(self, command: ev.GrantLease, env: EnvKey) -> None:
        self.command = command
        self.env = env
        self.timer: asyncio.TimerHandle | None = None


class Environment:
    """One environment of this node: being built, built, or failed just now."""

    def __init__(self, text: str, job_id: bytes) -> None:
        self.text = text
        self.job_id = job_id
        config = json.loads(text).get("config") or {}
        timeout_s = config.get("setup_timeout_seconds", SETUP_TIMEOUT_S)
        #: Seconds that building, and entering, may take; None: any time.
        self.timeout_s: float | None = timeout_s if timeout_s > 0 else None
        #: Grants that wait for it to be built.
        self.waiting: list[Kept] = []
        self.context: Context | None = None
        self.error = ""
        self.locks: list[IO[str]] = []
        #: Executors that are, or go, in.
        self.workers: set[bytes] = set()
        self.used_s = 0.0
        self.last_lines: list[str] = []


class EnvironmentService:
    """The environments of a node's executors.

    Args:
        server: The node.
    """

    def __init__(self, server: NodeServer) -> None:
        self._server = server
        #: Text of the runtime_env -> its environment.
        self._environments: dict[str, Environment] = {}
        #: Worker id -> the environment that it has entered.
        self._entered: dict[bytes, Environment] = {}
        #: Worker id -> grant that waits until it has entered.
        self._entering: dict[bytes, Kept] = {}
        #: Lease id -> grant that is kept back.
        self._kept: dict[bytes, Kept] = {}
        #: Worker id -> why it is killed on the way in.
        self._blamed: dict[bytes, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._builders: set[asyncio.subprocess.Process] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    # What the node asks.

    def grant(self, command: ev.GrantLease, env: EnvKey) -> None:
        """Tell the holder of a grant as soon as its environment is entered."""
        text = env[0][1]
        entered = self._entered.get(command.worker_id)
        if entered is not None:
            self._server.tell_grant(command)
            return
        kept = self._kept[command.lease_id] = Kept(command, env)
        lease = self._server.raylet.leases[command.lease_id]
        environment = self._environment(text, lease.request.job_id, env)
        if environment.context is not None:
            self._enter(environment, kept)
        else:
            lease.note = (
                "its runtime_env is being built; what the tools say is among the "
                "driver's lines of runtime_env"
            )
            environment.waiting.append(kept)

    def prepare(self, peer: Peer, message: PrepareEnvironment) -> None:
        """Build an environment before anybody needs it."""
        text = message.runtime_env
        self._environment(text, message.job_id, env_key(message.env_vars, text))

    def came_back(self, peer: Peer) -> bool:
        """Whether an executor that says hello is one that became an interpreter."""
        kept = self._entering.get(peer.worker_id)
        if kept is None:
            return False
        address, pid = peer.address, peer.pid
        kept.command = kept.command._replace(address=address, pid=pid)
        executor = self._server.raylet.executors.by_id.get(peer.worker_id)
        if executor is not None:
            executor.address, executor.pid = address, pid
        return True

    def is_entering(self, worker_id: bytes) -> bool:
        """Whether an executor whose channel ended may be on its way in."""
        return worker_id in self._entering

    def keeps(self, lease_id: bytes) -> bool:
        """Whether a grant is kept back."""
        return lease_id in self._kept

    def cancelled(self, lease_id: bytes) -> bool:
        """Give a grant back that is not wanted any more, if nobody enters yet.

        Returns:
            False if it is not kept back, or an executor enters the environment already:
            that one is told to the holder, who returns it.
        """
        kept = self._kept.get(lease_id)
        if kept is None or self._entering.get(kept.command.worker_id) is kept:
            return False
        del self._kept[lease_id]
        holder = kept.command.holder
        text = "the request was cancelled"
        self._server._tell(holder, wire.LeaseRejected(lease_id, text, "cancelled"))
        self._server.feed(ev.LeaseReturned(lease_id, False))
        return True

    def lost(self, command: ev.ReportLost) -> bool:
        """Reject a grant that is kept back and whose executor is gone."""
        kept = self._kept.pop(command.lease_id, None)
        if kept is None:
            return False
        worker_id = kept.command.worker_id
        reason = self._blamed.pop(worker_id, "")
        if not reason:
            reason = (
                f"{command.reason} before it had taken the environment up; what it "
                "wrote is among the lines of its log"
            )
        self._forget(kept)
        self._reject(kept, reason)
        return True

    def exited(self, worker_id: bytes) -> None:
        """The process of an executor is gone."""
        environment = self._entered.pop(worker_id, None)
        if environment is not None:
            environment.workers.discard(worker_id)
            environment.used_s = self._server.now()

    def stop(self) -> None:
        """Kill what is being built, let go of the rest."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for process in self._builders:
            _kill(process)
        for task in self._tasks:
            task.cancel()
        for environment in self._environments.values():
            _release(environment)

    # Building.

    def _environment(self, text: str, job_id: bytes, env: EnvKey) -> Environment:
        found = self._environments.get(text)
        if found is None:
            found = self._environments[text] = Environment(text, job_id)
            task = self._server.loop.create_task(self._build(found, dict(env[1:])))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if self._sweeper is None:
                self._sweep_later()
        elif found.error:
            # Not at once: the machine is in the middle of its commands.
            self._server.loop.call_soon(self._settle, found)
        found.used_s = self._server.now()
        return found

    async def _build(self, environment: Environment, env_vars: dict[str, str]) -> None:
        try:
            async with asyncio.timeout(environment.timeout_s):
                error = await self._run_builder(environment, env_vars)
        except TimeoutError:
            last = "\n".join(environment.last_lines[-_LAST_LINES:])
            error = (
                f"it was not ready within {environment.timeout_s:g} s "
                "(setup_timeout_seconds of the runtime_env's config); the last lines "
                f"were:\n{last}"
            )
        except OSError as failure:
            error = f"the process that builds it could not be started: {failure}"
        except ValueError as failure:
            # It was killed in the middle of a line, or a line has no end.
            error = f"the process that builds it said what cannot be read: {failure}"
        environment.error = error
        if error:
            logger.warning("a runtime_env cannot be built: %s", error)
        self._settle(environment)

    async def _run_builder(
        self, environment: Environment, env_vars: dict[str, str]
    ) -> str:
        """Run the builder; why it failed, or an empty text."""
        from rayshim.adapters.environments.build import Told

        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _BUILDER.format(root=_package_root()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_BYTES,
        )
        self._builders.add(process)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(self._order(environment.text, env_vars) + b"\n")
            with contextlib.suppress(OSError):  # it was killed: see below
                await process.stdin.drain()
            while line := await process.stdout.readline():
                told = msgspec.json.decode(line, type=Told)
                if told.error:
                    return told.error
                if told.context is None:
                    environment.last_lines.append(told.log)
                    del environment.last_lines[: -_LAST_LINES * 3]
                    self._show(environment, process.pid, told.log)
                elif self._take_over(environment, told.context):
                    return ""
                else:
                    return "its files were removed while it was built; try again"
            return (
                "the process that builds it ended without an answer (exit code "
                f"{await process.wait()}); see node.log in the session's logs"
            )
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            if process.returncode is None and environment.context is None:
                _kill(process)
            await asyncio.shield(process.wait())
            self._builders.discard(process)

    def _order(self, text: str, env_vars: dict[str, str]) -> bytes:
        from rayshim.adapters.environments.build import Order

        config = self._server.config
        settings = config.settings
        beside = os.path.join(os.path.dirname(config.session_dir), "environments")
        return msgspec.json.encode(
            Order(
                json.loads(text),
                env_vars,
                config.head_address or f"unix:{config.socket_path}",
                config.token_path,
                os.path.join(config.session_dir, "environments"),
                settings.get("runtime_env_cache_dir") or beside,
                settings.get("runtime_env_cache_bytes", 10 << 30),
                settings.get("runtime_env_cache_days", 14.0),
            )
        )

    def _take_over(self, environment: Environment, context: Context) -> bool:
        from rayshim.adapters.environments.cache import hold

        locks = hold(context.locks)
        if locks is None:
            return False
        environment.locks, environment.context = locks, context
        return True

    def _show(self, environment: Environment, pid: int, text: str) -> None:
        server, job_id = self._server, environment.job_id
        lines = text.splitlines() or [text]
        node_ip = server.config.node_ip
        message = wire.LogLines(pid, "runtime_env", "out", lines, node_ip, job_id)
        driver = server.drivers.get(job_id)
        if driver is not None:
            driver.connection.send(message)
        elif server.is_clustered and job_id:
            server.head.send(message)

    def _settle(self, environment: Environment) -> None:
        """Deal with the grants that waited until it was built, or failed."""
        waiting, environment.waiting = environment.waiting, []
        for kept in waiting:
            if environment.error:
                self._fail(kept, environment.error)
            elif self._is_current(kept):
                self._enter(environment, kept)
        if environment.error:
            self._server.loop.call_later(FAILURE_S, self._drop_failed, environment)

    def _drop_failed(self, environment: Environment) -> None:
        if self._environments.get(environment.text) is environment:
            self._settle_rest(environment)
            del self._environments[environment.text]

    def _settle_rest(self, environment: Environment) -> None:
        for kept in environment.waiting:
            self._fail(kept, environment.error)
        environment.waiting = []

    # Entering.

    def _enter(self, environment: Environment, kept: Kept) -> None:
        worker_id = kept.command.worker_id
        message = EnterEnvironment(
            environment.text,
            dict(kept.env[1:]),
            msgspec.json.encode(environment.context).decode(),
        )
        self._server.raylet.leases[
            kept.command.lease_id
        ].note = f"the executor with pid {kept.command.pid} takes up its runtime_env"
        self._entering[worker_id] = kept
        environment.workers.add(worker_id)
        environment.used_s = self._server.now()
        if environment.timeout_s is not None:
            kept.timer = self._server.loop.call_later(
                environment.timeout_s, self._too_late, worker_id, environment.timeout_s
            )
        # An executor that is not connected is about to be reported dead.
        self._server.send_executor(worker_id, message)

    def _too_late(self, worker_id: bytes, timeout_s: float) -> None:
        self._blamed[worker_id] = (
            f"an executor had not taken it up within {timeout_s:g} s "
            "(setup_timeout_seconds of the runtime_env's config); does its "
            "worker_process_setup_hook or py_executable hang?"
        )
        self._server.pool.kill(worker_id)

    def entered(self, peer: Peer, message: EnvironmentEntered) -> None:
        """An executor has taken its environment up, or cannot."""
        kept = self._entering.get(peer.worker_id)
        if kept is None:
            return
        self._forget(kept)
        environment = self._environments[kept.env[0][1]]
        if message.error:
            environment.workers.discard(peer.worker_id)
            self._fail(kept, message.error, dispose=True)
            return
        self._entered[peer.worker_id] = environment
        if self._is_current(kept):
            del self._kept[kept.command.lease_id]
            self._server.raylet.leases[kept.command.lease_id].note = ""
            self._server.tell_grant(kept.command)

    def _is_current(self, kept: Kept) -> bool:
        """Whether the lease machine still holds the lease, on the same executor."""
        lease = self._server.raylet.leases.get(kept.command.lease_id)
        executor = lease.executor if lease is not None else None
        if executor is not None and executor.worker_id == kept.command.worker_id:
            return True
        self._kept.pop(kept.command.lease_id, None)
        return False

    def _forget(self, kept: Kept) -> None:
        self._entering.pop(kept.command.worker_id, None)
        if kept.timer is not None:
            kept.timer.cancel()

    def _fail(self, kept: Kept, reason: str, *, dispose: bool = False) -> None:
        if not self._is_current(kept):
            return
        del self._kept[kept.command.lease_id]
        self._reject(kept, reason)
        self._server.feed(ev.LeaseReturned(kept.command.lease_id, dispose))

    def _reject(self, kept: Kept, reason: str) -> None:
        command = kept.command
        node_ip = self._server.config.node_ip
        text = f"On node {node_ip}: {reason}"
        self._server._tell(
            command.holder, wire.LeaseRejected(command.lease_id, text, "setup")
        )

    # Letting go.

    def _sweep_later(self) -> None:
        self._sweeper = self._server.loop.call_later(KEEP_S / 10, self._sweep)

    def _sweep(self) -> None:
        now = self._server.now()
        for text, environment in list(self._environments.items()):
            is_idle = environment.context is not None and not environment.workers
            if is_idle and now - environment.used_s > KEEP_S:
                _release(environment)
                del self._environments[text]
        self._sweep_later()


#: What the builder runs; its package may be a checkout that is not installed.
_BUILDER = (
    "import os, sys; sys.path.append({root!r}); "
    "from rayshim.adapters.processes.lifeline import die_with_parent; "
    "die_with_parent(os.getppid()); "
    "from rayshim.adapters.environments.build import main; main()"
)


def _package_root() -> str:
    from rayshim.adapters.raylet import config

    # .../rayshim/adapters/raylet/config.py, also through the links of a checkout.
    path = os.path.abspath(config.__file__)
    for _ in range(4):
        path = os.path.dirname(path)
    return path


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _release(environment: Environment) -> None:
    for lock in environment.locks:
        lock.close()
    environment.locks = []
