"""A session of a driver: the node process, and the peer that speaks to it."""

from __future__ import annotations

import atexit
import dataclasses
import importlib
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import current, job_setup, session_folders
from rayshim._core.init_options import InitOptions
from rayshim._core.node_launch import NodeProcess, node_config
from rayshim._core.runtime_env_merge import set_for_job

if TYPE_CHECKING:
    from rayshim._core.logprint import LogPrinter
    from rayshim._core.peer import Peer

logger = logging.getLogger("rayshim")

_FIRST_JOB = (1).to_bytes(4, "little")


class Session:
    """What ``init`` starts and ``shutdown`` ends."""

    def __init__(self, options: InitOptions) -> None:
        self.options = options
        self.name = session_folders.new_name()
        self.node_id = os.urandom(28).hex()
        self.namespace = options.namespace or str(uuid.uuid4())
        self.job_id = _FIRST_JOB
        self.folder = session_folders.session_root(options.temp_dir) / self.name
        self.store_dir = session_folders.store_of(self.folder, self.node_id)
        self.peer: Peer | None = None
        #: ``HOST:PORT``; empty without a dashboard.
        self.dashboard_url = ""
        self._process: NodeProcess | None = None
        self._previous_sigint: Any = None
        self._log_printer: LogPrinter | None = None
        self._leave_notebook: Callable[[], None] | None = None

    # -- start -------------------------------------------------------------------

    def start(self) -> None:
        """Start the node process and connect to it.

        Raises:
            RaySystemError: the node process did not come up; the text says why.
        """
        session_folders.occupy_standard_streams()
        session_folders.remove_stale(self.folder.parent)
        token = os.urandom(32)
        token_path = session_folders.make(self.folder, self.store_dir, token)
        try:
            self._process = NodeProcess(
                self._node_config(token_path), self.options.env_vars
            )
            # Its imports overlap the start of the node process.
            importlib.import_module("rayshim._core.peer")
            answer = self._process.wait_ready(self.options.settings.start_timeout_s)
            url = str(answer.get("dashboard_url", ""))
            self.dashboard_url = url.partition("://")[2]
            self._open_peer(
                socket_path=self.folder / "sockets" / "driver.sock",
                raylet_address=answer["address"],
                token=token,
                node_ip=answer.get("node_ip", "127.0.0.1"),
                labels=self.options.labels,
            )
        except BaseException:
            self._end_process(0.0)
            self._remove_folders()
            raise

    def _open_peer(
        self,
        *,
        socket_path: Path,
        raylet_address: str,
        token: bytes,
        node_ip: str,
        labels: dict[str, str],
        control_address: str = "",
        listen_ip: str = "",
    ) -> None:
        from rayshim._core.peer import Peer

        self.peer = peer = Peer(
            role="driver",
            address=f"unix:{socket_path}",
            worker_id=self.job_id + b"\xff" * 24,
            job_id=self.job_id,
            node_id=self.node_id,
            raylet_address=raylet_address,
            token=token,
            store_dir=str(self.store_dir),
            namespace=self.namespace,
            settings=self.options.settings,
            session=self.name,
            session_dir=str(self.folder),
            node_ip=node_ip,
            control_address=control_address,
            listen_ip=listen_ip,
        )
        if self.options.job_setup:
            job_setup.begin(peer, self.options.job_setup)
        peer.labels = {"ray.io/node-id": self.node_id, **labels}
        self._start_logs(peer)
        peer.start()
        peer.reactor.start("rayshim-io")
        try:
            set_for_job(peer, self.options.runtime_env)
        except BaseException:
            self.peer = None
            peer.close()
            raise
        self._install_sigint(peer)
        current.set_peer(peer)
        if "ipykernel" in sys.modules:
            from rayshim._core import notebook

            self._leave_notebook = notebook.attach(peer, self._install_sigint)

    def _node_config(self, token_path: Path) -> dict[str, Any]:
        config = node_config(
            self.options, self.folder, self.store_dir, self.node_id, token_path
        )
        return {**config, "namespace": self.namespace, "job_id": self.job_id.hex()}

    def _start_logs(self, peer: Peer) -> None:
        if self.options.log_to_driver:
            self.log_printer()

    def log_printer(self) -> LogPrinter:
        """Shows what executors print; made when it is first asked for."""
        if self._log_printer is None:
            from rayshim._core.logprint import DriverLog, LogPrinter

            assert self.peer is not None
            shown = DriverLog.from_environment(self.peer.settings.log_fold_s)
            if "logging" in self.options.job_setup:
                # Lines say where they come from themselves.
                shown = dataclasses.replace(shown, prefix=False)
            self._log_printer = LogPrinter(self.peer, shown)
            self.peer.on_log = self._log_printer.accept
        return self._log_printer

    def _install_sigint(self, peer: Peer) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return  # the program, or a notebook, has its own

        def interrupt(number: int, frame: FrameType | None) -> None:
            if peer.ended or not peer.reactor.defer_interrupt():
                raise KeyboardInterrupt
            timer = threading.Timer(0.01, peer.reactor.interrupt_main)
            timer.daemon = True
            timer.start()

        self._previous_sigint = signal.signal(signal.SIGINT, interrupt)

    # -- end ---------------------------------------------------------------------

    def end(self) -> None:
        """Stop everything that belongs to the session. Idempotent."""
        peer = self.peer
        if peer is not None:
            job_setup.end()
            try:
                self._end_remote()
            finally:
                self.peer = None
                peer.close()
        if current.peer is peer:
            current.set_peer(None)
        if self._log_printer is not None:
            self._log_printer.close()
        self._end_process(2.0)
        self._remove_folders()
        if self._leave_notebook is not None:
            self._leave_notebook()
            self._leave_notebook = None
        if self._previous_sigint is not None:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, self._previous_sigint)
            self._previous_sigint = None

    def _end_remote(self) -> None:
        """Have the node end everything before its process is waited for."""
        assert self.peer is not None
        try:
            self.peer.request("shutdown", timeout_s=3.0)
        except exceptions.RayError:
            pass  # it is gone or stuck: the lifeline and SIGKILL follow

    def _end_process(self, patience_s: float) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(patience_s)

    def _remove_folders(self) -> None:
        session_folders.remove(self.folder, self.store_dir)

    def forget_after_fork(self) -> None:
        """A forked child has nothing to end."""
        self.peer = None
        if self._process is not None:
            self._process.forget()
            self._process = None


#: The open session of this process; changed under the lock.
session: Session | None = None
_lock = threading.RLock()


def open_session(options: InitOptions) -> Session:
    """Start a session.

    Raises:
        RuntimeError: one is open already.
    """
    global session
    with _lock:
        if session is not None:
            raise RuntimeError(
                "Maybe you called ray.init twice by accident? A session is open "
                f"({session.name}); call shutdown() first, or pass "
                "ignore_reinit_error=True."
            )
        new = Session(options)
        if options.address:
            from rayshim._core.attached import AttachedSession

            new = AttachedSession(options, options.address)
        new.start()
        session = new
        return new


#: Called before the session ends, the last first: they close what needs it.
before_close: list[Callable[[], None]] = []


def close_session() -> None:
    """End the open session, if any."""
    global session
    while before_close:
        try:
            before_close.pop()()
        except Exception:
            logger.exception("something that depends on the session did not close")
    with _lock:
        old, session = session, None
        if old is not None:
            old.end()


def auto_init() -> None:
    """Open a session with defaults, on the first use of the API.

    Raises:
        RuntimeError: in a child forked from a driver or executor.
    """
    if current.forked:
        raise RuntimeError(
            "this process was forked from one with a rayshim session, which it cannot "
            "share: its channels belong to the parent. Call ray.init() here to start a "
            "session of its own, or start the process with the spawn method."
        )
    with _lock:
        if session is None:
            open_session(InitOptions.validate())


def _after_fork() -> None:
    global session
    if session is not None:
        session.forget_after_fork()
        session = None


def allow_after_fork() -> None:
    """An explicit ``init`` in a forked child is meant."""
    current.forked = False


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_session)
