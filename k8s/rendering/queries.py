"""Parts of PromQL queries."""

from __future__ import annotations

from rayshim.k8s import names
from rayshim.k8s.config import Group, Platform
from rayshim.k8s.metric_names import RESOURCES, MetricName


def label(name: str) -> str:
    """A Kubernetes label as Prometheus' operator names it.

    Example:
        >>> label("rayshim.io/group")
        'rayshim_io_group'
    """
    return "".join(one if one.isalnum() else "_" for one in name)


def series(platform: Platform, name: str, **more: str) -> str:
    """A selector of the platform's values of a metric.

    Args:
        platform: whose.
        name: of the series.
        more: label -> value, or -> "~" and a regular expression.
    """
    wanted = {
        "namespace": platform.namespace,
        label(names.PLATFORM): platform.name,
        **more,
    }
    inner = ",".join(
        f'{key}=~"{value[1:]}"' if value.startswith("~") else f'{key}="{value}"'
        for key, value in wanted.items()
    )
    return f"{name}{{{inner}}}"


def rate(platform: Platform, name: str, window: str, **more: str) -> str:
    """Increase per second of a counter."""
    return f"rate({series(platform, name, **more)}[{window}])"


def quantile(platform: Platform, share: float, metric: MetricName, window: str) -> str:
    """A quantile of a histogram."""
    buckets = rate(platform, metric.samples()[0], window)
    return f"histogram_quantile({share:g}, sum by (le) ({buckets}))"


def idle_gpus(platform: Platform, group: Group) -> str:
    """GPUs of a group that nothing holds."""
    found = series(
        platform,
        RESOURCES.name,
        Name="GPU",
        State="AVAILABLE",
        **{label(names.GROUP): group.name},
    )
    return f"sum({found})"
