"""Values of Helm charts as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayshim.k8s.config import Platform
from rayshim.k8s.serializing import to_yaml


@dataclass(frozen=True, slots=True)
class Chart:
    """A Helm chart, and the version that the values were written for."""

    release: str
    chart: str
    version: str
    namespace: str


def values_text(platform: Platform, chart: Chart, values: Mapping[str, Any]) -> str:
    """A file of values that says how it is used.

    Args:
        platform: whose file the header names.
        chart: that takes them.
        values: as the chart names them.
    """
    command = (
        f"helm upgrade --install {chart.release} {chart.chart} --version "
        f"{chart.version} --namespace {chart.namespace} --values <this file>"
    )
    return (
        f"# Made from {platform.source} by `rayshim k8s render`; change that file, not "
        f"this one.\n# {command}\n{to_yaml([values]).removeprefix('---' + chr(10))}"
    )
