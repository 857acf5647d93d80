"""A session of a driver: the node process, and the peer that speaks to it."""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import current
from rayshim._core.init_options import InitOptions

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

logger = logging.getLogger("rayshim")

#: What a Unix socket address holds (sun_path, less its end mark).
_MAX_SOCKET_PATH_BYTES = 107
#: ``/s<pid>-<8 hex>/sockets/w-<16 hex>.sock`` comes after the root.
_MAX_ROOT_BYTES = (
    _MAX_SOCKET_PATH_BYTES - len("/s1234567-12345678/sockets/w-.sock") - 16
)
#: A folder whose driver is not seen is left alone for this long.
STALE_AFTER_S = 10.0

_FIRST_JOB = (1).to_bytes(4, "little")


class Session:
    """What ``init`` starts and ``shutdown`` ends."""

    def __init__(self, options: InitOptions) -> None:
        self.options = options
        self.name = f"s{os.getpid()}-{os.urandom(4).hex()}"
        self.node_id = os.urandom(28).hex()
        self.namespace = options.namespace or str(uuid.uuid4())
        self.job_id = _FIRST_JOB
        self.folder = _session_root(options.temp_dir) / self.name
        self.store_dir = _store_root(self.folder) / (
            f"rayshim-{self.name}-{self.node_id[:8]}"
        )
        self.peer: Peer | None = None
        self.started_s = time.time()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._previous_sigint: Any = None
        self._log_printer: Any = None

    # -- start -------------------------------------------------------------------

    def start(self) -> None:
        """Start the node process and connect to it.

        Raises:
            RaySystemError: the node process did not come up; the text says why.
        """
        _occupy_standard_streams()
        _remove_stale(self.folder.parent)
        for folder in (self.folder, self.folder / "sockets", self.folder / "logs"):
            folder.mkdir(mode=0o700)
        self.store_dir.mkdir(mode=0o700)
        token = os.urandom(32)
        token_path = self.folder / "token"
        with os.fdopen(
            os.open(token_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as file:
            file.write(token.hex())
        try:
            ready = self._start_process(token_path)
            # These imports overlap the start of the node process.
            from rayshim._core.peer import Peer

            answer = self._read_ready(ready)
            worker_id = self.job_id + b"\xff" * 24
            self.peer = peer = Peer(
                role="driver",
                address=f"unix:{self.folder}/sockets/driver.sock",
                worker_id=worker_id,
                job_id=self.job_id,
                node_id=self.node_id,
                raylet_address=answer["address"],
                token=token,
                store_dir=str(self.store_dir),
                namespace=self.namespace,
                settings=self.options.settings,
                session=self.name,
                session_dir=str(self.folder),
                node_ip=answer.get("node_ip", "127.0.0.1"),
            )
            peer.job_env = dict(self.options.env_vars)
            peer.runtime_env = dict(self.options.runtime_env)
            peer.labels = {"ray.io/node-id": self.node_id, **self.options.labels}
            self._start_logs(peer)
            peer.start()
            peer.reactor.start("rayshim-io")
        except BaseException:
            self._end_process(0.0)
            self._remove_folders()
            raise
        self._install_sigint(peer)
        current.set_peer(peer)

    def _start_process(self, token_path: Path) -> int:
        lifeline_read, self._lifeline = os.pipe()
        ready_read, ready_write = os.pipe()
        package_root = str(Path(__file__).resolve().parents[2])
        code = (
            f"import sys; sys.path.append({package_root!r}); "
            "from rayshim.adapters.raylet.main import main; main()"
        )
        options = self.options
        config = {
            "session": self.name,
            "session_dir": str(self.folder),
            "store_dir": str(self.store_dir),
            "node_id": self.node_id,
            "token_path": str(token_path),
            "resources": options.resources,
            "labels": options.labels,
            "prestart": self._prestart(),
            "preload": ["cloudpickle", "numpy", "rayshim._core.executor"],
            "executor_entry": "rayshim._core.executor:main",
            "lifeline_fd": lifeline_read,
            "ready_fd": ready_write,
            "sys_path": _executor_path(),
            "namespace": self.namespace,
            "job_id": self.job_id.hex(),
            "settings": asdict(options.settings),
        }
        log = open(self.folder / "logs" / "node.log", "ab", opener=_private)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(lifeline_read, ready_write),
                start_new_session=True,
                env={**os.environ, **options.env_vars},
            )
        finally:
            log.close()
            os.close(lifeline_read)
            os.close(ready_write)
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(json.dumps(config).encode())
        return ready_read

    def _prestart(self) -> int:
        wanted = self.options.settings.prestart_executors
        if wanted >= 0:
            return wanted
        return min(64, int(self.options.resources.get("CPU", 1)))

    def _read_ready(self, ready: int) -> dict[str, Any]:
        limit_s = self.options.settings.start_timeout_s
        deadline = time.monotonic() + limit_s
        data = b""
        try:
            while not data.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([ready], [], [], left)[0]:
                    raise exceptions.RaySystemError(
                        TimeoutError(
                            f"the node process did not come up within {limit_s:g} s "
                            "(setting start_timeout_s); it says:\n" + self._node_log()
                        )
                    )
                chunk = os.read(ready, 65536)
                if not chunk:
                    break
                data += chunk
        finally:
            os.close(ready)
        answer = json.loads(data) if data else {}
        if "address" not in answer:
            reason = answer.get("error", "it ended without a word")
            raise exceptions.RaySystemError(
                RuntimeError(f"the node process failed: {reason}\n{self._node_log()}")
            )
        return dict(answer)

    def _node_log(self) -> str:
        try:
            return (self.folder / "logs" / "node.log").read_text()[-4000:]
        except OSError:
            return "(no log)"

    def _start_logs(self, peer: Peer) -> None:
        if self.options.log_to_driver:
            from rayshim._core.logprint import LogPrinter

            self._log_printer = LogPrinter(peer, peer.settings.log_fold_s)
            peer.on_log = self._log_printer.accept

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
        peer, self.peer = self.peer, None
        if peer is not None:
            try:
                peer.request("shutdown", timeout_s=3.0)
            except exceptions.RayError:
                pass  # it is gone or stuck: the lifeline and SIGKILL follow
            finally:
                peer.close()
        if current.peer is peer:
            current.set_peer(None)
        if self._log_printer is not None:
            self._log_printer.close()
        self._end_process(2.0)
        self._remove_folders()
        if self._previous_sigint is not None:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, self._previous_sigint)
            self._previous_sigint = None

    def _end_process(self, patience_s: float) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _remove_folders(self) -> None:
        shutil.rmtree(self.store_dir, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def forget_after_fork(self) -> None:
        """A forked child has nothing to end."""
        self.peer = None
        self._process = None
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _occupy_standard_streams() -> None:
    """Open the null device where standard input, output or error is closed.

    Else a pipe or socket of the session would get the number, and a C library that
    prints, or the start of a process, would destroy it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _session_root(temp_dir: str | None) -> Path:
    name = f"rayshim-{os.getuid()}"
    root = Path(temp_dir or tempfile.gettempdir()).absolute() / name
    if len(os.fsencode(root)) > _MAX_ROOT_BYTES:
        if temp_dir:
            raise ValueError(
                f"_temp_dir {temp_dir!r} is too long: the path of a socket holds "
                f"{_MAX_SOCKET_PATH_BYTES} bytes, which leaves "
                f"{_MAX_ROOT_BYTES - len(name) - 1} for it"
            )
        root = Path("/tmp") / name
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{root} belongs to another user; remove it or pass _temp_dir"
        )
    return root


def _remove_stale(root: Path) -> None:
    """Remove what sessions left whose driver and node process were both killed."""
    for folder in root.glob("s*-*"):
        pid = folder.name[1:].partition("-")[0]
        if not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
            continue
        # The folder may be shared with a container whose processes are not seen here.
        if _is_served(folder) or time.time() - folder.stat().st_mtime < STALE_AFTER_S:
            continue
        for store in _store_root(folder).glob(f"rayshim-{folder.name}-*"):
            shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _is_served(folder: Path) -> bool:
    for path in folder.glob("sockets/node-*.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                continue
            return True
    return False


def _store_root(folder: Path) -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else folder


def _executor_path() -> list[str]:
    """Where executors look for modules: as the driver does."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = "/"  # somebody removed the current folder
    path = [os.path.normpath(os.path.join(here, entry)) for entry in sys.path]
    if here not in path:
        path.append(here)
    return [entry for entry in path if os.path.exists(entry)]


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
        new.start()
        session = new
        return new


def close_session() -> None:
    """End the open session, if any."""
    global session
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
