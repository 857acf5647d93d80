"""What the commands of ``rayshim k8s`` have in common: options, errors, exit codes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from rayshim.k8s.api import Forbidden, Kube, KubeError
from rayshim.k8s.config import ConfigError, Platform
from rayshim.k8s.failures import ClusterRefuses, CommandFailed

if TYPE_CHECKING:
    from rayshim.k8s.render import Rendered

#: Exit codes, beside those of :mod:`rayshim.k8s.failures`.
BAD_CONFIGURATION: Final = 2
INTERRUPTED: Final = 130

Command = Callable[..., None]

output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print; json prints nothing else on the standard output.",
)
head_option = click.option(
    "--head",
    default=None,
    metavar="HOST[:PORT]",
    help="How this process reaches the head.  [default: its Service in Kubernetes]",
)
token_path_option = click.option(
    "--token-path",
    default="",
    type=click.Path(dir_okay=False),
    help="File with the cluster's token.  [default: read from its Secret]",
)

_FILE = (
    click.option(
        "-f",
        "--config",
        default="platform.yaml",
        show_default=True,
        type=click.Path(dir_okay=False),
        help="The platform file.",
    ),
    click.option(
        "--scale",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        show_default=True,
        help="At how many times the load of the file.",
    ),
    click.option(
        "--platform",
        "name",
        default="",
        metavar="NAME",
        help="One of several platforms that the file comes to at a large scale, each "
        "on a cluster of its own.  [default: the file's]",
    ),
)
_CLUSTER = (
    click.option(
        "--kubeconfig",
        default=None,
        type=click.Path(dir_okay=False),
        help="A kubeconfig.  [default: KUBECONFIG, or ~/.kube/config]",
    ),
    click.option("--context", default=None, help="Context of the kubeconfig."),
)


@dataclass(frozen=True, slots=True)
class Target:
    """The platform that a command is about, and where it is."""

    config: str
    scale: float
    name: str
    kubeconfig: str | None = None
    context: str | None = None

    def load(self) -> Platform:
        """The platform.

        Raises:
            ConfigError: the file cannot be used, or has no platform of that name.
        """
        from rayshim.k8s.loading import load_platform

        platform = load_platform(Path(self.config), scale=self.scale)
        every = (platform, *platform.others)
        for one in every:
            if one.name == (self.name or platform.name):
                return one
        known = ", ".join(one.name for one in every)
        raise ConfigError(
            "--platform",
            f"there is no platform {self.name} at scale {platform.scale:g}, there is "
            f"{known}",
            platform.source,
        )

    @contextmanager
    def connect(self, platform: Platform) -> Iterator[Kube]:
        """The platform's namespace in the Kubernetes cluster.

        Raises:
            Unreachable: there is none to talk to.
        """
        kube = Kube.load(
            namespace=platform.namespace,
            context=self.context,
            kubeconfig=self.kubeconfig,
        )
        try:
            yield kube
        finally:
            kube.close()


def about_a_file(command: Command) -> Command:
    """Gives a command the options of a platform file, as its first argument."""
    return _about(command, _FILE)


def about_a_cluster(command: Command) -> Command:
    """Gives a command those options, and those that say which Kubernetes cluster.

    The namespace is the file's.
    """
    return _about(command, (*_FILE, *_CLUSTER))


def _about(command: Command, options: tuple[Callable[..., Any], ...]) -> Command:
    @functools.wraps(command)
    def targeted(
        config: str,
        scale: float,
        name: str,
        kubeconfig: str | None = None,
        context: str | None = None,
        **rest: Any,
    ) -> None:
        target = Target(config, scale, name, kubeconfig, context)
        _guarded(functools.partial(command, target, **rest))

    made: Command = targeted
    for option in reversed(options):
        made = option(made)
    return made


def _guarded(command: Callable[[], None]) -> None:
    """Turns what a command raises into words and an exit code."""
    try:
        command()
    except ConfigError as error:
        fail(str(error), BAD_CONFIGURATION)
    except CommandFailed as error:
        fail(str(error), error.exit_code)
    except Forbidden as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            fail(str(error), ClusterRefuses.exit_code)
        fail(
            f"{error}; have an administrator grant it (base/rbac.yaml of `rayshim k8s "
            "render` has the Role of those who run the platform)",
            ClusterRefuses.exit_code,
        )
    except (KubeError, ConnectionError) as error:
        fail(str(error), ClusterRefuses.exit_code)
    except KeyboardInterrupt:
        fail("ended; the same command goes on from here", INTERRUPTED)


def checked(platform: Platform) -> Rendered:
    """What a platform comes to; ends the command with all that is wrong with it.

    Raises:
        ConfigError: a value is none that the pods can be told.
    """
    from rayshim.k8s.crds import check
    from rayshim.k8s.render import render
    from rayshim.k8s.residency import check_residency

    wrong = [str(error) for error in check_residency(platform)]
    rendered = render(platform)
    wrong += [f"{one.subject}: {one.text}" for one in check(rendered.objects)]
    if wrong:
        fail("\n".join(wrong), BAD_CONFIGURATION)
    return rendered


def fail(text: str, code: int) -> NoReturn:
    """Ends the command with an error of one line or more."""
    for line in text.splitlines():
        click.echo(f"Error: {line}", err=True)
    raise SystemExit(code)


def say(text: str) -> None:
    """Tells a step of the work, beside what the command prints."""
    click.echo(text, err=True)
