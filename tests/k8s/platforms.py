"""Platforms for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayshim.k8s.config import (
    Accelerator,
    Bucket,
    Group,
    Head,
    HeadState,
    Images,
    Platform,
    Priority,
    Queue,
    ServeLevel,
    Tls,
)

#: Of the checkout: an installed package has no renders.
DEPLOY = Path(__file__).parents[2] / "k8s" / "deploy"
CPU_INGEST = Group(
    "cpu-ingest",
    cpus=14,
    memory_gib=56.0,
    max=20,
    cold_start_s=120.0,
    price=0.8064,
    instances=("m7i.4xlarge", "m6i.4xlarge"),
    store_gib=16.0,
)
GPU_TRAIN = Group(
    "gpu-train",
    cpus=44,
    memory_gib=340.0,
    accelerator=Accelerator("A10G", 4),
    max=4,
    cold_start_s=420.0,
    price=5.672,
    instances=("g5.12xlarge",),
    store_gib=64.0,
    queue="train",
    is_gang=True,
    priority="train",
)
GPU_SERVE = Group(
    "gpu-serve",
    cpus=6,
    memory_gib=24.0,
    accelerator=Accelerator("L4", 1),
    min=6,
    max=24,
    warm=1,
    cold_start_s=300.0,
    price=0.8048,
    instances=("g6.2xlarge",),
    store_gib=4.0,
)
SERVE = ServeLevel(
    group="gpu-serve",
    requests_per_s=3000.0,
    candidates=40,
    p99_ms=80.0,
    availability=0.999,
    latency_ms={
        "network": 8.0,
        "preprocess": 3.0,
        "queue": 5.0,
        "forward": 6.0,
        "fan-out": 10.0,
    },
    tail_ms=35.0,
    batch=8,
    utilisation=0.6,
    zones=3,
)
QUEUES = (
    Queue("train", {"nvidia.com/gpu": 16.0}, groups=("gpu-train",)),
    Queue("ingest", {"cpu": 280.0}, groups=("cpu-ingest",)),
)


def example_platform(**changes: Any) -> Platform:
    """Three groups on EKS with Valkey; keyword arguments replace fields of it."""
    made = Platform(
        name="demo",
        namespace="ray-prod",
        region="us-east-1",
        zones=("us-east-1a", "us-east-1b", "us-east-1c"),
        images=Images("registry.example/rayshim:cpu", "registry.example/rayshim:gpu"),
        groups=(CPU_INGEST, GPU_TRAIN, GPU_SERVE),
        head=Head(price=0.1008),
        queues=QUEUES,
        priorities=(Priority("train", 100, "Nightly training"),),
        buckets=(Bucket("demo-data", "us-east-1", read=("raw/",), write=("models/",)),),
        serve=SERVE,
        serve_host="rank.example.com",
        eks_cluster="demo",
        text="# As it was read.\nname: demo\n",
    )
    return replace(made, **changes)


def tls_platform(**changes: Any) -> Platform:
    """As :func:`example_platform`, with TLS whose certificate cert-manager makes."""
    tls = Tls(is_enabled=True, source="cert-manager", issuer="platform-ca")
    return example_platform(**{"tls": tls, **changes})


def dask_platform(**changes: Any) -> Platform:
    """As :func:`example_platform`, with Dask's own scheduler and workers."""
    head = Head(state=HeadState(kind="none"))
    return example_platform(**{"runtime": "dask", "head": head, **changes})


def small_platform(**changes: Any) -> Platform:
    """For clusters on one machine: small pods, no cloud, nothing that is kept."""
    cpu = Group("cpu", cpus=1, memory_gib=0.5, max=3, cold_start_s=30.0, store_gib=0.1)
    gpu = Group(
        "gpu",
        cpus=1,
        memory_gib=0.5,
        accelerator=Accelerator("L4", 1),
        max=3,
        cold_start_s=30.0,
        store_gib=0.1,
    )
    made = Platform(
        name="demo",
        namespace="ray-prod",
        region="us-east-1",
        zones=("us-east-1a",),
        images=Images("rayshim:cpu", "rayshim:gpu"),
        groups=(cpu, gpu),
        head=Head(cpus=1.0, memory_gib=1.0, state=HeadState(kind="none")),
        text="# As it was read.\nname: demo\n",
    )
    return replace(made, **changes)


VOLUME = Head(state=HeadState("volume"))
EXTERNAL = Head(state=HeadState("external", secret="journal", endpoint="cache.example"))
#: Name -> one of each kind.
PLATFORMS: dict[str, Callable[[], Platform]] = {
    "example": example_platform,
    "tls": tls_platform,
    "dask": dask_platform,
    "dask-tls": lambda: dask_platform(tls=Tls(is_enabled=True)),
    "small": small_platform,
    "volume": lambda: example_platform(head=VOLUME),
    "external": lambda: example_platform(head=EXTERNAL),
}
