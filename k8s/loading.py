"""Reads a platform.yaml; what is wrong is a ConfigError with its path in the file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from rayshim.k8s.config import (
    Accelerator,
    Bucket,
    ConfigError,
    DrillLimits,
    Group,
    Halving,
    Head,
    HeadState,
    Images,
    IngestLevel,
    Platform,
    Prices,
    Priority,
    Queue,
    Residency,
    ServeLevel,
    Tls,
    TrainLevel,
    TuneLevel,
)
from rayshim.k8s.consistency import check
from rayshim.k8s.cost import scaled
from rayshim.k8s.reading import WHOLE, Reader, merged, read_yaml
from rayshim.k8s.residency import check_residency
from rayshim.k8s.serializing import to_yaml

#: Files that may extend each other in a row.
MAX_FILES: Final = 10

#: Of AWS, as "us-gov-west-1".
_REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]"
_HOST = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


def load_platform(source: Path | str, *, scale: float = 1.0) -> Platform:
    """The platform of a file.

    A file may begin with ``extends: ../platform.yaml``: maps are merged into those of
    that file, lists and values replace them, and an empty value removes a key.

    Args:
        source: path of the file.
        scale: how many of its load, as :func:`rayshim.k8s.cost.scaled` takes it.

    Raises:
        ConfigError: it cannot be read or used; names file, path and what to write.

    Example:
        >>> load_platform("k8s/deploy/platform.yaml").group("gpu-train").max
        8
    """
    return _parsed(_read(Path(source), []), str(source), scale)


def parse_platform(
    text: str, *, source: str = "platform.yaml", scale: float = 1.0
) -> Platform:
    """The platform of a YAML text.

    Args:
        text: as in a file, without ``extends``.
        source: name for messages.
        scale: as for :func:`load_platform`.

    Raises:
        ConfigError: as for :func:`load_platform`.
    """
    values = read_yaml(text, source)
    if "extends" in values:
        problem = "needs a file to start from; use load_platform with a path"
        raise ConfigError("extends", problem, source)
    return _parsed(values, source, scale)


def _read(path: Path, extending: list[Path]) -> dict[str, Any]:
    """The values of a file, merged into those that it extends."""
    source = str(path)
    try:
        place = path.resolve()
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        if extending:
            problem = f"cannot read {source}: {error}"
            raise ConfigError("extends", problem, str(extending[-1])) from error
        problem = f"cannot be read: {error}; name a platform.yaml"
        raise ConfigError(WHOLE, problem, source) from error
    if place in extending or len(extending) >= MAX_FILES:
        row = " -> ".join(one.name for one in [*extending, place])
        problem = f"goes round in a circle or is too long a row: {row}"
        raise ConfigError("extends", problem, source)
    values = read_yaml(text, source)
    if "extends" not in values:
        return values
    base = Reader(values, "", source).text("extends")
    del values["extends"]
    found: dict[str, Any] = merged(
        _read(path.parent / base, [*extending, place]), values
    )
    return found


def _parsed(values: dict[str, Any], source: str, scale: float) -> Platform:
    if isinstance(scale, bool) or not 0 < scale < math.inf:
        raise ConfigError("scale", f"must be above 0, not {scale}", source)
    found = _platform(Reader(values, "", source, _KEYS))
    check(found)
    for problem in check_residency(found):
        raise problem
    factor = found.scale * scale
    # What reads it again is told the scale (of both) beside it.
    rest = {name: value for name, value in values.items() if name != "scale"}
    found = replace(found, text=to_yaml([rest]))
    if factor == 1:
        return found
    larger = scaled(replace(found, scale=1.0), factor)
    for one in (larger, *larger.others):
        check(one)
    return larger


_KEYS = (
    "name namespace region zones runtime kubernetes_version eks_cluster account scale "
    "images head tls groups queues priorities buckets residency service_levels ingress "
    "drill prices"
).split()


def _platform(top: Reader) -> Platform:
    runtime = cast(
        'Literal["rayshim", "dask"]',
        top.choice("runtime", ["rayshim", "dask"], "rayshim"),
    )
    images = top.child("images", ["cpu", "gpu"])
    levels = top.child("service_levels", ["serve", "train", "ingest", "tune"])
    ingress = top.child("ingress", ["host"])
    name = top.text("name")
    cpu_image = images.text("cpu")
    return Platform(
        name=name,
        namespace=top.text(
            "namespace", match=_LABEL, hint="lower-case letters, digits and '-'"
        ),
        region=top.text("region", match=_REGION, hint="a region such as us-east-1"),
        zones=top.texts("zones"),
        images=Images(cpu_image, images.text("gpu", cpu_image)),
        groups=tuple(_group(name, one) for name, one in _groups(top).items()),
        runtime=runtime,
        head=_head(top.child("head", _HEAD), runtime),
        tls=_tls(top.child("tls", _TLS)),
        queues=tuple(
            Queue(
                queue,
                one.amounts("quota"),
                one.amounts("borrowing") if "borrowing" in one else None,
                one.texts("groups", ()),
            )
            for queue, one in top.children(
                "queues", ["quota", "borrowing", "groups"]
            ).items()
        ),
        priorities=tuple(
            Priority(
                priority,
                one.integer("value", low=-(2**31), high=10**9),
                one.text("description", ""),
            )
            for priority, one in top.children(
                "priorities", ["value", "description"]
            ).items()
        ),
        buckets=tuple(
            Bucket(
                bucket,
                one.text("region", match=_REGION, hint="a region such as us-east-1"),
                one.texts("read", ()),
                one.texts("write", ()),
            )
            for bucket, one in top.children(
                "buckets", ["region", "read", "write"]
            ).items()
        ),
        residency=_residency(top),
        serve=_serve(levels),
        train=_train(levels),
        ingest=_ingest(levels),
        tune=_tune(levels),
        prices=_prices(top.child("prices", _PRICES)),
        drill=_drill(top.child("drill", _DRILL)),
        serve_host=ingress.text("host", "", match=_HOST, hint="a host name"),
        eks_cluster=top.text(
            "eks_cluster",
            name,
            match="[A-Za-z0-9][-A-Za-z0-9_]{0,99}",
            hint="letters, digits, '-' and '_'",
        ),
        account=top.text(
            "account", "111122223333", match="[0-9]{12}", hint="12 digits in quotes"
        ),
        kubernetes_version=top.text(
            "kubernetes_version", "1.33", match=r"1\.[0-9]{2}", hint='such as "1.33"'
        ),
        scale=top.number("scale", 1.0, above=0, high=1000),
        source=top.source,
    )


_GROUP = (
    "shape accelerator labels min max warm idle_timeout_s upscaling_speed cold_start_s "
    "price instances capacity queue gang priority env node_selector tolerations "
    "pod_spec"
).split()


def _groups(top: Reader) -> dict[str, Reader]:
    found = top.children("groups", _GROUP)
    if not found:
        raise top.error("groups", "is missing or empty; describe at least one group")
    return found


def _group(name: str, one: Reader) -> Group:
    one.value("shape")
    shape = one.child("shape", ["cpus", "memory", "store", "resources"])
    capacity = one.choice("capacity", ["on-demand", "spot"], "on-demand")
    return Group(
        name,
        cpus=shape.cpus("cpus"),
        memory_gib=shape.gib("memory"),
        accelerator=_accelerator(one),
        resources=shape.amounts("resources"),
        labels=one.words("labels"),
        min=one.integer("min", 0, high=10_000),
        max=one.integer("max", 1, low=1, high=10_000),
        warm=one.integer("warm", 0, high=10_000),
        idle_timeout_s=one.number("idle_timeout_s", 60.0, low=0, high=86_400),
        upscaling_speed=one.number("upscaling_speed", 1.0, low=0, high=1000),
        cold_start_s=one.number("cold_start_s", 300.0, above=0, high=86_400),
        price=one.number("price", 0.0, low=0, high=10_000),
        instances=one.texts("instances", ()),
        capacity=cast('Literal["on-demand", "spot"]', capacity),
        store_gib=shape.gib("store", 0.0),
        queue=one.text("queue", ""),
        is_gang=one.flag("gang", False),
        priority=one.text("priority", ""),
        env=one.words("env"),
        node_selector=one.words("node_selector"),
        tolerations=one.plains("tolerations"),
        pod_spec=one.plain("pod_spec"),
    )


def _accelerator(group: Reader) -> Accelerator | None:
    if "accelerator" not in group:
        return None
    one = group.child("accelerator", ["type", "count", "resource"])
    return Accelerator(
        one.text("type", match="[A-Za-z0-9][-A-Za-z0-9_.]*", hint="a name such as L4"),
        one.integer("count", 1, low=1, high=64),
        one.text(
            "resource",
            "nvidia.com/gpu",
            match=r"[-a-z0-9.]+/[-A-Za-z0-9_.]+",
            hint="an extended resource such as nvidia.com/gpu",
        ),
    )


_HEAD = ["cpus", "memory", "instance", "price", "state", "env"]
_STATE = "kind secret endpoint region storage storage_class image".split()


def _head(one: Reader, runtime: str) -> Head:
    usual = Head()
    state = one.child("state", _STATE)
    kinds = ["valkey", "external", "volume", "none"]
    kind = state.choice("kind", kinds, "none" if runtime == "dask" else "valkey")
    kept = HeadState()
    return Head(
        cpus=one.cpus("cpus") if "cpus" in one else usual.cpus,
        memory_gib=one.gib("memory", usual.memory_gib),
        instance=one.text("instance", usual.instance),
        price=one.number("price", 0.0, low=0, high=10_000),
        state=HeadState(
            kind=cast('Literal["valkey", "external", "volume", "none"]', kind),
            secret=state.text("secret", ""),
            endpoint=state.text("endpoint", "", match=_HOST, hint="a host name"),
            region=state.text(
                "region", "", match=_REGION, hint="a region such as us-east-1"
            ),
            storage_gib=state.gib("storage", kept.storage_gib),
            storage_class=state.text("storage_class", kept.storage_class),
            image=state.text("image", kept.image),
        ),
        env=one.words("env"),
    )


_TLS = ["enabled", "source", "secret", "issuer", "issuer_kind"]


def _tls(one: Reader) -> Tls:
    source = one.choice("source", ["cert-manager", "secret"], "secret")
    kind = one.choice("issuer_kind", ["Issuer", "ClusterIssuer"], "Issuer")
    return Tls(
        is_enabled=one.flag("enabled", False),
        source=cast('Literal["cert-manager", "secret"]', source),
        secret=one.text("secret", Tls().secret),
        issuer=one.text("issuer", ""),
        issuer_kind=cast('Literal["Issuer", "ClusterIssuer"]', kind),
    )


def _residency(top: Reader) -> Residency | None:
    if "residency" not in top:
        return None
    one = top.child("residency", ["region", "may_share_storage"])
    return Residency(
        one.text("region", match=_REGION, hint="a region such as eu-central-1"),
        one.flag("may_share_storage", False),
    )


_SERVE = (
    "group requests_per_s candidates p99_ms availability latency_ms tail_ms batch "
    "utilisation zones replicas_per_worker own_cluster_from_scale"
).split()


def _serve(levels: Reader) -> ServeLevel | None:
    if "serve" not in levels:
        return None
    one = levels.child("serve", _SERVE)
    parts = Reader(one.value("latency_ms"), one.path("latency_ms"), one.source)
    return ServeLevel(
        group=one.text("group"),
        requests_per_s=one.number("requests_per_s", above=0, high=1e9),
        candidates=one.integer("candidates", low=1),
        p99_ms=one.number("p99_ms", above=0, high=1e7),
        availability=one.number("availability", above=0, high=1),
        latency_ms={
            name: parts.number(name, above=0, high=1e7) for name in parts.names()
        },
        tail_ms=one.number("tail_ms", low=0, high=1e7),
        batch=one.integer("batch", low=1, high=100_000),
        utilisation=one.number("utilisation", above=0, high=1),
        zones=one.integer("zones", low=1, high=20),
        replicas_per_worker=one.integer("replicas_per_worker", 1, low=1, high=1000),
        own_cluster_from_scale=one.number("own_cluster_from_scale", 10.0, above=0),
    )


_TRAIN = (
    "group data_tb rows epochs rows_per_s workers window_h window_share runs_per_month"
).split()


def _train(levels: Reader) -> TrainLevel | None:
    if "train" not in levels:
        return None
    one = levels.child("train", _TRAIN)
    return TrainLevel(
        group=one.text("group"),
        data_tb=one.number("data_tb", above=0, high=1e9),
        rows=one.number("rows", above=0, high=1e15),
        epochs=one.integer("epochs", low=1),
        rows_per_s=one.number("rows_per_s", above=0, high=1e12),
        workers=one.integer("workers", low=1, high=10_000),
        window_h=one.number("window_h", above=0, high=730),
        window_share=one.number("window_share", 0.55, above=0, high=1),
        runs_per_month=one.number("runs_per_month", above=0, high=100_000),
    )


def _ingest(levels: Reader) -> IngestLevel | None:
    if "ingest" not in levels:
        return None
    one = levels.child("ingest", ["group", "mb_per_s"])
    return IngestLevel(one.text("group"), one.number("mb_per_s", above=0, high=1e6))


_TUNE = (
    "group configurations gpu_hours_each budget_gpu_hours runs_per_month "
    "after_training halving"
).split()


def _tune(levels: Reader) -> TuneLevel | None:
    if "tune" not in levels:
        return None
    one = levels.child("tune", _TUNE)
    ways = []
    for n, value in enumerate(one.plains("halving")):
        keys = ["reduction_factor", "grace_divisor"]
        way = Reader(value, one.path(f"halving[{n}]"), one.source, keys)
        ways.append(
            Halving(
                way.integer("reduction_factor", low=2, high=1000),
                way.integer("grace_divisor", low=2, high=10**6),
            )
        )
    return TuneLevel(
        group=one.text("group"),
        configurations=one.integer("configurations", low=1, high=10**6),
        gpu_hours_each=one.number("gpu_hours_each", above=0, high=1e7),
        budget_gpu_hours=one.number("budget_gpu_hours", above=0, high=1e9),
        runs_per_month=one.number("runs_per_month", above=0, high=10_000),
        after_training=one.flag("after_training", False),
        halving=tuple(ways),
    )


_PRICES = ["control_plane", "storage_gb_month", "transfer_gb"]


def _prices(one: Reader) -> Prices:
    return Prices(*(one.number(key, 0.0, low=0, high=10_000) for key in _PRICES))


_DRILL = ["train_worker_s", "serve_replica_s", "head_s"]


def _drill(one: Reader) -> DrillLimits:
    usual = DrillLimits()
    return DrillLimits(
        *(one.number(key, getattr(usual, key), above=0, high=86_400) for key in _DRILL)
    )
