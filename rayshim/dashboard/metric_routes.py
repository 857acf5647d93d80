"""Metrics of the whole cluster, and what Prometheus and Grafana need to find them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rayshim.adapters.http.answers import Json
from rayshim.adapters.metrics import exposition, grafana
from rayshim.adapters.raylet.metrics_door import targets_entry

if TYPE_CHECKING:
    from rayshim.dashboard.context import DashboardContext

logger = logging.getLogger(__name__)

#: Seconds that a node may take to measure itself.
NODE_LIMIT_S = 5.0


async def cluster_text(context: DashboardContext) -> str:
    """The metrics of all nodes that answer, and of the head.

    Args:
        context: of the cluster.
    """
    question = {"method": "metrics", "limit_s": NODE_LIMIT_S}
    told, head = await asyncio.gather(
        context.ask("ask", question), context.ask("head_metrics")
    )
    texts: list[str] = [bytes(head).decode()]
    for node in told:
        if node["error"]:
            logger.warning("no metrics of node %s: %s", node["node_id"], node["error"])
        texts.append(bytes(node["payload"]).decode())
    return exposition.merge(texts)


def routes(context: DashboardContext) -> list[BaseRoute]:
    """The routes of metrics.

    Args:
        context: of the cluster.
    """

    async def metrics(request: Request) -> Response:
        text = await cluster_text(context)
        return Response(text, media_type=exposition.CONTENT_TYPE)

    async def discovery(request: Request) -> Response:
        targets: Any = await context.ask("metrics_targets")
        return Json([targets_entry(targets)])

    async def dashboard(request: Request) -> Response:
        return Json(grafana.dashboard())

    return [
        Route("/metrics", metrics, methods=["GET"]),
        Route("/api/prometheus/sd", discovery, methods=["GET"]),
        Route("/api/grafana/dashboard.json", dashboard, methods=["GET"]),
    ]
