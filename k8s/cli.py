"""`rayshim k8s`: plan, render, up, status, autoscaler, drill, down."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rayshim.k8s.api import Kube, KubeError
from rayshim.k8s.cli_options import (
    BAD_CONFIGURATION,
    Target,
    about_a_cluster,
    about_a_file,
    checked,
    fail,
    head_option,
    output_option,
    say,
    token_path_option,
)
from rayshim.k8s.config import Platform
from rayshim.k8s.failures import CheckFailed, ClusterRefuses, CommandFailed

if TYPE_CHECKING:
    from rayshim.k8s.demand import ClusterLink

#: Seconds between two looks of `status --watch`.
WATCH_S: Final = 2.0

_timeout = click.FloatRange(min=0, min_open=True)


@click.group(name="k8s")
def k8s() -> None:
    """Run the platform of a platform.yaml on Kubernetes.

    Exit codes: 0 done, 1 failed check, 2 bad configuration, 3 the cluster refuses or
    lacks something, 4 it took too long (the same command goes on).
    """


@k8s.command()
@about_a_cluster
@output_option
@click.option("--offline", is_flag=True, help="Do not look at the cluster.")
@click.option("--explain", is_flag=True, help="Show the arithmetic behind each size.")
def plan(target: Target, output: str, offline: bool, explain: bool) -> None:
    """Check the file, say what it costs, and what `up` would change. Writes nothing.

    The difference is made by reading: it needs the right to get objects, not to patch
    them.
    """
    from rayshim.k8s import printing
    from rayshim.k8s.cost import monthly_costs
    from rayshim.k8s.installing import compare_all, refuse_foreign
    from rayshim.k8s.prerequisites import missing
    from rayshim.k8s.sizing import explain as explained

    platform = target.load()
    rendered = checked(platform)
    costs = monthly_costs(platform)
    sections = explained(platform) if explain else []
    found, lacking = [], []
    if not offline:
        with target.connect(platform) as kube:
            lacking = missing(kube, platform, rendered.objects)
            found = list(compare_all(kube, platform, rendered).differences)
    if output == "json":
        data: dict[str, Any] = {
            "platform": platform.name,
            "namespace": platform.namespace,
            "scale": platform.scale,
            "cost": costs.to_json(),
        }
        if explain:
            data["explain"] = [one.to_json() for one in sections]
        if not offline:
            data["objects"] = printing.difference_rows(found)
            data["missing"] = printing.missing_rows(lacking)
        click.echo(json.dumps(data, indent=2))
    else:
        click.echo(f"Platform {platform.name} in namespace {platform.namespace}")
        click.echo(costs.to_text(), nl=False)
        for section in sections:
            click.echo()
            click.echo(section.to_text(), nl=False)
        if not offline:
            printing.print_differences(found, lacking)
    refuse_foreign(found, platform)
    if required := [one.text() for one in lacking if one.is_required]:
        raise ClusterRefuses("\n".join(required))


@k8s.command()
@about_a_file
@click.option(
    "-o",
    "--output-dir",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write.",
)
@click.option("--force", is_flag=True, help="Also into a folder that is not empty.")
def render(target: Target, folder: Path, force: bool) -> None:
    """Write every manifest and file that follows from the platform file."""
    from rayshim.k8s.render import render as rendering

    platform = target.load()
    checked(platform)
    if folder.exists() and any(folder.iterdir()) and not force:
        fail(
            f"{folder} is not empty; give another folder, or --force to replace the "
            "files of the same names",
            BAD_CONFIGURATION,
        )
    # Without the folder, which is this machine's: the same bytes everywhere.
    source = Path(target.config).name
    siblings = tuple(replace(one, source=source) for one in platform.others)
    texts = rendering(replace(platform, source=source, others=siblings)).texts()
    try:
        for path, text in texts.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{folder} cannot be written: {error}", BAD_CONFIGURATION)
    click.echo(f"wrote {len(texts)} files to {folder}")
    written = {folder / path for path in texts}
    kept = sorted(
        str(one.relative_to(folder))
        for one in folder.rglob("*")
        if one.is_file() and one not in written
    )
    if kept:
        say(f"left as they are: {', '.join(kept)}")


@k8s.command()
@about_a_cluster
@output_option
@click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=_timeout,
    help="Seconds for all.",
)
@click.option(
    "--restart-head",
    is_flag=True,
    help="Replace a head that was started from an older specification.",
)
def up(target: Target, output: str, timeout: float, restart_head: bool) -> None:
    """Bring the cluster to what the file says, and wait until the platform works.

    It may be ended at any time: the same command goes on. Objects of the same name that
    do not carry the platform's labels are never changed.
    """
    from rayshim.k8s import printing
    from rayshim.k8s.installing import install
    from rayshim.k8s.waiting import Waiting

    platform = target.load()
    rendered = checked(platform)
    with target.connect(platform) as kube:
        done = install(
            kube,
            platform,
            rendered,
            restart_head=restart_head,
            tell=say,
            waiting=Waiting(timeout),
        )
    if output == "json":
        rows = printing.difference_rows(done.objects)
        click.echo(json.dumps({"objects": rows, "notes": done.notes}, indent=2))
        return
    printing.print_installed(platform, done)


@k8s.command()
@about_a_cluster
@output_option
@click.option("--operator", is_flag=True, help="Look at the dask operator instead.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
def status(target: Target, output: str, operator: bool, watch: bool) -> None:
    """Say how the platform is, problems first. Exit code 1: something is broken."""
    from rayshim.k8s import printing
    from rayshim.k8s.looking import look, look_at_operator

    platform = target.load()
    with target.connect(platform) as kube:
        while True:
            report = (
                look_at_operator(kube, platform)
                if operator
                else look(kube, platform, now=time.time())
            )
            if watch and output == "text":
                click.clear()
            if output == "json":
                # One line each when watched, for programs that read lines.
                indent = None if watch else 2
                click.echo(json.dumps(report.to_json(), indent=indent))
            else:
                printing.print_report(report)
            if not watch:
                break
            time.sleep(WATCH_S)
    if report.problems:
        raise SystemExit(CheckFailed.exit_code)


@k8s.command()
@about_a_cluster
@click.option("--dry-run", is_flag=True, help="Decide and tell; write nothing.")
@click.option("--once", is_flag=True, help="One turn, printed as JSON.")
@head_option
@click.option(
    "--token-path",
    default=None,
    envvar="RAYSHIM_TOKEN_PATH",
    type=click.Path(dir_okay=False),
    help="File with the cluster's token.  [default: RAYSHIM_TOKEN_PATH, or "
    "/etc/rayshim/token/token]",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="Address on which metrics are served.",
)
@click.option(
    "--metrics-port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port on which metrics are served; 0: any that is free.",
)
@click.option(
    "--identity",
    default=None,
    help="Name of this one in the election.  [default: POD_NAME, or host and process]",
)
def autoscaler(
    target: Target,
    dry_run: bool,
    once: bool,
    head: str | None,
    token_path: str | None,
    metrics_host: str,
    metrics_port: int,
    identity: str | None,
) -> None:
    """Start and stop workers as the work needs them, until SIGTERM.

    Of several that run only one decides: the holder of a Lease.
    """
    from rayshim.k8s.autoscaler import PlatformAutoscaler
    from rayshim.k8s.demand import TOKEN_PATH, open_link
    from rayshim.k8s.reaching import place_of

    platform = target.load()
    name = identity or os.environ.get("POD_NAME") or _own_name()
    stop = threading.Event()
    with ExitStack() as stack:
        # Before anything is begun: a pod may be told to end at once.
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, lambda *_: stop.set())
            stack.callback(signal.signal, number, before)
        try:
            host, port = place_of(head)
            link = open_link(
                platform, host=host, port=port, token_path=token_path or TOKEN_PATH
            )
        except (ValueError, OSError) as error:
            fail(
                f"{error}; --token-path and --head say where they are outside of a pod",
                BAD_CONFIGURATION,
            )
        stack.callback(link.close)
        kube = stack.enter_context(target.connect(platform))
        scaler = PlatformAutoscaler(
            kube, link, platform, identity=name, dry_run=dry_run
        )
        if once:
            told = scaler.turn()
            scaler.release()
            click.echo(json.dumps(told.to_json(), indent=2))
            if told.problems:
                raise SystemExit(CheckFailed.exit_code)
            return
        try:
            stack.callback(scaler.metrics.serve(metrics_port, metrics_host))
        except OSError as error:
            fail(
                f"metrics cannot be served on {metrics_host}:{metrics_port}: {error}; "
                "give another --metrics-port",
                BAD_CONFIGURATION,
            )
        scaler.run(stop, tell=say)


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


@k8s.command()
@click.argument("drill_name", metavar="NAME")
@about_a_cluster
@output_option
@head_option
@token_path_option
def drill(
    target: Target, drill_name: str, output: str, head: str | None, token_path: str
) -> None:
    """Kill something of the running platform, and measure its recovery.

    NAME is train-worker, serve-replica, head or all. Exit code 1: it took longer than
    the file allows.
    """
    from rayshim.k8s import printing
    from rayshim.k8s.drill import DRILLS, DrillError, run_drill

    if drill_name != "all" and drill_name not in DRILLS:
        known = ", ".join([*DRILLS, "all"])
        raise click.UsageError(f"there is no drill {drill_name!r}; there are {known}")
    platform = target.load()
    results = []
    with target.connect(platform) as kube:
        for one in DRILLS if drill_name == "all" else (drill_name,):
            try:
                result = run_drill(
                    one, kube, platform, head=head, token_path=token_path, say=say
                )
            except DrillError as error:
                raise CheckFailed(str(error)) from error
            results.append(result)
    if output == "json":
        click.echo(json.dumps(printing.drill_rows(results), indent=2))
    else:
        printing.print_drills(results)
    if code := max(one.exit_code for one in results):
        raise SystemExit(code)


@k8s.command()
@about_a_cluster
@output_option
@click.option("--keep-state", is_flag=True, help="Keep what the head knows.")
@click.option(
    "--timeout",
    default=300.0,
    show_default=True,
    type=_timeout,
    help="Seconds for all.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@head_option
@token_path_option
def down(
    target: Target,
    output: str,
    keep_state: bool,
    timeout: float,
    yes: bool,
    head: str | None,
    token_path: str,
) -> None:
    """Remove the platform from the cluster; the cluster itself stays.

    Only objects with the platform's labels are deleted. With --keep-state Valkey,
    volumes and Secrets stay, and `up` finds everything again.
    """
    from rayshim.k8s import printing
    from rayshim.k8s.removing import labelled, remove
    from rayshim.k8s.waiting import Waiting

    platform = target.load()
    with target.connect(platform) as kube:
        found = list(labelled(kube, platform.name))
        if found and not yes:
            kinds = printing.counted(one["kind"] for one in found)
            _confirm(
                f"Remove platform {platform.name} from namespace {platform.namespace} "
                f"({kinds})?"
            )
        with ExitStack() as stack:
            link = None
            if found:
                way = _link(kube, platform, head, token_path)
                link = stack.enter_context(way)
            done = remove(
                kube,
                platform,
                waiting=Waiting(timeout),
                link=link,
                keep_state=keep_state,
                tell=say,
            )
    if output == "json":
        click.echo(json.dumps(printing.removed_data(done), indent=2))
        return
    printing.print_removed(platform, done)


def _confirm(text: str) -> None:
    try:
        is_wanted = click.confirm(text, err=True)
    except click.Abort:
        raise click.UsageError("nobody answered; pass --yes to not be asked") from None
    if not is_wanted:
        raise CheckFailed("nothing was removed")


@contextmanager
def _link(
    kube: Kube, platform: Platform, head: str | None, token_path: str
) -> Iterator[ClusterLink | None]:
    """The way to the head; None, with the reason told, if there is none."""
    from rayshim.k8s.reaching import reached

    with ExitStack() as stack:
        link = None
        try:
            way = reached(kube, platform, head=head, token_path=token_path)
            link = stack.enter_context(way)
        except (KubeError, ValueError, OSError, CommandFailed) as error:
            say(f"nothing is drained, running work ends with its pods: {error}")
        yield link
