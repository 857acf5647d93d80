"""`rayshim k8s`: the platform on Kubernetes (:mod:`rayshim.k8s.cli`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    k8s: click.Group


def __getattr__(name: str) -> object:
    if name != "k8s":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from rayshim.k8s.cli import k8s as group
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f"{error.name} is not installed: `rayshim k8s` needs "
            "`pip install 'rayshim[k8s]'`, or `pip install '.[k8s]'` in a clone"
        ) from error
    return group
