"""`rayshim k8s`: plan, render, up, status, autoscaler, drill, down."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec

import click

from rayshim.k8s.api import Kube, KubeError
from rayshim.k8s.config import ConfigError, Platform
from rayshim.k8s.failures import (
    CheckFailed,
    ClusterRefuses,
    CommandFailed,
)

if TYPE_CHECKING:
    from rayshim.k8s.demand import ClusterLink
    from rayshim.k8s.render import Rendered

#: Exit codes, beside those of :mod:`rayshim.k8s.failures`.
BAD_CONFIGURATION: Final = 2
INTERRUPTED: Final = 130
#: Seconds between two looks of `status --watch`.
WATCH_S: Final = 2.0

_P = ParamSpec("_P")

_output = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print; json prints nothing else on the standard output.",
)
_head = click.option(
    "--head",
    default=None,
    metavar="HOST[:PORT]",
    help="How this process reaches the head.  [default: its Service in Kubernetes]",
)
_token_path = click.option(
    "--token-path",
    default="",
    type=click.Path(dir_okay=False),
    help="File with the cluster's token.  [default: read from its Secret]",
)


def _file_options(command: Callable[_P, None]) -> Callable[_P, None]:
    """The options that say which platform."""
    for option in (
        click.option(
            "--platform",
            "name_of_one",
            default="",
            metavar="NAME",
            help="One of several platforms that the file comes to at a large scale, "
            "each on a cluster of its own.  [default: the file's]",
        ),
        click.option(
            "--scale",
            type=click.FloatRange(min=0, min_open=True),
            default=1.0,
            show_default=True,
            help="At how many times the load of the file.",
        ),
        click.option(
            "-f",
            "--config",
            "config",
            default="platform.yaml",
            show_default=True,
            type=click.Path(dir_okay=False),
            help="The platform file.",
        ),
    ):
        command = option(command)
    return command


def _cluster_options(command: Callable[_P, None]) -> Callable[_P, None]:
    """The options that say which Kubernetes cluster; the namespace is the file's."""
    for option in (
        click.option("--context", default=None, help="Context of the kubeconfig."),
        click.option(
            "--kubeconfig",
            default=None,
            type=click.Path(dir_okay=False),
            help="A kubeconfig.  [default: KUBECONFIG, or ~/.kube/config]",
        ),
    ):
        command = option(command)
    return command


def _guarded(command: Callable[_P, None]) -> Callable[_P, None]:
    """Turns what a command raises into words and an exit code."""

    @functools.wraps(command)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ConfigError as error:
            _fail(str(error), BAD_CONFIGURATION)
        except CommandFailed as error:
            _fail(str(error), error.exit_code)
        except (KubeError, ConnectionError) as error:
            _fail(_with_next_step(error), ClusterRefuses.exit_code)
        except KeyboardInterrupt:
            _fail("ended; the same command goes on from here", INTERRUPTED)

    return guarded


def _with_next_step(error: Exception) -> str:
    from rayshim.k8s.api import Forbidden

    if isinstance(error, Forbidden):
        return (
            f"{error}; have an administrator grant it (base/rbac.yaml of `rayshim k8s "
            "render` has the Role of people who run the platform)"
        )
    return str(error)


def _fail(text: str, code: int) -> NoReturn:
    for line in text.splitlines():
        click.echo(f"Error: {line}", err=True)
    raise SystemExit(code)


def _say(text: str) -> None:
    click.echo(text, err=True)


@click.group(name="k8s")
def k8s() -> None:
    """Run the platform of a platform.yaml on Kubernetes.

    Exit codes: 0 done, 1 failed check, 2 bad configuration, 3 the cluster refuses or
    lacks something, 4 it took too long (the same command goes on).
    """


def _load(config: str, scale: float, name: str) -> Platform:
    from rayshim.k8s.loading import load_platform

    platform = load_platform(Path(config), scale=scale)
    every = (platform, *platform.others)
    for one in every:
        if one.name == (name or platform.name):
            return one
    known = ", ".join(one.name for one in every)
    raise ConfigError(
        "--platform",
        f"there is no platform {name} at scale {platform.scale:g}, there is {known}",
        platform.source,
    )


def _rendered(platform: Platform) -> Rendered:
    """What a platform comes to, checked; ends the command with all that is wrong."""
    from rayshim.k8s.crds import check
    from rayshim.k8s.render import render
    from rayshim.k8s.residency import check_residency

    wrong = [str(error) for error in check_residency(platform)]
    rendered = render(platform)
    wrong += [f"{one.subject}: {one.text}" for one in check(rendered.objects)]
    if wrong:
        _fail("\n".join(wrong), BAD_CONFIGURATION)
    return rendered


@contextmanager
def _kube(
    platform: Platform, context: str | None, kubeconfig: str | None
) -> Iterator[Kube]:
    kube = Kube.load(
        namespace=platform.namespace, context=context, kubeconfig=kubeconfig
    )
    try:
        yield kube
    finally:
        kube.close()


@k8s.command()
@_file_options
@_cluster_options
@_output
@click.option("--offline", is_flag=True, help="Do not look at the cluster.")
@click.option("--explain", is_flag=True, help="Show the arithmetic behind each size.")
@_guarded
def plan(
    config: str,
    scale: float,
    name_of_one: str,
    context: str | None,
    kubeconfig: str | None,
    output: str,
    offline: bool,
    explain: bool,
) -> None:
    """Check the file, say what it costs, and what `up` would change. Writes nothing.

    The difference is made by reading: it needs the right to get objects, not to patch
    them.
    """
    from rayshim.k8s import printing
    from rayshim.k8s.cost import monthly_costs
    from rayshim.k8s.installing import compare_all, refuse_foreign
    from rayshim.k8s.prerequisites import missing
    from rayshim.k8s.sizing import explain as explained

    platform = _load(config, scale, name_of_one)
    rendered = _rendered(platform)
    costs = monthly_costs(platform)
    sections = explained(platform) if explain else []
    found, lacking = [], []
    if not offline:
        with _kube(platform, context, kubeconfig) as kube:
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
@_file_options
@click.option(
    "-o",
    "--output-dir",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write.",
)
@click.option("--force", is_flag=True, help="Also into a folder that is not empty.")
@_guarded
def render(
    config: str, scale: float, name_of_one: str, folder: Path, force: bool
) -> None:
    """Write every manifest and file that follows from the platform file."""
    rendered = _rendered(_load(config, scale, name_of_one))
    if folder.exists() and any(folder.iterdir()) and not force:
        _fail(
            f"{folder} is not empty; give another folder, or --force to replace the "
            "files of the same names",
            BAD_CONFIGURATION,
        )
    texts = rendered.texts()
    for path, text in texts.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    click.echo(f"wrote {len(texts)} files to {folder}")
    written = {folder / path for path in texts}
    others = sorted(
        str(one.relative_to(folder))
        for one in folder.rglob("*")
        if one.is_file() and one not in written
    )
    if others:
        _say(f"left as they are: {', '.join(others)}")


@k8s.command()
@_file_options
@_cluster_options
@_output
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for all.")
@click.option(
    "--restart-head",
    is_flag=True,
    help="Replace a head that was started from an older specification.",
)
@_guarded
def up(
    config: str,
    scale: float,
    name_of_one: str,
    context: str | None,
    kubeconfig: str | None,
    output: str,
    timeout: float,
    restart_head: bool,
) -> None:
    """Bring the cluster to what the file says, and wait until the platform works.

    It may be ended at any time: the same command goes on. Objects of the same name that
    do not carry the platform's labels are never changed.
    """
    from rayshim.k8s import printing
    from rayshim.k8s.installing import install
    from rayshim.k8s.waiting import Waiting

    platform = _load(config, scale, name_of_one)
    rendered = _rendered(platform)
    with _kube(platform, context, kubeconfig) as kube:
        done = install(
            kube,
            platform,
            rendered,
            restart_head=restart_head,
            tell=_say,
            waiting=Waiting(timeout),
        )
    if output == "json":
        rows = printing.difference_rows(done.objects)
        click.echo(json.dumps({"objects": rows, "notes": done.notes}, indent=2))
        return
    printing.print_installed(platform, done)


@k8s.command()
@_file_options
@_cluster_options
@_output
@click.option("--operator", is_flag=True, help="Look at the dask operator instead.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@_guarded
def status(
    config: str,
    scale: float,
    name_of_one: str,
    context: str | None,
    kubeconfig: str | None,
    output: str,
    operator: bool,
    watch: bool,
) -> None:
    """Say how the platform is, problems first. Exit code 1: something is broken."""
    from rayshim.k8s import printing
    from rayshim.k8s.looking import look, look_at_operator

    platform = _load(config, scale, name_of_one)
    with _kube(platform, context, kubeconfig) as kube:
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
@_file_options
@_cluster_options
@click.option("--dry-run", is_flag=True, help="Plan and tell; write nothing.")
@click.option("--once", is_flag=True, help="One turn, printed as JSON.")
@_head
@click.option(
    "--token-path",
    default=None,
    type=click.Path(dir_okay=False),
    help="File with the cluster's token.  [default: /etc/rayshim/token/token]",
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
    default=lambda: os.environ.get("POD_NAME") or _own_name(),
    help="Name of this one in the election.  [default: POD_NAME, or host and process]",
)
@_guarded
def autoscaler(
    config: str,
    scale: float,
    name_of_one: str,
    context: str | None,
    kubeconfig: str | None,
    dry_run: bool,
    once: bool,
    head: str | None,
    token_path: str | None,
    metrics_host: str,
    metrics_port: int,
    identity: str,
) -> None:
    """Start and stop workers as the work needs them, until SIGTERM.

    Of several that run only one decides: the holder of a Lease.
    """
    from rayshim.k8s.autoscaler import PlatformAutoscaler
    from rayshim.k8s.demand import TOKEN_PATH, open_link
    from rayshim.k8s.reaching import place_of

    platform = _load(config, scale, name_of_one)
    stop = threading.Event()
    # Before anything is begun: a pod may be told to end at once.
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    with ExitStack() as stack:
        for number, handler in before.items():
            stack.callback(signal.signal, number, handler)
        try:
            host, port = place_of(head)
            link = open_link(
                platform, host=host, port=port, token_path=token_path or TOKEN_PATH
            )
        except (ValueError, OSError) as error:
            _fail(str(error), BAD_CONFIGURATION)
        stack.callback(link.close)
        kube = stack.enter_context(_kube(platform, context, kubeconfig))
        scaler = PlatformAutoscaler(
            kube, link, platform, identity=identity, dry_run=dry_run
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
            _fail(
                f"metrics cannot be served on {metrics_host}:{metrics_port}: {error}; "
                "give another --metrics-port",
                BAD_CONFIGURATION,
            )
        scaler.run(stop)


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


@k8s.command()
@click.argument("name")
@_file_options
@_cluster_options
@_output
@_head
@_token_path
@_guarded
def drill(
    name: str,
    config: str,
    scale: float,
    name_of_one: str,
    context: str | None,
    kubeconfig: str | None,
    output: str,
    head: str | None,
    token_path: str,
) -> None:
    """Kill something of the running platform, and measure its recovery.

    NAME is train-worker, serve-replica, head or all. Exit code 1: it took longer than
    the file allows.
    """
    from rayshim.k8s import printing
    from rayshim.k8s.drill import DRILLS, DrillError, run_drill

    if name != "all" and name not in DRILLS:
        known = ", ".join([*DRILLS, "all"])
        raise click.UsageError(f"there is no drill {name!r}; there are {known}")
    platform = _load(config, scale, name_of_one)
    results = []
    with _kube(platform, context, kubeconfig) as kube:
        for one in DRILLS if name == "all" else (name,):
            try:
                result = run_drill(
                    one, kube, platform, head=head, token_path=token_path, say=_say
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
@_file_options
@_cluster_options
@_output
@click.option("--keep-state", is_flag=True, help="Keep what the head knows.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds for all.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_head
@_token_path
@_guarded
def down(
    config: str,
    scale: float,
    name_of_one: str,
    context: str | None,
    kubeconfig: str | None,
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

    platform = _load(config, scale, name_of_one)
    with _kube(platform, context, kubeconfig) as kube:
        found = list(labelled(kube, platform.name))
        if found and not yes:
            kinds = printing.counted(one["kind"] for one in found)
            _confirm(
                f"Remove platform {platform.name} from namespace {platform.namespace} "
                f"({kinds})?"
            )
        with _link(kube, platform, head, token_path) as link:
            done = remove(
                kube,
                platform,
                waiting=Waiting(timeout),
                link=link,
                keep_state=keep_state,
                tell=_say,
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
            _say(f"nothing is drained, running work ends with its pods: {error}")
        yield link
