"""Options of ``ray start`` that have no place here, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_CGROUP = "limit the node with a cgroup of its own, such as that of a container"
_NO_AGENT = (
    "leave it out: nodes have no agent processes, and so no port of one; ports that "
    "are open are those of docs/clusters.md"
)
_NO_REDIS = (
    "leave it out: there is no Redis server to start. To keep the head's journal in "
    'one that runs, give --system-config \'{"journal_url": "redis://..."}\''
)
#: Option -> what to do instead; "=" after those with a value.
_REFUSED = {
    "--redis-username=": _NO_REDIS,
    "--redis-password=": _NO_REDIS,
    "--redis-shard-ports=": _NO_REDIS,
    "--dashboard-agent-listen-port=": _NO_AGENT,
    "--dashboard-agent-grpc-port=": _NO_AGENT,
    "--runtime-env-agent-port=": _NO_AGENT,
    "--plasma-directory=": "leave it out: the store lives in /dev/shm",
    "--autoscaling-config=": (
        "start an autoscaler beside the head (docs/autoscaling.md)"
    ),
    "--no-redirect-output": (
        "leave it out: what processes write is in the logs folder of their session "
        "(`rayshim logs`)"
    ),
    "--tracing-startup-hook=": "pass init(_tracing_startup_hook=) in each driver",
    "--ray-debugger-external": (
        "leave it out: use a debugger in the task, or forward its port with ssh"
    ),
    "--include-log-monitor=": (
        "leave it out: nodes read the logs of their executors themselves"
    ),
    "--enable-resource-isolation": _CGROUP,
    "--system-reserved-cpu=": f"give a smaller --num-cpus, or {_CGROUP}",
    "--system-reserved-memory=": f"give a smaller --memory, or {_CGROUP}",
    "--cgroup-path=": _CGROUP,
    "--proxy-server-url=": "use the machine's own proxy settings",
}


def refused_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the command takes the options, and refuses those that are given."""
    for flag, instead in _REFUSED.items():
        name = flag.rstrip("=")
        option = click.option(
            name,
            is_flag=not flag.endswith("="),
            default=None,
            expose_value=False,
            callback=_refusal(name, instead),
            help=f"Not supported: {instead}.",
        )
        function = option(function)
    return function


def _refusal(name: str, instead: str) -> Callable[..., None]:
    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None and value is not False:
            raise click.UsageError(f"{name} is not supported; {instead}")

    return refuse
