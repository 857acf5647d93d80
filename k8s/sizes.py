"""Sizes that follow from the service levels of a platform, each with its arithmetic.

Nothing here is a figure of its own: a :class:`~rayshim.k8s.figures.Size` is computed
from inputs, which stand in platform.yaml, and from other sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rayshim.k8s.config import (
    Halving,
    IngestLevel,
    Platform,
    ServeLevel,
    TrainLevel,
    TuneLevel,
)
from rayshim.k8s.figures import (
    HOURS_PER_MONTH,
    MONTH,
    Input,
    Size,
    amount,
    computed,
    figure,
    whole,
)


@dataclass(frozen=True, slots=True)
class _InOrder:
    """Sizes, to be told in the order of their fields."""

    def __iter__(self) -> Iterator[Size]:
        return (getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class ServeSizes(_InOrder):
    """Of the serving group."""

    p50: Size
    p99: Size
    spare: Size
    rows: Size
    batch_time: Size
    capacity: Size
    usable: Size
    replicas: Size
    needed: Size
    per_zone: Size
    workers: Size
    downtime: Size


def serve_sizes(level: ServeLevel) -> ServeSizes:
    """Latency and workers of a serving level.

    A replica takes a batch each time that one has waited in the queue and passed
    forward; that these could overlap is left as reserve. Replicas are spread evenly
    over zones, and those of all zones but one carry the load.
    """
    at = "service_levels.serve"
    parts = {
        name: Input(name.replace("_", "-"), ms, "ms", f"{at}.latency_ms.{name}")
        for name, ms in level.latency_ms.items()
    }
    total = sum(level.latency_ms.values())
    tail = Input("tail", level.tail_ms, "ms", f"{at}.tail_ms")
    limit = Input("p99 limit", level.p99_ms, "ms", f"{at}.p99_ms")
    batch = Input("batch", level.batch, "requests", f"{at}.batch")
    rate = Input(
        "request rate", level.requests_per_s, "requests/s", f"{at}.requests_per_s"
    )
    share = Input("utilisation", level.utilisation, "", f"{at}.utilisation")
    zones = Input("zones", level.zones, "zones", f"{at}.zones")
    each = Input("candidates", level.candidates, "rows/request", f"{at}.candidates")
    packed = Input(
        "replicas per worker",
        level.replicas_per_worker,
        "replicas/worker",
        f"{at}.replicas_per_worker",
    )
    available = Input("availability", level.availability, "", f"{at}.availability")

    p50 = Size(
        "p50",
        total,
        "ms",
        " + ".join(one.name for one in parts.values()),
        " + ".join(amount(one.value, one.unit) for one in parts.values()),
        tuple(parts.values()),
    )
    p99 = computed(
        "p99",
        total + level.tail_ms,
        "ms",
        "{p50} + {tail}",
        note=f"of {amount(level.p99_ms, 'ms')} allowed",
        p50=p50,
        tail=tail,
    )
    batch_ms = level.latency_ms["queue"] + level.latency_ms["forward"]
    batch_time = computed(
        "time of a batch",
        batch_ms,
        "ms",
        "{queue} + {forward}",
        queue=parts["queue"],
        forward=parts["forward"],
    )
    per_s = level.batch / batch_ms * 1000
    capacity = computed(
        "one replica at full load",
        per_s,
        "requests/s",
        "{batch} / {time} x 1000 ms/s",
        batch=batch,
        time=batch_time,
    )
    usable = computed(
        "one replica as planned",
        per_s * level.utilisation,
        "requests/s",
        "{capacity} x {share}",
        note="the rest keeps the queue short",
        capacity=capacity,
        share=share,
    )
    count = whole(level.requests_per_s / usable.value)
    replicas = computed(
        "replicas for the load",
        count,
        "replicas",
        "ceil({rate} / {usable})",
        rate=rate,
        usable=usable,
    )
    workers_needed = whole(count / level.replicas_per_worker)
    needed = computed(
        "workers for the load",
        workers_needed,
        "workers",
        "ceil({replicas} / {packed})",
        replicas=replicas,
        packed=packed,
    )
    if level.zones > 1:
        zone_workers = whole(workers_needed / (level.zones - 1))
        per_zone = computed(
            "workers of a zone",
            zone_workers,
            "workers/zone",
            "ceil({needed} / ({zones} - 1 zone))",
            note="one zone may be lost",
            needed=needed,
            zones=zones,
        )
    else:
        zone_workers = workers_needed
        per_zone = computed(
            "workers of a zone",
            zone_workers,
            "workers/zone",
            "{needed} / {zones}",
            note="a lost zone stops serving",
            needed=needed,
            zones=zones,
        )
    return ServeSizes(
        p50=p50,
        p99=p99,
        spare=computed(
            "latency left",
            level.p99_ms - p99.value,
            "ms",
            "{limit} - {p99}",
            limit=limit,
            p99=p99,
        ),
        rows=computed(
            "rows of a forward pass",
            level.batch * level.candidates,
            "rows",
            "{batch} x {each}",
            batch=batch,
            each=each,
        ),
        batch_time=batch_time,
        capacity=capacity,
        usable=usable,
        replicas=replicas,
        needed=needed,
        per_zone=per_zone,
        workers=computed(
            "workers",
            zone_workers * level.zones,
            "workers",
            "{per_zone} x {zones}",
            note="always there",
            per_zone=per_zone,
            zones=zones,
        ),
        downtime=computed(
            "late or failed, allowed in a month",
            (1 - level.availability) * level.requests_per_s * HOURS_PER_MONTH * 3600,
            "requests",
            "(1 - {available}) x {rate} x {month} x 3600 s/h",
            note="as many as "
            f"{amount((1 - level.availability) * HOURS_PER_MONTH * 60, 'minutes')} "
            "without service",
            available=available,
            rate=rate,
            month=MONTH,
        ),
    )


@dataclass(frozen=True, slots=True)
class TrainSizes(_InOrder):
    """Of the training group."""

    per_worker: Size
    needed: Size
    run: Size
    epoch: Size
    spare: Size
    month: Size


def train_sizes(level: TrainLevel) -> TrainSizes:
    """Workers and hours of a training level; more workers are that much faster."""
    at = "service_levels.train"
    rows = Input("rows", level.rows, "rows", f"{at}.rows")
    epochs = Input("epochs", level.epochs, "epochs", f"{at}.epochs")
    speed = Input("rows per second", level.rows_per_s, "rows/s", f"{at}.rows_per_s")
    workers = Input("workers", level.workers, "workers", f"{at}.workers")
    window = Input("window", level.window_h, "h", f"{at}.window_h")
    share = Input("share of the window", level.window_share, "", f"{at}.window_share")
    runs = Input("runs", level.runs_per_month, "runs", f"{at}.runs_per_month")

    each = level.rows_per_s / level.workers
    work_s = level.rows * level.epochs / level.rows_per_s
    per_worker = computed(
        "one worker",
        each,
        "rows/s",
        "{speed} / {workers}",
        speed=speed,
        workers=workers,
    )
    run = computed(
        "one run",
        work_s / 3600,
        "h",
        "{rows} x {epochs} / {speed} / 3600 s/h",
        note=f"of a window of {amount(level.window_h, 'h')}",
        rows=rows,
        epochs=epochs,
        speed=speed,
    )
    epoch = computed(
        "one epoch again after a crash",
        run.value / level.epochs,
        "h",
        "{run} / {epochs}",
        note="a checkpoint is written after each epoch",
        run=run,
        epochs=epochs,
    )
    return TrainSizes(
        per_worker=per_worker,
        needed=computed(
            "workers needed",
            whole(
                level.rows
                * level.epochs
                / (each * level.window_h * 3600 * level.window_share)
            ),
            "workers",
            "ceil({rows} x {epochs} / ({each} x {window} x 3600 s/h x {share}))",
            rows=rows,
            epochs=epochs,
            each=per_worker,
            window=window,
            share=share,
        ),
        run=run,
        epoch=epoch,
        spare=computed(
            "window left after a crash",
            level.window_h - run.value - epoch.value,
            "h",
            "{window} - {run} - {epoch}",
            note="for late data and machines that do not come at once",
            window=window,
            run=run,
            epoch=epoch,
        ),
        month=computed(
            "training in a month",
            level.runs_per_month * run.value,
            "h",
            "{runs} x {run}",
            runs=runs,
            run=run,
        ),
    )


@dataclass(frozen=True, slots=True)
class IngestSizes(_InOrder):
    """Of the group that reads for the training group."""

    row: Size
    rate: Size
    workers: Size


def ingest_sizes(level: IngestLevel, train: TrainLevel) -> IngestSizes:
    """Workers that read as fast as the training group learns, in each epoch anew."""
    at = "service_levels"
    data = Input("data", train.data_tb, "TB", f"{at}.train.data_tb")
    rows = Input("rows", train.rows, "rows", f"{at}.train.rows")
    speed = Input(
        "rows per second", train.rows_per_s, "rows/s", f"{at}.train.rows_per_s"
    )
    each = Input("one worker", level.mb_per_s, "MB/s", f"{at}.ingest.mb_per_s")
    row = computed(
        "one row",
        train.data_tb * 1e9 / train.rows,
        "kB/row",
        "{data} x 1000000000 kB/TB / {rows}",
        data=data,
        rows=rows,
    )
    rate = computed(
        "to read while training",
        row.value * train.rows_per_s / 1000,
        "MB/s",
        "{row} x {speed} / 1000 kB/MB",
        row=row,
        speed=speed,
    )
    return IngestSizes(
        row=row,
        rate=rate,
        workers=computed(
            "workers",
            whole(rate.value / level.mb_per_s),
            "workers",
            "ceil({rate} / {each})",
            note="there while training runs",
            rate=rate,
            each=each,
        ),
    )


@dataclass(frozen=True, slots=True)
class TuneSizes:
    """Of the search."""

    full: Size
    halved: tuple[Size, ...]
    search: Size
    month: Size

    def __iter__(self) -> Iterator[Size]:
        return iter((self.full, *self.halved, self.search, self.month))


def tune_sizes(level: TuneLevel, workers: int, gpus: int) -> TuneSizes:
    """Hours of a search.

    Args:
        level: what is searched.
        workers: that it uses at once.
        gpus: of one of them.
    """
    at = "service_levels.tune"
    count = Input(
        "configurations", level.configurations, "configurations", f"{at}.configurations"
    )
    each = Input("one whole run", level.gpu_hours_each, "GPU-h", f"{at}.gpu_hours_each")
    budget = Input(
        "budget of a search", level.budget_gpu_hours, "GPU-h", f"{at}.budget_gpu_hours"
    )
    used = Input("workers", workers, "workers", "service_levels.train.workers")
    held = Input(
        "GPUs of a worker", gpus, "GPUs", f"groups.{level.group}.accelerator.count"
    )
    runs = Input("searches", level.runs_per_month, "searches", f"{at}.runs_per_month")
    full_h = level.configurations * level.gpu_hours_each
    search = computed(
        "one search",
        level.budget_gpu_hours / (workers * gpus),
        "h",
        "{budget} / ({used} x {held})",
        budget=budget,
        used=used,
        held=held,
    )
    return TuneSizes(
        full=computed(
            "all to the end",
            full_h,
            "GPU-h",
            "{count} x {each}",
            note=f"about {figure(_to_fifty(full_h))}",
            count=count,
            each=each,
        ),
        halved=tuple(
            _halved(way, level, n, each) for n, way in enumerate(level.halving)
        ),
        search=search,
        month=computed(
            "searching in a month",
            level.runs_per_month * search.value,
            "h",
            "{runs} x {search}",
            runs=runs,
            search=search,
        ),
    )


def rungs(level: TuneLevel, way: Halving) -> list[tuple[int, float, float]]:
    """Steps of successive halving: (configurations, share of a run before, and after).

    One of ``reduction_factor`` configurations goes on from where it stopped, with that
    many times the budget, until the best have had a whole run.

    Source: Jamieson and Talwalkar, Non-stochastic Best Arm Identification and
    Hyperparameter Optimization, 2016, algorithm 1; Li et al., A System for Massively
    Parallel Hyperparameter Tuning, 2020, algorithm 1 (n_i = floor(n / factor^i)).
    """
    found = []
    before = 0.0
    share = 1.0 / way.grace_divisor
    count = level.configurations
    while count >= 1 and before < 1.0:
        share = 1.0 if share > 1 - 1e-9 else share
        found.append((count, before, share))
        before, share = share, min(share * way.reduction_factor, 1.0)
        count //= way.reduction_factor
    return found


def _halved(way: Halving, level: TuneLevel, n: int, each: Input) -> Size:
    steps = rungs(level, way)
    runs = sum(count * (after - before) for count, before, after in steps)
    terms = [
        f"{count} x ({_share(after, way)} - {_share(before, way)})"
        if before
        else f"{count} x {_share(after, way)}"
        for count, before, after in steps
    ]
    hours = runs * level.gpu_hours_each
    at = f"service_levels.tune.halving[{n}]"
    factor = Input(
        "reduction factor", way.reduction_factor, "", f"{at}.reduction_factor"
    )
    grace = Input("grace divisor", way.grace_divisor, "", f"{at}.grace_divisor")
    return Size(
        f"one in {way.reduction_factor} goes on, first after 1/{way.grace_divisor}",
        hours,
        "GPU-h",
        f"sum of configurations x (share after - share before) x {each.name}",
        f"({' + '.join(terms)}) x {amount(each.value, each.unit)}",
        (factor, grace, each),
        f"about {figure(_to_fifty(hours))}",
    )


def _share(value: float, way: Halving) -> str:
    parts = round(value * way.grace_divisor, 6)
    return "1" if value == 1 else f"{figure(parts)}/{way.grace_divisor}"


def _to_fifty(value: float) -> float:
    return round(value / 50) * 50.0


def required_workers(platform: Platform, group: str) -> int:
    """The most workers of a group that a service level uses at once; 0: none does.

    Training and a search may run at the same time, each with its own.
    """
    found = 0
    if platform.serve is not None and platform.serve.group == group:
        found += int(serve_sizes(platform.serve).workers.value)
    if platform.train is not None and platform.train.group == group:
        found += platform.train.workers
    if platform.tune is not None and platform.tune.group == group:
        found += tune_workers(platform)
    if platform.ingest is not None and platform.train is not None:
        if platform.ingest.group == group:
            sizes = ingest_sizes(platform.ingest, platform.train)
            found += int(sizes.workers.value)
    return found


def tune_workers(platform: Platform) -> int:
    """Workers that a search uses: as many as training, or all of its group."""
    tune, train = platform.tune, platform.train
    if tune is None:
        return 0
    if train is not None and train.group == tune.group:
        return train.workers
    return platform.group(tune.group).max
