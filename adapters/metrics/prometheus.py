"""A Prometheus beside a cluster: its configuration, its start and its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

from rayshim.adapters.raylet.metrics_door import TARGETS_FILE

PORT = 9090
#: Beside the configuration: the process that was started.
PID_FILE = "prometheus.pid"
_CONFIG_FILE = "prometheus.yml"


class PrometheusMissing(Exception):
    """There is no Prometheus on this host; the text says what to do."""


def configuration(session_dir: Path) -> str:
    """What Prometheus needs to know of a session: whom to ask, and with which token.

    Args:
        session_dir: folder of the session, which holds both.
    """
    # JSON strings are YAML strings.
    targets = json.dumps(str(session_dir / TARGETS_FILE))
    token = json.dumps(str(session_dir / "token"))
    return "\n".join(
        (
            "global:",
            "  scrape_interval: 10s",
            "scrape_configs:",
            "  - job_name: ray",
            "    authorization:",
            "      type: Bearer",
            f"      credentials_file: {token}",
            "    file_sd_configs:",
            f"      - files: [{targets}]",
            "        refresh_interval: 10s",
            "",
        )
    )


def write_configuration(session_dir: Path) -> Path:
    """Writes it to the folder of the session.

    Returns:
        The file.
    """
    folder = session_dir / "metrics" / "prometheus"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / _CONFIG_FILE
    path.write_text(configuration(session_dir))
    return path


def launch(session_dir: Path) -> tuple[int, Path]:
    """Starts the Prometheus of this host for a session, on loopback.

    Returns:
        Its process id, and its configuration.

    Raises:
        PrometheusMissing: it is not installed.
    """
    path = write_configuration(session_dir)
    binary = shutil.which("prometheus")
    if binary is None:
        raise PrometheusMissing(
            "there is no program 'prometheus' on the PATH of this host; nothing is "
            "downloaded for you. Install it (https://prometheus.io/download), or start "
            f"one elsewhere with --config.file={path}"
        )
    with open(path.with_name("prometheus.log"), "ab") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={path}",
                f"--web.listen-address=127.0.0.1:{PORT}",
                f"--storage.tsdb.path={path.with_name('data')}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    path.with_name(PID_FILE).write_text(str(process.pid))
    return process.pid, path


def shut_down(session_dir: Path) -> int | None:
    """Ends the Prometheus that :func:`launch` started.

    Returns:
        Its process id; None if there is none.
    """
    pid_file = session_dir / "metrics" / "prometheus" / PID_FILE
    try:
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    if b"prometheus" not in command:
        return None  # another process has the number now
    os.kill(pid, signal.SIGTERM)
    pid_file.unlink(missing_ok=True)
    return pid
