"""What Prometheus reads, and where its rules and Grafana's dashboard come from.

For Prometheus' operator (https://prometheus-operator.dev/docs/api-reference/api,
monitoring.coreos.com/v1). rayshim's endpoints want the cluster's token, which is read
from the platform's Secret.
"""

from __future__ import annotations

import json
from typing import Any, Final

from rayshim.k8s import metric_names, names
from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import base, pods
from rayshim.k8s.rendering.alerts import rules
from rayshim.k8s.rendering.dashboard import dashboard

Object = dict[str, Any]

API_VERSION: Final = "monitoring.coreos.com/v1"
COMPONENT: Final = "monitoring"
INTERVAL: Final = "15s"
#: Label by which Grafana's sidecar finds dashboards.
DASHBOARD_LABEL: Final = "grafana_dashboard"


def files(platform: Platform) -> dict[str, str | list[Object]]:
    """Path -> text or objects."""
    shown = json.dumps(dashboard(platform), indent=2) + "\n"
    return {
        "monitoring/servicemonitor.yaml": [service_monitor(platform)],
        "monitoring/podmonitors.yaml": [
            worker_monitor(platform),
            autoscaler_monitor(platform),
        ],
        "monitoring/alerts.yaml": [_alerts(platform)],
        "monitoring/dashboard.yaml": [_dashboard(platform, shown)],
        "monitoring/dashboard.json": shown,
    }


def service_monitor(platform: Platform) -> Object:
    """Of the head, through the Service that the operator makes for it."""
    is_dask = platform.runtime == "dask"
    port = "http-dashboard" if is_dask else metric_names.METRICS_PORT
    return {
        **_object(platform, "ServiceMonitor", names.scheduler(platform.name)),
        "spec": {
            "selector": {
                "matchLabels": {
                    names.CLUSTER_NAME: platform.name,
                    names.COMPONENT: "scheduler",
                }
            },
            "targetLabels": [names.PLATFORM],
            "endpoints": [_endpoint(platform, port)],
        },
    }


def worker_monitor(platform: Platform) -> Object:
    """Of all workers; each value has the worker's group as ``rayshim_io_group``."""
    return {
        **_object(platform, "PodMonitor", f"{platform.name}-workers"),
        "spec": {
            "selector": {
                "matchLabels": {
                    names.CLUSTER_NAME: platform.name,
                    names.COMPONENT: "worker",
                }
            },
            "podTargetLabels": [names.PLATFORM, names.GROUP, names.GANG],
            "podMetricsEndpoints": [_endpoint(platform, metric_names.METRICS_PORT)],
        },
    }


def autoscaler_monitor(platform: Platform) -> Object:
    """Of the autoscaler, leader or not."""
    return {
        **_object(platform, "PodMonitor", names.autoscaler(platform.name)),
        "spec": {
            "selector": {
                "matchLabels": {
                    names.PLATFORM: platform.name,
                    base.COMPONENT: "autoscaler",
                }
            },
            "podTargetLabels": [names.PLATFORM],
            "podMetricsEndpoints": [
                {"port": metric_names.METRICS_PORT, "interval": INTERVAL}
            ],
        },
    }


def _endpoint(platform: Platform, port: str) -> Object:
    made: Object = {"port": port, "path": "/metrics", "interval": INTERVAL}
    if platform.runtime == "rayshim":
        made["authorization"] = {
            "type": "Bearer",
            "credentials": {
                "name": names.token_secret(platform.name),
                "key": pods.TOKEN_PATH.rpartition("/")[2],
            },
        }
    return made


def _alerts(platform: Platform) -> Object:
    group = {"name": f"rayshim.{platform.name}", "rules": rules(platform)}
    made = _object(platform, "PrometheusRule", platform.name)
    return {**made, "spec": {"groups": [group]}}


def _dashboard(platform: Platform, shown: str) -> Object:
    meta = base.metadata(platform, f"{platform.name}-dashboard", COMPONENT)
    meta["labels"][DASHBOARD_LABEL] = "1"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "data": {f"rayshim-{platform.name}.json": shown},
    }


def _object(platform: Platform, kind: str, name: str) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": base.metadata(platform, name, COMPONENT),
    }
