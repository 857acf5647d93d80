"""``rayshim debug``: connects to breakpoints of tasks and actors."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

import click

#: How the debugger asks.
PROMPT = b"(Pdb) "


class _Input:
    """Standard input by lines, unbuffered."""

    def __init__(self) -> None:
        self._data = b""
        self.is_at_end = False

    def line(self) -> bytes:
        """The next line; empty at the end."""
        while b"\n" not in self._data and not self.is_at_end:
            data = os.read(0, 1 << 16)
            self.is_at_end = not data
            self._data += data
        line, end, self._data = self._data.partition(b"\n")
        return line + end


@click.command()
@click.option(
    "--address",
    default=None,
    help="Of the cluster; by default the newest of this host.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show more of each breakpoint.")
def debug(address: str | None, verbose: bool) -> None:
    """List calls that wait at a breakpoint (rpdb.set_trace()), and debug one."""
    from rayshim._core import asking

    try:
        with asking.control_of(address) as control:
            user = _Input()
            while _one_round(control, user, verbose):
                pass
    except (ConnectionError, RuntimeError, ValueError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)


def _one_round(control: Any, user: _Input, verbose: bool) -> bool:
    """Lists, asks, debugs; False when the user has had enough."""
    waiting = _waiting(control)
    if not waiting:
        click.echo("no call waits at a breakpoint")
    for number, one in enumerate(waiting):
        click.echo(f"{number}: {one['task'] or 'a thread'} at {one['place']}")
        if verbose:
            click.echo(
                f"   pid {one['pid']} on {one['host']} ({one['node_ip']}), "
                f"task {one['task_id']}"
            )
    click.echo("number of a breakpoint, return to look again, q to leave: ", nl=False)
    sys.stdout.flush()
    line = user.line()
    word = line.decode(errors="replace").strip()
    if not line or word in ("q", "quit"):
        return False
    if not word:
        return True
    if not word.isdigit() or int(word) >= len(waiting):
        click.echo(f"there is no breakpoint {word!r}")
        return True
    chosen = waiting[int(word)]
    if chosen["host"] != socket.gethostname():
        click.echo(
            f"it waits on host {chosen['host']} ({chosen['node_ip']}), and can be "
            "debugged there only: run 'rayshim debug' on that host"
        )
        return True
    _talk(chosen["socket"], user)
    return True


def _waiting(control: Any) -> list[dict[str, Any]]:
    from rayshim.util.rpdb import NAMESPACE

    found = []
    for key in control.ask("kv_list", {"namespace": NAMESPACE}):
        value = control.ask("kv_get", {"namespace": NAMESPACE, "key": key})
        if value is not None:
            found.append(json.loads(value))
    return found


def _talk(path: str, user: _Input) -> None:
    """Passes text on between this terminal and the debugger, until that is done.

    What was typed ahead goes to the debugger; what follows its end is kept.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            click.echo(f"it does not wait any more: {error}")
            return
        while not _next_prompt(connection):
            line = user.line()
            if line:
                connection.sendall(line)
            else:
                connection.shutdown(socket.SHUT_WR)


def _next_prompt(connection: socket.socket) -> bool:
    """Shows what the debugger says until it asks; True at its end."""
    shown = b""
    while not shown.endswith(PROMPT):
        data = connection.recv(1 << 16)
        if not data:
            return True
        shown += data
        sys.stdout.write(data.decode(errors="replace"))
        sys.stdout.flush()
    return False
