"""``rayshim stop``: the end of what ``rayshim start`` started on this host."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

#: Seconds that what is killed may take to go.
KILL_LIMIT_S = 10.0
LOOK_S = 0.02


@click.command()
@click.option("-f", "--force", is_flag=True, help="Kill at once, without a warning.")
@click.option(
    "-g",
    "--grace-period",
    type=click.FloatRange(min=0),
    default=16.0,
    show_default=True,
    help="Seconds that processes have to end by themselves before they are killed.",
)
@click.option("--temp-dir", default=None, help="Where sessions are (start --temp-dir).")
@click.option("-v", "--verbose", is_flag=True, help="Name each process.")
@click.option(
    "--log-style",
    type=click.Choice(["auto", "record", "pretty"]),
    default="auto",
    help="Accepted as in Ray; the output is plain text.",
)
@click.option(
    "--log-color",
    type=click.Choice(["auto", "false", "true"]),
    default="auto",
    help="Accepted as in Ray; the output is plain text.",
)
def stop(
    force: bool,
    grace_period: float,
    temp_dir: str | None,
    verbose: bool,
    log_style: str,
    log_color: str,
) -> None:
    """End every head and node that this user has started here with `rayshim start`.

    Sessions of `init()` go on: they end with their programs. Exit code 1 if
    something could not be ended.
    """
    from rayshim._core import keeper, session_folders

    found = keeper.running_keepers(temp_dir)
    pids = {one.pid for one in found}
    family = _family(pids)
    for pid in pids:
        if verbose:
            click.echo(f"ending keeper {pid} with {len(family) - len(pids)} processes")
        _signal(pid, signal.SIGKILL if force else signal.SIGTERM)
    if force:
        for process in family:
            _signal(process.pid, signal.SIGKILL)
    left = _wait(family, 0.0 if force else grace_period)
    killed = len(left)
    for process in left:
        _signal(process.pid, signal.SIGKILL)
    left = _wait(left, KILL_LIMIT_S)
    for root in session_folders.known_roots(temp_dir):
        _remove_folders(pids, root)
        keeper.remove_stale_notes(root)
        if not list(root.glob("keeper-*.json")):
            session_folders.forget_root(root)
    if left:
        names = ", ".join(str(process.pid) for process in left)
        click.echo(f"Error: still there: {names}", err=True)
        raise SystemExit(1)
    if not pids:
        click.echo("Nothing runs here that `rayshim start` has started.")
        return
    how = f", {killed} of them killed" if killed else ""
    click.echo(f"Stopped {len(family)} processes of rayshim{how}.")


def _family(pids: Collection[int]) -> list[Any]:
    """The keepers and all their descendants, as psutil's processes."""
    import psutil

    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(processes: list[Any], limit_s: float) -> list[Any]:
    """Those that are still there after a while."""
    deadline = time.monotonic() + limit_s
    while alive := [one for one in processes if _is_alive(one)]:
        if time.monotonic() >= deadline:
            return alive
        time.sleep(LOOK_S)
    return []


def _is_alive(process: Any) -> bool:
    """Whether it runs; a zombie waits only for its parent."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _remove_folders(pids: Collection[int], root: Path) -> None:
    """What killed keepers and nodes have left."""
    from rayshim._core import session_folders

    for pid in pids:
        for folder in root.glob(f"s{pid}-*"):
            store_root = session_folders.store_root(folder)
            stores = store_root.glob(f"rayshim-{folder.name}-*")
            session_folders.remove(folder, *stores)
