"""What the scripts of pages, and programs, read as JSON.

The routes under ``/api/v0`` and ``/api/cluster_status`` have the shape of Ray's: an
object with ``result``, ``msg`` and ``data``, and in it ``result`` with the rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from rayshim.dashboard import job_pages, log_pages
from rayshim.dashboard.pages import site_of
from rayshim.dashboard.reading import MAX_ROWS, Context, Missing, Unanswered
from rayshim.dashboard.site import Site

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

#: Rows of an answer unless it is asked for more; Ray's.
ROWS = 100
#: Kind in an address -> function of the state API.
KINDS = {
    "actors": "list_actors",
    "cluster_events": "list_cluster_events",
    "jobs": "list_jobs",
    "nodes": "list_nodes",
    "objects": "list_objects",
    "placement_groups": "list_placement_groups",
    "runtime_envs": "list_runtime_envs",
    "tasks": "list_tasks",
    "workers": "list_workers",
}
#: Kind in an address -> function that counts.
SUMMARIES = {
    "actors": "summarize_actors",
    "objects": "summarize_objects",
    "tasks": "summarize_tasks",
}

Answer = Callable[["Request", Site], Awaitable[Any]]


def routes(context: Context) -> list[Route]:
    """The routes of the interface.

    Args:
        context: of the dashboard's process.
    """
    from starlette.routing import Route

    site = site_of(context)

    def route(path: str, answer: Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answered(request, site, answer)

        return Route(path, endpoint, methods=["GET"])

    return [
        *(route(f"/api/v0/{kind}", _listing(name)) for kind, name in KINDS.items()),
        *(
            route(f"/api/v0/{kind}/summarize", _summary(name))
            for kind, name in SUMMARIES.items()
        ),
        route("/api/cluster_status", cluster_status),
        route("/logs/{node_id}/{name}/tail", log_tail),
        route("/jobs/{job_id}/tail", job_tail),
    ]


async def _answered(request: Request, site: Site, answer: Answer) -> Response:
    from rayshim.adapters.http.answers import Json

    status = 200
    try:
        content = await site.reader.sure(lambda: answer(request, site))
    except Missing as error:
        status, content = 404, _failure(str(error))
    except ValueError as error:
        status, content = 400, _failure(str(error))
    except Unanswered as error:
        status, content = 503, _failure(str(error))
    return Json(content, status, {"cache-control": "no-store"})


def _failure(text: str) -> dict[str, Any]:
    return {"result": False, "msg": text, "error": text, "data": {}}


def _listing(function_name: str) -> Answer:
    async def answer(request: Request, site: Site) -> dict[str, Any]:
        query = request.query_params
        limit = min(_number("limit", query.get("limit"), ROWS), MAX_ROWS)
        arguments: dict[str, Any] = {
            "limit": limit,
            "detail": query.get("detail", "").lower() in ("1", "true"),
            "raise_on_missing_output": False,
        }
        keys = query.getlist("filter_keys")
        if keys:
            signs = query.getlist("filter_predicates") or ["="] * len(keys)
            values = query.getlist("filter_values")
            if not len(keys) == len(signs) == len(values):
                raise ValueError(
                    "filter_keys, filter_predicates and filter_values come in threes"
                )
            arguments["filters"] = list(zip(keys, signs, values, strict=True))
        rows = await site.reader.rows(function_name, **arguments)
        return {
            "result": True,
            "msg": "",
            "data": {
                "result": {
                    "total": len(rows),
                    "num_after_truncation": len(rows),
                    "num_filtered": len(rows),
                    "result": rows,
                    "partial_failure_warning": "",
                    "warnings": [],
                }
            },
        }

    return answer


def _summary(function_name: str) -> Answer:
    async def answer(request: Request, site: Site) -> dict[str, Any]:
        found = await site.reader.state(function_name, raise_on_missing_output=False)
        summary = {"node_id_to_summary": {"cluster": found}}
        if isinstance(found, dict) and "cluster" in found:
            summary = {"node_id_to_summary": found}
        return {"result": True, "msg": "", "data": {"result": {"result": summary}}}

    return answer


def _number(name: str, text: str | None, default: int) -> int:
    try:
        number = int(text or default)
    except ValueError:
        raise ValueError(f"{name} is a whole number, not {text!r}") from None
    if number < 1:
        raise ValueError(f"{name} is at least 1, not {number}")
    return number


async def cluster_status(request: Request, site: Site) -> dict[str, Any]:
    """Resources, demand, and what the autoscaler says."""
    reader = site.reader
    found, problems = await reader.together(
        total=reader.ask("cluster_resources"),
        free=reader.ask("available_resources"),
        demand=reader.ask("demand"),
        lines=reader.ask("autoscaler_status"),
        nodes=reader.ask("node_table"),
    )
    if len(problems) == len(found):
        raise problems[0]
    total, free = found["total"] or {}, found["free"] or {}
    usage = {name: [all_ - free.get(name, 0.0), all_] for name, all_ in total.items()}
    nodes = found["nodes"] or ()
    return {
        "result": True,
        "msg": "; ".join(str(problem) for problem in problems),
        "data": {
            "autoscalingStatus": "\n".join(found["lines"] or ()),
            "clusterStatus": {
                "loadMetricsReport": {"usage": usage},
                "demand": found["demand"],
                "nodes": {
                    "alive": sum(bool(row.get("alive")) for row in nodes),
                    "dead": sum(not row.get("alive") for row in nodes),
                },
            },
        },
    }


async def log_tail(request: Request, site: Site) -> dict[str, Any]:
    """What a log file has from an offset on."""
    where = request.path_params
    return await log_pages.tail(
        site, where["node_id"], where["name"], request.query_params
    )


async def job_tail(request: Request, site: Site) -> dict[str, Any]:
    """What a job has printed from an offset on."""
    return await job_pages.tail(site, request)
