"""``rayshim stack``: what the processes of a cluster do right now."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys

import click

#: Seconds that one look of py-spy may take.
_LIMIT_S = 20.0


@click.command()
@click.option(
    "--address",
    default=None,
    help="Of the cluster; by default the newest of this host.",
)
@click.option(
    "--native",
    is_flag=True,
    help="With frames of C code: py-spy must be installed, and may need root.",
)
@click.option("--pid", type=int, default=None, help="Only this process.")
@click.option(
    "--timeout", type=float, default=5.0, show_default=True, help="Seconds to wait."
)
def stack(address: str | None, native: bool, pid: int | None, timeout: float) -> None:
    """Print the stacks of all drivers and executors of a cluster.

    Each process is asked for its own, which needs no rights. One that does not answer
    (it may be stopped, or in C code that keeps the interpreter) is looked at with
    py-spy, if that is installed and the process is on this host.
    """
    from rayshim._core import asking

    try:
        with asking.control_of(address) as control:
            heard = asking.ask(control, "stack", to="processes", limit_s=timeout)
            nodes = control.ask("node_table")
    except (ConnectionError, RuntimeError, ValueError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    here = {row["node_id"] for row in nodes if row["hostname"] == os.uname().nodename}
    shown = 0
    for answer in heard.answers:
        if pid is not None and answer.pid != pid:
            continue
        shown += 1
        click.echo(f"== {answer.role} pid {answer.pid}, node {answer.node_id[:12]}")
        text = ""
        if native and answer.node_id in here:
            text = _py_spy(answer.pid, native=True)
        click.echo(text or answer.payload.decode(errors="replace"))
        click.echo()
    for line in heard.silent:
        number = _pid_of(line)
        if pid is not None and number != pid:
            continue
        shown += 1
        click.echo(f"== {line}")
        click.echo(_py_spy(number, native=native) or _ADVICE)
        click.echo()
    if not shown:
        click.echo("no process of the cluster" + (f" has pid {pid}" if pid else ""))
        sys.exit(1)


_ADVICE = (
    "(py-spy, which can look at it from outside, is not installed, is not allowed to, "
    "or the process is on another host: pip install py-spy; sudo py-spy dump --pid PID)"
)


def _pid_of(line: str) -> int:
    """The process that gave no answer, from how it is told."""
    words = line.replace(":", " ").split()
    for word, following in itertools.pairwise(words):
        if word == "pid" and following.isdigit():
            return int(following)
    return 0


def _py_spy(pid: int, *, native: bool) -> str:
    program = shutil.which("py-spy") or shutil.which(
        "py-spy", path=os.path.dirname(sys.executable)
    )
    if program is None or not os.path.exists(f"/proc/{pid}"):
        return ""
    command = [program, "dump", "--pid", str(pid)]
    if native:
        command.append("--native")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
