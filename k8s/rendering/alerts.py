"""Alert rules: what an operator of the platform must act on.

Each says what happens, what it means, and what to do. Thresholds follow from the
platform file where it has them (cold starts, prices, service levels).
"""

from __future__ import annotations

from typing import Any, Final, Literal

from rayshim.k8s import names
from rayshim.k8s.config import Group, Platform, ServeLevel
from rayshim.k8s.metric_names import (
    API_ERRORS,
    DECISIONS,
    DEMAND_AGE,
    GATED_GANGS,
    INFEASIBLE,
    IS_LEADER,
    LATE_WORKERS,
    SERVE_ERRORS,
    SERVE_LATENCY,
    SERVE_REQUESTS,
    TURN_SECONDS,
    UP,
    WORKERS,
)
from rayshim.k8s.rendering.queries import idle_gpus, quantile, rate, series

Object = dict[str, Any]

#: Older demand stops the autoscaler from ending workers.
STALE_S: Final = 30
#: Refusals within half an hour; a node is asked every 15 s at most, so this is one that
#: refuses for a quarter of that time.
REFUSALS: Final = 30
#: (window, short window, factor, severity): that many times the error budget of a month
#: is spent. Source: The Site Reliability Workbook, chapter 5, "Multiwindow,
#: Multi-Burn-Rate Alerts".
BURN_RATES: Final = (
    ("1h", "5m", 14.4, "critical"),
    ("6h", "30m", 6.0, "warning"),
)


def rules(platform: Platform) -> list[Object]:
    """All rules of a platform."""
    found = [*_head(platform), *_autoscaler(platform), *_workers(platform)]
    if platform.runtime == "rayshim":
        found += [
            _idle_gpus(platform, group) for group in platform.groups if group.is_gpu
        ]
    if platform.serve is not None:
        found += _serve(platform, platform.serve)
    return found


def _head(platform: Platform) -> list[Object]:
    job = names.scheduler(platform.name)
    up = series(platform, UP.name, job=job)
    return [
        _rule(
            "RayshimHeadDown",
            f"absent({up} == 1)",
            "2m",
            "critical",
            "The head does not answer.",
            "Nothing new is placed; what runs goes on for the grace of the nodes. "
            f"kubectl logs deployment/{job} --previous, and look at its journal.",
        )
    ]


def _autoscaler(platform: Platform) -> list[Object]:
    leader = series(platform, IS_LEADER.name)
    age = series(platform, DEMAND_AGE.name)
    refused = series(platform, DECISIONS.name, kind="drain_refused")
    return [
        _rule(
            "RayshimAutoscalerDown",
            f"absent({leader} == 1)",
            "5m",
            "critical",
            "No autoscaler holds the Lease.",
            "Workers are neither started nor ended, and idle GPUs cost money. "
            f"kubectl describe lease/{names.autoscaler(platform.name)}",
        ),
        _rule(
            "RayshimDemandStale",
            f"{age} > {STALE_S} and on (pod) {leader} == 1",
            "2m",
            "warning",
            "The head's demand is {{ $value | humanizeDuration }} old.",
            "Nothing is ended meanwhile. Is the head up, and may the autoscaler reach "
            "it (NetworkPolicies, token)?",
        ),
        _rule(
            "RayshimDemandInfeasible",
            f"max({series(platform, INFEASIBLE.name)}) > 0",
            "5m",
            "warning",
            "{{ $value }} requests can not be fulfilled by any group.",
            "They wait for ever. rayshim k8s status names them; change the request, "
            "add a group, or raise max.",
        ),
        _rule(
            "RayshimGangsGated",
            f"max({series(platform, GATED_GANGS.name)}) > 0",
            "30m",
            "warning",
            "{{ $value }} gangs wait for quota for half an hour.",
            "Others use the quota of their queue. rayshim k8s status says which; raise "
            "the quota or wait.",
        ),
        _rule(
            "RayshimDrainRefused",
            f"sum(increase({refused}[30m])) > {REFUSALS}",
            "5m",
            "warning",
            "Nodes refused to be drained {{ $value | humanize }} times.",
            "Something small keeps machines busy, such as an actor that nobody ended. "
            "rayshim list actors",
        ),
        _rule(
            "RayshimKubernetesErrors",
            f"sum({rate(platform, API_ERRORS.name, '5m')}) > 0.2",
            "10m",
            "warning",
            "{{ $value | humanize }} calls of Kubernetes' API fail each second.",
            "Forbidden: apply deploy/base/rbac.yaml. Unreachable: the control plane.",
        ),
        _rule(
            "RayshimTurnsSlow",
            f"{quantile(platform, 0.95, TURN_SECONDS, '10m')} > 5",
            "10m",
            "warning",
            "A turn of the autoscaler takes {{ $value | humanizeDuration }}.",
            "Workers come and go later than they should. Is the API server slow?",
        ),
    ]


def _workers(platform: Platform) -> list[Object]:
    late = series(platform, LATE_WORKERS.name)
    lost = series(platform, WORKERS.name, state="lost")
    return [
        _rule(
            "RayshimWorkersLate",
            f"sum by (group) ({late}) > 0",
            "1m",
            "warning",
            "{{ $value }} workers of {{ $labels.group }} did not join in twice the "
            "cold start.",
            "kubectl describe its pod: no capacity of this instance type, a quota of "
            "the account, an image that cannot be pulled?",
        ),
        _rule(
            "RayshimWorkersLost",
            f"sum by (group) ({lost}) > 0",
            "10m",
            "warning",
            "{{ $value }} workers of {{ $labels.group }} left without being drained.",
            "Their Deployments start them again and again. kubectl logs --previous",
        ),
    ]


def _idle_gpus(platform: Platform, group: Group) -> Object:
    """GPUs beyond those that are to be kept, in dollars an hour."""
    assert group.accelerator is not None  # is_gpu
    count = group.accelerator.count
    kept = (group.min + group.warm) * count
    price = group.price / count
    wait_s = max(900, round(5 * group.idle_timeout_s))
    word = "".join(part.capitalize() for part in group.name.split("-"))
    return _rule(
        f"RayshimGpusIdle{word}",
        f"({idle_gpus(platform, group)} - {kept}) * {price:g} > 0",
        f"{wait_s}s",
        "warning",
        f"Idle GPUs of {group.name} cost {{{{ $value | humanize }}}} dollars an hour.",
        "They are held by workers of which something small keeps the rest, or the "
        "autoscaler is held back. rayshim k8s status",
        group=group.name,
    )


def _serve(platform: Platform, level: ServeLevel) -> list[Object]:
    p99 = quantile(platform, 0.99, SERVE_LATENCY, "5m")
    group = platform.group(level.group)
    ready = series(platform, WORKERS.name, group=group.name, state="joined")
    found = [
        _rule(
            "RayshimServeLatency",
            f"{p99} > {level.p99_ms:g}",
            "5m",
            "critical",
            "99 of 100 requests take up to {{ $value | humanize }} ms "
            f"({level.p99_ms:g} promised).",
            "More requests than sized for? Raise min of the group; rayshim k8s plan "
            "--explain shows the arithmetic.",
            group=group.name,
        ),
        _rule(
            "RayshimServeTooFew",
            f"sum({ready}) < {group.min}",
            f"{round(2 * group.cold_start_s)}s",
            "critical",
            f"{{{{ $value }}}} of {group.min} workers of {group.name} are there.",
            "A zone or the capacity of an instance type is lost; add instance types.",
            group=group.name,
        ),
    ]
    budget = 1.0 - level.availability
    for window, short, factor, severity in BURN_RATES:
        limit = f"{factor * budget:.6g}"
        both = [f"{_errors(platform, one)} > {limit}" for one in (window, short)]
        found.append(
            _rule(
                f"RayshimServeErrors{window}",
                " and ".join(both),
                "2m",
                "critical" if severity == "critical" else "warning",
                "{{ $value | humanizePercentage }} of the requests fail "
                f"({level.availability:.4g} should not).",
                f"The error budget of a month goes {factor:g} times too fast.",
                group=group.name,
            )
        )
    return found


def _errors(platform: Platform, window: str) -> str:
    failed = rate(platform, SERVE_ERRORS.name, window)
    answered = rate(platform, SERVE_REQUESTS.name, window)
    return f"(sum({failed}) / sum({answered}))"


def _rule(
    name: str,
    expression: str,
    wait: str,
    severity: Literal["critical", "warning"],
    summary: str,
    description: str,
    **labels: str,
) -> Object:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity, **labels},
        "annotations": {"summary": summary, "description": description},
    }
