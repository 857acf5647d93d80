"""`rayshim k8s`: plan, render, up, status, autoscaler, drill, down."""

from __future__ import annotations

import click


@click.group(name="k8s")
def k8s() -> None:
    """Run the platform of a platform.yaml on Kubernetes."""
