"""Platforms and worlds that the tests of the autoscaler share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fake_kube import World
from rayshim.k8s.autoscaler import PlatformAutoscaler
from rayshim.k8s.config import Accelerator, Group, Images, Platform, Queue
from rayshim.lineage.demand import GangDemand, ShapeDemand


def cpu_group(**options: Any) -> Group:
    """Up to five workers of four CPUs."""
    known = {"max": 5, "idle_timeout_s": 20.0, "cold_start_s": 30.0}
    return Group("cpu-ingest", 4, 16, **{**known, **options})


def gpu_group(**options: Any) -> Group:
    """Up to four workers of four GPUs, each placement group apart."""
    known: dict[str, Any] = {
        "max": 4,
        "idle_timeout_s": 20.0,
        "cold_start_s": 30.0,
        "is_gang": True,
        "queue": "train",
    }
    accelerator = Accelerator("A100", 4)
    return Group("gpu-train", 8, 64, accelerator, **{**known, **options})


def platform_of(*groups: Group) -> Platform:
    """A platform of these groups; none: one with CPUs and one with GPUs."""
    groups = groups or (cpu_group(), gpu_group())
    gpus = tuple(one.name for one in groups if one.is_gpu)
    queues = (Queue("train", {"nvidia.com/gpu": 8}, groups=gpus),) if gpus else ()
    return Platform(
        "demo",
        "ray-prod",
        "us-east-1",
        ("us-east-1a",),
        Images("rayshim:cpu", "rayshim:gpu"),
        groups,
        queues=queues,
    )


def autoscaler_of(world: World, **options: Any) -> PlatformAutoscaler:
    """An autoscaler of a world."""
    known = {"identity": "one", "clock": world.clock}
    return PlatformAutoscaler(
        world.kube, world.head, world.platform, **{**known, **options}
    )


def run_until(
    world: World,
    scaler: PlatformAutoscaler,
    condition: Callable[[], bool],
    *,
    limit_s: int = 300,
) -> None:
    """Turns each second until something holds."""
    for _ in range(limit_s):
        if condition():
            return
        world.step()
        scaler.turn()
    text = "\n".join(scaler.status.lines())
    raise AssertionError(f"not within {limit_s} s:\n{text}")


def run_for(world: World, scaler: PlatformAutoscaler, seconds: int) -> None:
    """Turns each second."""
    for _ in range(seconds):
        world.step()
        scaler.turn()


def leases(count: int, **need: float) -> tuple[ShapeDemand, ...]:
    """Equal requests that wait."""
    return (ShapeDemand(need, count, label="work"),)


def gang(number: int, count: int, **need: float) -> GangDemand:
    """A placement group that waits."""
    return GangDemand(
        f"{number:09x}{'0' * 27}",
        "PACK",
        (need,) * count,
        name=f"job-{number}",
        oldest_s=100.0 - number,
    )
