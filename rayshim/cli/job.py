"""``rayshim job``: submits programs to a cluster, and looks after them."""

from __future__ import annotations

import asyncio
import functools
import json
import shlex
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
    from rayshim.job_submission import JobDetails, JobSubmissionClient
else:
    _ParamType = click.ParamType  # older versions know no other

#: Seconds between looks at a job that is to stop.
LOOK_S = 0.2
ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"
_Command = Callable[..., Any]
#: Gives a client of the cluster; ends the command if there is none.
_Connect = Callable[[], "JobSubmissionClient"]
_Value = TypeVar("_Value")


class _Choice(_ParamType):
    """True, false, or a path."""

    name = "BOOL | PATH"

    def convert(self, value: Any, param: Any, ctx: Any) -> bool | str:
        text = str(value)
        known = {"true": True, "1": True, "false": False, "0": False}
        return known.get(text.lower(), text)


class _Submit(click.Command):
    """Says where the options of the job's own program belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_apart = "--" in args
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if is_apart:
                raise
            raise click.UsageError(
                f"{error.format_message()} If it is for the job's own program, put -- "
                "before that: rayshim job submit [OPTIONS] -- PROGRAM --ITS-OPTIONS",
                ctx,
            ) from None


class Output:
    """What a command says of itself; what jobs print goes out as it is.

    Args:
        style: "pretty", "record" (one line for each, with its time), or "auto": pretty.
        color: "true", "false", or "auto": on terminals.
        verbose: how much more than usual.
    """

    def __init__(self, style: str, color: str, verbose: int) -> None:
        self._is_record = style == "record"
        self._color = {"true": True, "false": False}.get(color)
        self.is_verbose = bool(verbose)

    def say(self, text: str = "", **style: Any) -> None:
        """One line."""
        if self._is_record:
            if text:
                now = datetime.now().isoformat(" ", "milliseconds")
                click.echo(f"{now}\tINFO\t{text}")
            return
        click.echo(click.style(text, **style) if style else text, color=self._color)

    def big(self, text: str, color: str) -> None:
        """An outcome."""
        if self._is_record:
            self.say(text)
            return
        line = "-" * len(text)
        for one in ("", line, text, line, ""):
            self.say(one, fg=color)


def _common(command: _Command) -> _Command:
    """Options of all commands, which get what speaks, and a client once they ask."""

    @functools.wraps(command)
    def wrapped(
        address: str | None,
        verify: bool | str,
        headers: str | None,
        log_style: str,
        log_color: str,
        verbose: int,
        **rest: Any,
    ) -> Any:
        output = Output(log_style, log_color, verbose)
        connect = functools.partial(_client, output, address, verify, headers)
        return command(output=output, connect=connect, **rest)

    for option in reversed(
        (
            click.option(
                "--address",
                default=None,
                metavar="URL",
                help="http://HOST:PORT of the dashboard, or an address of the cluster. "
                f"[default: {ADDRESS_VARIABLE}, RAY_ADDRESS, the cluster of this host]",
            ),
            click.option(
                "--verify",
                default=True,
                show_default=True,
                type=_Choice(),
                help="Whether the dashboard's certificate is checked; or the file, or "
                "folder, of certificates that are trusted.",
            ),
            click.option(
                "--headers",
                default=None,
                metavar="JSON",
                help='Headers of all requests: \'{"name": "value"}\'. Without an '
                "Authorization the token of the cluster is sent, if it is known here.",
            ),
            click.option(
                "--log-style",
                type=click.Choice(["auto", "record", "pretty"], case_sensitive=False),
                default="auto",
                help="Lines with their times, or for people.",
            ),
            click.option(
                "--log-color",
                type=click.Choice(["auto", "false", "true"], case_sensitive=False),
                default="auto",
                help="Whether the command's own lines have colors.",
            ),
            click.option("-v", "--verbose", count=True, help="Say more."),
        )
    ):
        wrapped = option(wrapped)
    return wrapped


@click.group()
def job() -> None:
    """Submit programs to a cluster, and look after them."""


@job.command(cls=_Submit)
@_common
@click.option("--job-id", default=None, help="Older name of --submission-id.")
@click.option("--submission-id", default=None, help="Name of the job; else made up.")
@click.option(
    "--runtime-env",
    default=None,
    metavar="FILE",
    help="YAML file with the runtime environment.",
)
@click.option(
    "--runtime-env-json", default=None, metavar="JSON", help="The same as JSON."
)
@click.option(
    "--working-dir",
    default=None,
    metavar="FOLDER",
    help="Folder (or archive, or URI) that the program runs in; it is uploaded.",
)
@click.option("--metadata-json", default=None, metavar="JSON", help="Text by name.")
@click.option("--entrypoint-num-cpus", default=None, type=float, help="CPUs to hold.")
@click.option("--entrypoint-num-gpus", default=None, type=float, help="GPUs to hold.")
@click.option("--entrypoint-memory", default=None, type=int, help="Bytes to hold.")
@click.option(
    "--entrypoint-resources", default=None, metavar="JSON", help="Amounts by name."
)
@click.option(
    "--entrypoint-label-selector",
    default=None,
    metavar="JSON",
    help="Labels of the node that the program runs on.",
)
@click.option("--no-wait", is_flag=True, help="Do not wait for the job to end.")
@click.argument("entrypoint", nargs=-1, required=True, type=click.UNPROCESSED)
def submit(
    output: Output,
    connect: _Connect,
    job_id: str | None,
    submission_id: str | None,
    runtime_env: str | None,
    runtime_env_json: str | None,
    working_dir: str | None,
    metadata_json: str | None,
    entrypoint_num_cpus: float | None,
    entrypoint_num_gpus: float | None,
    entrypoint_memory: int | None,
    entrypoint_resources: str | None,
    entrypoint_label_selector: str | None,
    no_wait: bool,
    entrypoint: tuple[str, ...],
) -> None:
    """Run a command in the cluster, and show what it prints.

    Exits with 1 if the job fails. Put -- before the command if it has options:

        rayshim job submit --working-dir . -- python train.py --epochs 3
    """
    if job_id:
        output.say("--job-id is an older name: use --submission-id", fg="yellow")
    environment = _environment(runtime_env, runtime_env_json, working_dir)
    values: dict[str, Any] = {
        "metadata": _json("--metadata-json", metadata_json),
        "entrypoint_resources": _json("--entrypoint-resources", entrypoint_resources),
        "entrypoint_label_selector": _json(
            "--entrypoint-label-selector", entrypoint_label_selector
        ),
    }
    client = connect()
    name = _asked(
        lambda: client.submit_job(
            entrypoint=shlex.join(entrypoint),
            submission_id=submission_id or job_id,
            runtime_env=environment,
            entrypoint_num_cpus=entrypoint_num_cpus,
            entrypoint_num_gpus=entrypoint_num_gpus,
            entrypoint_memory=entrypoint_memory,
            **values,
        )
    )
    output.big(f"Job '{name}' submitted successfully", "green")
    output.say("Next steps")
    for text, verb in (
        ("Query the logs of the job:", "logs"),
        ("Query the status of the job:", "status"),
        ("Request the job to be stopped:", "stop"),
    ):
        output.say(f"  {text}")
        output.say(f"    rayshim job {verb} {name}", bold=True)
    output.say()
    sys.stdout.flush()
    if not no_wait:
        output.say("Tailing logs until the job exits (disable with --no-wait):")
        _follow(output, client, name)


@job.command()
@_common
@click.argument("job-id")
def status(
    output: Output,
    connect: _Connect,
    job_id: str,
) -> None:
    """Show where a job stands."""
    client = connect()
    _show(output, _asked(lambda: client.get_job_info(job_id)), job_id)


@job.command()
@_common
@click.option("--no-wait", is_flag=True, help="Do not wait for the job to end.")
@click.argument("job-id")
def stop(
    output: Output,
    connect: _Connect,
    no_wait: bool,
    job_id: str,
) -> None:
    """End a job."""
    client = connect()
    output.say(f"Attempting to stop job '{job_id}'")
    _asked(lambda: client.stop_job(job_id))
    if no_wait:
        return
    output.say(f"Waiting for job '{job_id}' to exit (disable with --no-wait):")
    while True:
        info = _asked(lambda: client.get_job_info(job_id))
        if info.status.is_terminal():
            _show(output, info, job_id)
            return
        time.sleep(LOOK_S)


@job.command()
@_common
@click.argument("job-id")
def delete(
    output: Output,
    connect: _Connect,
    job_id: str,
) -> None:
    """Forget a job that has ended."""
    client = connect()
    _asked(lambda: client.delete_job(job_id))
    output.say(f"Job '{job_id}' deleted successfully")


@job.command()
@_common
@click.option("-f", "--follow", is_flag=True, help="Show what comes, until it ends.")
@click.argument("job-id")
def logs(
    output: Output,
    connect: _Connect,
    follow: bool,
    job_id: str,
) -> None:
    """Show what a job has printed."""
    client = connect()
    if follow:
        _follow(output, client, job_id)
    else:
        click.echo(_asked(lambda: client.get_job_logs(job_id)), nl=False)


@job.command(name="list")
@_common
@click.option(
    "--format",
    "kind",
    type=click.Choice(["python", "table", "json", "yaml"]),
    default="python",
    show_default=True,
    help="How rows are shown; python is Ray's.",
)
def list_(
    output: Output,
    connect: _Connect,
    kind: str,
) -> None:
    """List the jobs of the cluster, those that have ended, too."""
    client = connect()
    found = _asked(client.list_jobs)
    if kind == "python":
        import pprint

        click.echo(pprint.pformat(found))
        return
    rows = [_plain(one) for one in found]
    if kind == "json":
        click.echo(json.dumps(rows, indent=2))
    elif kind == "yaml":
        import yaml

        click.echo(yaml.safe_dump(rows, sort_keys=False), nl=False)
    else:
        _print_table(rows)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    names = ("submission_id", "job_id", "type", "status", "start_time", "entrypoint")
    for name in names:
        table.add_column(name)
    for row in rows:
        started = datetime.fromtimestamp((row["start_time"] or 0) / 1000)
        shown = {**row, "start_time": started.isoformat(" ", "seconds")}
        table.add_row(*(escape(str(shown[name] or "")) for name in names))
    Console().print(table)


def _plain(details: JobDetails) -> dict[str, Any]:
    values = details.dict()
    return {**values, "type": details.type.value, "status": details.status.value}


def _client(
    output: Output, address: str | None, verify: bool | str, headers: str | None
) -> JobSubmissionClient:
    from rayshim.job_submission import JobSubmissionClient

    sent = _json("--headers", headers)
    client = _asked(lambda: JobSubmissionClient(address, headers=sent, verify=verify))
    if output.is_verbose:
        output.say(f"Job submission server address: {client.get_address()}")
    return client


def _asked(question: Callable[[], _Value]) -> _Value:
    """The answer; what goes wrong is said in a line, and the command exits with 1."""
    try:
        return question()
    except (RuntimeError, ConnectionError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except (TypeError, ValueError, NotImplementedError) as error:
        raise click.UsageError(str(error)) from None


def _follow(output: Output, client: JobSubmissionClient, name: str) -> None:
    async def follow() -> None:
        async for text in client.tail_job_logs(name):
            click.echo(text, nl=False)
            sys.stdout.flush()

    try:
        _asked(lambda: asyncio.run(follow()))
    except KeyboardInterrupt:
        click.echo(f"\nThe job goes on; rayshim job stop {name} ends it.", err=True)
        sys.exit(130)
    info = _asked(lambda: client.get_job_info(name))
    _show(output, info, name)
    if info.status.value == "FAILED":
        sys.exit(1)


def _show(output: Output, info: JobDetails, name: str) -> None:
    value = info.status.value
    if value == "SUCCEEDED":
        output.big(f"Job '{name}' succeeded", "green")
        return
    if value == "STOPPED":
        output.say(f"Job '{name}' was stopped", fg="yellow")
        return
    if value == "FAILED":
        output.big(f"Job '{name}' failed", "red")
    else:
        output.say(f"Status for job '{name}': {value}")
    if info.message is not None:
        output.say(f"Status message: {info.message}")


def _environment(
    path: str | None, text: str | None, working_dir: str | None
) -> dict[str, Any]:
    if path and text:
        raise click.UsageError("give --runtime-env or --runtime-env-json, not both")
    environment: dict[str, Any] = {}
    if path:
        import yaml

        try:
            with open(path) as file:
                environment = yaml.safe_load(file) or {}
        except (OSError, yaml.YAMLError) as error:
            raise click.UsageError(f"--runtime-env {path}: {error}") from None
    elif text:
        environment = _json("--runtime-env-json", text) or {}
    if not isinstance(environment, dict):
        raise click.UsageError("a runtime environment is a mapping of fields")
    if working_dir:
        environment["working_dir"] = working_dir
    return environment


def _json(option: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{option} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise click.UsageError(f"{option} is a JSON object, not {text}")
    return values
