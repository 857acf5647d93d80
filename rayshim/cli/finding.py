"""The sessions and clusters of this user on this host, and a way to ask them.

See :mod:`rayshim._core.clusters` for how they are found.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from rayshim._core import session_folders

if TYPE_CHECKING:
    from rayshim._core.clusters import Found

#: Exit code of a command that did not find what it was to do, or failed.
FAILED = 1
_FORMATS = click.Choice(["table", "json", "yaml"])

address_option = click.option(
    "--address",
    default="",
    metavar="HOST:PORT",
    help="The cluster.  [default: RAY_ADDRESS, else the newest one of this user here]",
)
temp_dir_option = click.option(
    "--temp-dir", default=None, help="Where sessions are (init(_temp_dir=))."
)
format_option = click.option(
    "--format",
    "output",
    type=_FORMATS,
    default="table",
    show_default=True,
    help="How to print rows.",
)


class Place(NamedTuple):
    """A control service that can be asked."""

    #: ``HOST:PORT`` of a cluster, else the name of the session.
    name: str
    address: str
    token: bytes


class NothingRuns(Exception):
    """There is no session or cluster to ask."""


def places(address: str, temp_dir: str | None) -> list[Place]:
    """The control services to ask, newest first.

    Args:
        address: ``HOST:PORT`` of a cluster; empty: all of this user on this host.
        temp_dir: where sessions are, if not in the usual folder.

    Raises:
        NothingRuns: there is none, or no token for it.
    """
    from rayshim._core.clusters import find_cluster, running

    try:
        if address:
            return [_place(find_cluster(address, temp_dir))]
        root = session_folders.session_root(temp_dir)
        found = [_place(one) for one in running(temp_dir)]
    except (ConnectionError, OSError, ValueError) as error:
        raise NothingRuns(str(error)) from None
    found += _lone_nodes(root)
    if not found:
        raise NothingRuns(
            f"no session or cluster of this user runs on this host (looked in {root}); "
            "for a cluster on another host give --address HOST:PORT, and its token in "
            "RAYSHIM_TOKEN or RAYSHIM_TOKEN_PATH"
        )
    return found


def _place(found: Found) -> Place:
    return Place(found.address.removeprefix("local:"), found.head_address, found.token)


def _lone_nodes(root: Path) -> list[Place]:
    """The nodes here of clusters whose head is elsewhere."""
    found = []
    for folder in root.glob("s*-*"):
        try:
            if (folder / "cluster.json").exists():
                continue
            token = bytes.fromhex((folder / "token").read_text().strip())
            for path in folder.glob("sockets/node-*.sock"):
                found.append(Place(folder.name, f"unix:{path}", token))
        except (OSError, ValueError):
            continue  # it ends or starts right now
    return found


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the command with an error."""
    click.echo(f"Error: {text}", err=True)
    raise SystemExit(code)


def the_cluster(address: str, temp_dir: str | None = None) -> Found:
    """The cluster that a command is about; ends the command if there is none."""
    from rayshim._core.clusters import find_cluster

    try:
        return find_cluster(address or None, temp_dir)
    except (ConnectionError, OSError, ValueError) as error:
        fail(str(error))


def ask(found: Found, *questions: tuple[str, Any]) -> list[Any]:
    """Answers of the control service; ends the command if there are none.

    Args:
        found: the cluster.
        questions: (method, payload).
    """
    from rayshim.adapters.wire.oneshot import OneShot

    try:
        with OneShot(found.head_address, found.token) as control:
            return [control.ask(method, payload) for method, payload in questions]
    except (ConnectionError, RuntimeError) as error:
        fail(str(error))


def show_rows(
    rows: list[dict[str, Any]], output: str, *, title: str = "", whole: Any = None
) -> None:
    """Print rows.

    Args:
        rows: each with the same keys, in the order of the columns.
        output: "table", "json" or "yaml".
        title: above a table.
        whole: what json and yaml show instead of the rows.
    """
    if output == "json":
        import json

        click.echo(json.dumps(rows if whole is None else whole, indent=2))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(rows if whole is None else whole, sort_keys=False))
    else:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, title_justify="left")
        for name in rows[0] if rows else ():
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(Text(str(value)) for value in row.values()))
        Console(soft_wrap=False).print(table)
