"""`rayshim k8s`: the platform on Kubernetes (:mod:`rayshim.k8s.cli`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    k8s: click.Command


def __getattr__(name: str) -> object:
    if name != "k8s":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from rayshim.k8s.cli import k8s as group
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "rayshim":
            raise
        return _lacking(error.name or "")
    return group


def _lacking(module: str) -> click.Command:
    """The command where its extra is not installed; `rayshim --help` lists it, too."""

    @click.command(
        "k8s",
        short_help="Run a platform on Kubernetes (needs the extra k8s).",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def k8s(words: tuple[str, ...]) -> None:
        raise click.UsageError(
            f"{module} is not installed: `rayshim k8s` needs "
            "`pip install 'rayshim[k8s]'`, or `pip install '.[k8s]'` in a clone"
        )

    return k8s
