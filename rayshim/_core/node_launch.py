"""Starts the process of a node or head, and hears when it is ready."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rayshim import exceptions
from rayshim._core import session_folders
from rayshim._core.init_options import InitOptions

#: Modules that the fork server loads before it forks executors, and their entry.
PRELOAD = ["cloudpickle", "numpy", "rayshim._core.executor"]
EXECUTOR_ENTRY = "rayshim._core.executor:main"


def node_config(
    options: InitOptions, folder: Path, store_dir: Path, node_id: str, token_path: Path
) -> dict[str, Any]:
    """What every process with a raylet is told; see docs/design.md ("Start")."""
    prestart = options.settings.prestart_executors
    if prestart < 0:
        prestart = min(64, int(options.resources.get("CPU", 1)))
    return {
        "session": folder.name,
        "session_dir": str(folder),
        "store_dir": str(store_dir),
        "node_id": node_id,
        "token_path": str(token_path),
        "resources": options.resources,
        "labels": options.labels,
        "prestart": prestart,
        "preload": PRELOAD,
        "executor_entry": EXECUTOR_ENTRY,
        "sys_path": session_folders.executor_path(),
        "settings": asdict(options.settings),
    }


class NodeProcess:
    """A node or head process that lives as long as this object is not ended.

    Args:
        config: as listed in docs/design.md ("Start"), without the descriptors.
        env_vars: added to its environment, which executors inherit.
    """

    def __init__(self, config: dict[str, Any], env_vars: dict[str, str]) -> None:
        self.config = config
        self._logs = Path(config["session_dir"]) / "logs"
        lifeline_read, self._lifeline = os.pipe()
        self._ready, ready_write = os.pipe()
        package_root = str(Path(__file__).resolve().parents[2])
        code = (
            f"import sys; sys.path.append({package_root!r}); "
            "from rayshim.adapters.raylet.main import main; main()"
        )
        log = open(self._logs / "node.log", "ab", opener=_private)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(lifeline_read, ready_write),
                start_new_session=True,
                env={**os.environ, **env_vars},
            )
        finally:
            log.close()
            os.close(lifeline_read)
            os.close(ready_write)
        full = {**config, "lifeline_fd": lifeline_read, "ready_fd": ready_write}
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            stdin.write(json.dumps(full).encode())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def wait_ready(self, limit_s: float) -> dict[str, Any]:
        """What the process says when it listens: ``address``, ``node_ip``, ``pid``.

        Raises:
            RaySystemError: it did not come up; the text says why.
        """
        deadline = time.monotonic() + limit_s
        ready, self._ready = self._ready, -1
        data = b""
        try:
            while not data.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([ready], [], [], left)[0]:
                    raise exceptions.RaySystemError(
                        TimeoutError(
                            f"the node process did not come up within {limit_s:g} s "
                            "(setting start_timeout_s); it says:\n" + self.last_words()
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
                RuntimeError(f"the node process failed: {reason}\n{self.last_words()}")
            )
        return dict(answer)

    def last_words(self) -> str:
        """The end of its log."""
        try:
            return (self._logs / "node.log").read_text()[-4000:]
        except OSError:
            return "(no log)"

    def end(self, patience_s: float) -> None:
        """Let it end, and kill it if that takes too long. Idempotent."""
        self.forget()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """Close this side of the pipes; in a forked child, nothing else happens."""
        for fd in (self._lifeline, self._ready):
            if fd >= 0:
                os.close(fd)
        self._lifeline = self._ready = -1


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
