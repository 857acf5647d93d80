"""``rayshim logs``: lists and prints the logs of a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

_DEFAULT_TAIL = 1000


class _LogsGroup(click.Group):
    """``rayshim logs NAME`` means ``rayshim logs cluster NAME``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (
            args[0] not in self.commands and args[0] not in ("-h", "--help")
        ):
            args = ["cluster", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_LogsGroup)
def logs() -> None:
    """List and print logs: of files, actors, processes, tasks and jobs.

    Without a command it is `cluster`.
    """


def _options(*names: str) -> Callable[[Any], Any]:
    """Options that commands share."""

    def add(command: Any) -> Any:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return add


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "address": click.option(
        "--address",
        default=None,
        help="Of the cluster; by default the newest of this host.",
    ),
    "node": lambda command: click.option(
        "-id", "--node-id", default=None, help="Hex id of the node."
    )(
        click.option("-ip", "--node-ip", default=None, help="Address of the node.")(
            command
        )
    ),
    "read": lambda command: click.option(
        "-f", "--follow", is_flag=True, help="Go on with what is written later."
    )(
        click.option(
            "--tail",
            type=int,
            default=_DEFAULT_TAIL,
            show_default=True,
            help="Last lines to print; -1 is all.",
        )(
            click.option(
                "--interval",
                type=float,
                default=None,
                hidden=True,
                help="Seconds between looks, with --follow.",
            )(
                click.option(
                    "--timeout",
                    type=int,
                    default=30,
                    show_default=True,
                    help="Seconds that an answer may take.",
                )(command)
            )
        )
    ),
    "err": click.option(
        "--err", is_flag=True, help="Standard error instead of standard output."
    ),
}


@logs.command("cluster")
@click.argument("glob_filter", required=False, default="*")
@_options("address", "node", "read")
@click.option("--encoding", default="utf-8", show_default=True, help="Of the file.")
@click.option(
    "--encoding-errors",
    default="strict",
    show_default=True,
    help="What is done with bytes that are no text, as of bytes.decode.",
)
@click.option(
    "--format",
    "shown_as",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    help="Of a list of files.",
)
def cluster(
    glob_filter: str,
    address: str | None,
    node_id: str | None,
    node_ip: str | None,
    follow: bool,
    tail: int,
    interval: float | None,
    timeout: int,
    encoding: str,
    encoding_errors: str,
    shown_as: str,
) -> None:
    """List the log files of a node (of the head's node by default).

    GLOB_FILTER is a pattern of names. If one file matches, it is printed.
    """
    from rayshim.util.state import logs as state

    def listed() -> dict[str, list[str]]:
        return state.list_logs(
            address=address,
            node_id=node_id,
            node_ip=node_ip,
            glob_filter=glob_filter,
            timeout=timeout,
        )

    groups = _asked(listed)
    names = [name for group in groups.values() for name in group]
    if len(names) == 1:
        if not node_id and not node_ip:
            node_id = _asked(lambda: _default_node(address, timeout))
        _print(
            address=address,
            node_id=node_id,
            node_ip=node_ip,
            filename=names[0],
            follow=follow,
            tail=tail,
            _interval=interval,
            timeout=timeout,
            encoding=encoding,
            errors=encoding_errors,
        )
        return
    if shown_as == "json":
        click.echo(json.dumps(groups, indent=2))
        return
    if not names and shown_as == "table":
        _fail(f"no log file is called {glob_filter!r} there")
    for group, found in sorted(groups.items()):
        click.echo(f"{group}:")
        for name in found:
            click.echo(f"- {name}")


@logs.command("actor")
@click.option("-a", "--id", "actor_id", default=None, help="Hex id of the actor.")
@click.option("-pid", "--pid", type=int, default=None, help="Of its process.")
@_options("address", "node", "read", "err")
def actor(
    actor_id: str | None,
    pid: int | None,
    address: str | None,
    node_id: str | None,
    node_ip: str | None,
    follow: bool,
    tail: int,
    interval: float | None,
    timeout: int,
    err: bool,
) -> None:
    """Print what an actor printed."""
    if (actor_id is None) == (pid is None):
        raise click.UsageError("give one of --id and --pid")
    _print(
        address=address,
        node_id=node_id,
        node_ip=node_ip,
        actor_id=actor_id,
        pid=pid,
        follow=follow,
        tail=tail,
        _interval=interval,
        timeout=timeout,
        suffix="err" if err else "out",
    )


@logs.command("worker")
@click.option("-pid", "--pid", type=int, required=True, help="Of the executor.")
@_options("address", "node", "read", "err")
def worker(
    pid: int,
    address: str | None,
    node_id: str | None,
    node_ip: str | None,
    follow: bool,
    tail: int,
    interval: float | None,
    timeout: int,
    err: bool,
) -> None:
    """Print what an executor printed."""
    _print(
        address=address,
        node_id=node_id,
        node_ip=node_ip,
        pid=pid,
        follow=follow,
        tail=tail,
        _interval=interval,
        timeout=timeout,
        suffix="err" if err else "out",
    )


@logs.command("job")
@click.option("--id", "submission_id", required=True, help="Of the submitted job.")
@_options("address", "read")
def job(
    submission_id: str,
    address: str | None,
    follow: bool,
    tail: int,
    interval: float | None,
    timeout: int,
) -> None:
    """Print what the driver of a submitted job printed."""
    _print(
        address=address,
        submission_id=submission_id,
        follow=follow,
        tail=tail,
        _interval=interval,
        timeout=timeout,
    )


@logs.command("task")
@click.option("--id", "task_id", required=True, help="Hex id of the task.")
@click.option(
    "-a",
    "--attempt-number",
    type=int,
    default=0,
    show_default=True,
    help="Which run of the task, from 0.",
)
@_options("address", "read", "err")
def task(
    task_id: str,
    attempt_number: int,
    address: str | None,
    follow: bool,
    tail: int,
    interval: float | None,
    timeout: int,
    err: bool,
) -> None:
    """Print what a task printed, and nothing else."""
    _print(
        address=address,
        task_id=task_id,
        attempt_number=attempt_number,
        follow=follow,
        tail=tail,
        _interval=interval,
        timeout=timeout,
        suffix="err" if err else "out",
    )


def _default_node(address: str | None, timeout: int) -> str:
    from rayshim._core import asking
    from rayshim.util.state import log_sources

    with asking.control_of(address, timeout) as control:
        return log_sources.default_node(control)


def _print(**which: Any) -> None:
    from rayshim.util.state.logs import get_log

    def show() -> None:
        for text in get_log(**which):
            sys.stdout.write(text)
            sys.stdout.flush()

    try:
        _asked(show)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(0)


def _asked(ask: Callable[[], Any]) -> Any:
    from rayshim.util.state.exception import RayStateApiException

    try:
        return ask()
    except (ConnectionError, RayStateApiException, RuntimeError, ValueError) as error:
        _fail(str(error))


def _fail(text: str) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(1)
