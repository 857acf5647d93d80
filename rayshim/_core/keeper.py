"""The keeper: the process that ``rayshim start`` leaves behind on a host.

It holds the lifelines of the head (on its host) and of the host's node, starts them
again when they were killed, and ends with them on SIGTERM (``rayshim stop``). If it is
killed itself, the pipes close and both end by themselves.

A head that died is started again at its port, on its journal; a node that died comes
back as a new one, as its values and executors are gone. What dies too often is given
up, and a node that left because it was asked to is not started again: on a host without
a head the keeper then ends, with ``DRAINED_CODE`` if the node was drained.

Who started the keeper writes one JSON object to its stdin (:class:`Plan`), and reads
one line from a pipe: what was started, or ``{"error": text}``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rayshim._core import session_folders
from rayshim._core.init_options import InitOptions
from rayshim._core.node_launch import node_config
from rayshim.adapters.raylet.config import DRAINED_CODE
from rayshim.adapters.wire.address import place_of
from rayshim.adapters.wire.oneshot import OneShot
from rayshim.cluster_utils import ClusterNode

logger = logging.getLogger("rayshim.keeper")

#: So many deaths of one process within so many seconds are too many.
MAX_DEATHS, DEATHS_WITHIN_S = 5, 120.0
#: Seconds between looks at whether a node has joined.
JOIN_LOOK_S = 0.02
#: Seconds that a port may be in use by the head's former life.
PORT_FREE_S = 10.0


@dataclass
class Plan:
    """What a keeper starts."""

    #: Of the head to start; None on a host that joins a cluster.
    head: dict[str, Any] | None
    #: Address of the head to join (``tcp:...``); empty if it is started here.
    head_address: str
    #: Hex.
    token: str
    #: IP address to listen at, and by which others reach it.
    node_ip: str
    #: Arguments of ``InitOptions.validate`` for the node.
    node: dict[str, Any] = field(default_factory=dict)
    #: More of the node's configuration (see ``NodeConfig``).
    node_more: dict[str, Any] = field(default_factory=dict)
    temp_dir: str | None = None
    #: Ends with whoever holds the other end; -1: nobody (the keeper stays).
    lifeline_fd: int = -1
    ready_fd: int = -1
    start_timeout_s: float = 60.0


class Keeper:
    """Starts what a plan says, and keeps it running."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._token = bytes.fromhex(plan.token)
        self._root = session_folders.session_root(plan.temp_dir)
        self._head: ClusterNode | None = None
        self._node: ClusterNode | None = None
        self._head_address = plan.head_address
        #: Process name -> times of its deaths.
        self._deaths: dict[str, list[float]] = {}
        self._wish_r, self._wish_w = os.pipe()
        os.set_blocking(self._wish_w, False)
        self.note = self._root / f"keeper-{os.getpid()}.json"
        self.exit_code = 0
        #: Why everything ends, once it does.
        self._over = ""

    # -- start -------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        """Start everything.

        Returns:
            What the user is told: ``address``, ``node_id``, ``node_ip``, ``pid``,
            ``session_dir``, ``dashboard_url``.

        Raises:
            RaySystemError: a process did not come up; the text says why.
            TimeoutError: the node did not join.
        """
        session_folders.remove_stale(self._root)
        remove_stale_notes(self._root)
        session_folders.note_root(self._root)
        if self._plan.head is not None:
            self._start_head(self._plan.head)
        self._start_node()
        assert self._node is not None
        with OneShot(self._head_address, self._token) as head:
            info = head.ask("cluster_info")
        facts = {
            "address": place_of(self._head_address),
            "node_id": self._node.node_id,
            "node_ip": self._plan.node_ip,
            "pid": os.getpid(),
            "is_head": self._head is not None,
            "session_dir": str((self._head or self._node)._folder),
            "dashboard_url": info.get("dashboard_url", ""),
            "client_port": info.get("client_port", 0),
            "started_s": time.time(),
        }
        _write_private(self.note, json.dumps(facts))
        return facts

    def _start_head(self, more: dict[str, Any]) -> None:
        folder = self._root / session_folders.new_name()
        token_path = session_folders.make(folder, None, self._token)
        config = {
            "session": folder.name,
            "session_dir": str(folder),
            "node_id": os.urandom(28).hex(),
            "token_path": str(token_path),
            "with_raylet": False,
            "listen_ip": self._plan.node_ip,
            "origin": "start",
            **more,
        }
        self._head = ClusterNode(config, folder, None)
        self._launch(self._head)
        self._head_address = self._head.process_address
        # A restart has to be found at the same place.
        port = int(place_of(self._head_address).rpartition(":")[2])
        self._head.config = {**config, "port": port}

    def _start_node(self) -> None:
        plan = self._plan
        options = InitOptions.validate(
            address="local", configure_logging=False, **plan.node
        )
        node_id = os.urandom(28).hex()
        folder = self._root / session_folders.new_name()
        store_dir = session_folders.store_of(folder, node_id)
        token_path = session_folders.make(folder, store_dir, self._token)
        config = {
            **node_config(options, folder, store_dir, node_id, token_path),
            "with_raylet": True,
            "head_address": self._head_address,
            "listen_ip": plan.node_ip,
            "is_head_node": self._head is not None,
            "origin": "start",
            **plan.node_more,
        }
        self._node = ClusterNode(config, folder, store_dir)
        self._launch(self._node)
        self._wait_joined(node_id)

    def _launch(self, node: ClusterNode) -> None:
        node.launch()
        node.wait_ready(self._plan.start_timeout_s)

    def _wait_joined(self, node_id: str) -> None:
        deadline = time.monotonic() + self._plan.start_timeout_s
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(ConnectionError),
                OneShot(self._head_address, self._token) as head,
            ):
                while time.monotonic() < deadline:
                    for row in head.ask("node_table"):
                        if row["node_id"] == node_id and row["alive"]:
                            return
                    time.sleep(JOIN_LOOK_S)
            self._look_at_head()
            time.sleep(JOIN_LOOK_S)
        raise TimeoutError(
            f"node {node_id[:8]} did not join the cluster at "
            f"{place_of(self._head_address)} within {self._plan.start_timeout_s:g} s"
        )

    def _look_at_head(self) -> None:
        """Starts a head again that was killed while a node wants to join it.

        Raises:
            RuntimeError: it is not started again.
        """
        head = self._head
        if head is None or head.process is None:
            return
        if head.process.process.poll() is not None:
            self._died(head)
            if self._over:
                raise RuntimeError(self._over)

    # -- life --------------------------------------------------------------------

    def ask_to_end(self, number: int = 0, frame: object = None) -> None:
        """End soon; may be called from a signal handler."""
        with contextlib.suppress(OSError):
            os.write(self._wish_w, b"x")

    def run(self) -> None:
        """Keep everything running until it is asked to end, or nothing is left."""
        while self._head is not None or self._node is not None:
            watched: dict[int, ClusterNode] = {}
            for one in (self._head, self._node):
                if one is not None and one.process is not None:
                    try:
                        watched[os.pidfd_open(one.pid)] = one
                    except ProcessLookupError:
                        one.process.process.poll()
            fds = [*watched, self._wish_r]
            if self._plan.lifeline_fd >= 0:
                fds.append(self._plan.lifeline_fd)
            try:
                ready, _, _ = select.select(fds, [], [])
            finally:
                for fd in watched:
                    os.close(fd)
            if self._wish_r in ready or self._plan.lifeline_fd in ready:
                return
            for fd in ready:
                self._died(watched[fd])

    def _died(self, one: ClusterNode) -> None:
        assert one.process is not None
        code = one.process.process.wait()
        is_head = one is self._head
        name = "head" if is_head else "node"
        words = one.process.last_words()[-1000:].strip() or "nothing"
        logger.warning(
            "the %s (pid %d) ended with code %d; it said last: %s",
            name,
            one.pid,
            code,
            words,
        )
        if is_head:
            one.process.end(0.0)
        else:
            one.kill()  # what it left goes, too
            self._node = None
        if code in (0, DRAINED_CODE):
            # It was asked to leave, or the cluster was ended.
            if is_head or self._head is None:
                self._give_up("", code)
            return
        now = time.monotonic()
        deaths = self._deaths.setdefault(name, [])
        deaths[:] = [*(at for at in deaths if now - at < DEATHS_WITHIN_S), now]
        if len(deaths) > MAX_DEATHS:
            last = words.splitlines()[-1]
            self._give_up(
                f"the {name} died {len(deaths)} times; it said last: {last}", 1
            )
            return
        try:
            if is_head:
                self._again(lambda: self._launch(one))
            else:
                self._start_node()
        except Exception as error:
            self._give_up(f"the {name} cannot be started again: {error}", 1)

    def _again(self, launch: Callable[[], None]) -> None:
        """Its ports may be held for a moment by what has just died."""
        deadline = time.monotonic() + PORT_FREE_S
        while True:
            try:
                return launch()
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _give_up(self, reason: str, code: int) -> None:
        if reason:
            logger.error("%s: everything here ends", reason)
        self._over = self._over or reason or "the head ended"
        self.exit_code = self.exit_code or code
        self.ask_to_end()

    def end(self) -> None:
        """End the node, then the head; removes what they leave. Idempotent."""
        for one in (self._node, self._head):
            if one is not None:
                one.end()
        self._node = self._head = None
        self.note.unlink(missing_ok=True)


def main() -> None:
    """Run a keeper; the plan comes on stdin."""
    plan = Plan(**json.loads(sys.stdin.read()))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keeper = Keeper(plan)
    signal.signal(signal.SIGTERM, keeper.ask_to_end)
    try:
        try:
            answer: dict[str, Any] = keeper.start()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
            keeper.exit_code = 1
        if plan.ready_fd >= 0:
            with contextlib.suppress(OSError):
                os.write(plan.ready_fd, json.dumps(answer).encode() + b"\n")
            os.close(plan.ready_fd)
        if "error" not in answer:
            keeper.run()
    finally:
        keeper.end()
    sys.stdout.flush()
    os._exit(keeper.exit_code)


# -- for those who start and end keepers ---------------------------------------------


def launch(plan: Plan, folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a keeper, and wait for what it says.

    Args:
        plan: without the descriptors, but for ``lifeline_fd`` if there is one.
        folder: on whose disk its first words are kept, in a file without a name, so
            that nobody who is killed leaves one.

    Returns:
        The process, and its answer; see :meth:`Keeper.start`.

    Raises:
        RuntimeError: it could not start everything; the text says why.
    """
    ready, ready_write = os.pipe()
    package_root = str(Path(__file__).resolve().parents[2])
    code = (
        f"import sys; sys.path.append({package_root!r}); "
        "from rayshim._core.keeper import main; main()"
    )
    passed = [ready_write] + ([plan.lifeline_fd] if plan.lifeline_fd >= 0 else [])
    with tempfile.TemporaryFile(dir=folder) as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=passed,
            start_new_session=True,
            cwd="/" if not os.path.isdir(os.getcwd()) else None,
        )
        os.close(ready_write)
        assert process.stdin is not None
        with process.stdin as stdin, contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({**asdict(plan), "ready_fd": ready_write}).encode())
        with os.fdopen(ready, "rb") as pipe:
            line = pipe.readline()
        answer = json.loads(line) if line else {}
        if "address" not in answer:
            process.wait()
            log.seek(0)
            words = log.read()[-2000:].decode(errors="replace") if not answer else ""
            raise RuntimeError(answer.get("error") or f"the keeper ended: {words}")
    return process, answer


@dataclass(frozen=True)
class RunningKeeper:
    """A keeper of this user on this host."""

    pid: int
    #: As :meth:`Keeper.start` returned it.
    facts: dict[str, Any]
    note: Path


def running_keepers(temp_dir: str | None = None) -> list[RunningKeeper]:
    """The keepers of this user on this host, the newest first.

    Args:
        temp_dir: where sessions are, if not in the usual folder.
    """
    found = []
    roots = session_folders.known_roots(temp_dir)
    for note in (note for root in roots for note in root.glob("keeper-*.json")):
        pid = int(note.stem.partition("-")[2])
        if not is_keeper(pid):
            continue
        with contextlib.suppress(OSError, ValueError):
            found.append(RunningKeeper(pid, json.loads(note.read_text()), note))
    return sorted(found, key=lambda one: -float(one.facts["started_s"]))


def is_keeper(pid: int) -> bool:
    """Whether a process is a keeper; its number may have gone to another one."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return b"rayshim._core.keeper" in words and state != "Z"


def remove_stale_notes(root: Path) -> None:
    """Remove what keepers left that were killed."""
    for note in root.glob("keeper-*.json"):
        if not is_keeper(int(note.stem.partition("-")[2])):
            note.unlink(missing_ok=True)


def _write_private(path: Path, text: str) -> None:
    scratch = path.with_suffix(f".{uuid.uuid4().hex[:8]}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(scratch, flags, 0o600), "w") as file:
        file.write(text)
    os.replace(scratch, path)
