"""What a platform costs in a month, and the platform at a multiple of its load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rayshim.k8s.config import Group, Platform
from rayshim.k8s.figures import (
    HOURS_PER_MONTH,
    MONTH,
    Input,
    Size,
    computed,
    figure,
    whole,
)
from rayshim.k8s.figures import amount as written
from rayshim.k8s.scaling import scaled
from rayshim.k8s.sizes import (
    ingest_sizes,
    serve_sizes,
    train_sizes,
    tune_sizes,
    tune_workers,
)

__all__ = [
    "HOURS_PER_MONTH",
    "CostTable",
    "FixedCost",
    "GroupCost",
    "monthly_costs",
    "scaled",
]


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Of one group in a month, US dollars."""

    group: str
    #: Name of the platform it belongs to.
    platform: str
    #: Workers that its service levels use at once; without a level all it may have.
    workers: int
    #: Of one worker for an hour.
    price: float
    #: Hours for which so many are paid in a month, with their starts and idle ends.
    hours: float
    #: Were they always there.
    pinned: float
    #: As it is.
    elastic: float
    #: The arithmetic, in order; the last two are ``elastic`` and ``pinned``.
    steps: tuple[Size, ...] = ()


@dataclass(frozen=True, slots=True)
class FixedCost:
    """What does not follow the load, US dollars a month."""

    name: str
    platform: str
    monthly: float
    #: How it comes about.
    size: Size


@dataclass(frozen=True, slots=True)
class CostTable:
    """A month of a platform, with those on clusters of their own."""

    groups: tuple[GroupCost, ...]
    fixed: tuple[FixedCost, ...]

    @property
    def elastic(self) -> float:
        """All of it, as it is."""
        return self._fixed + sum(one.elastic for one in self.groups)

    @property
    def pinned(self) -> float:
        """All of it, were all workers always there."""
        return self._fixed + sum(one.pinned for one in self.groups)

    @property
    def _fixed(self) -> float:
        return sum(one.monthly for one in self.fixed)

    def to_text(self) -> str:
        """As a table for a terminal, ending in a line break."""
        rows = [self._head(), *self._rows()]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        texts = []
        for row in rows:
            cells = [
                cell.ljust(width) if n < self._words else cell.rjust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            texts.append("  ".join(cells).rstrip() + "\n")
        return "".join(texts)

    def to_markdown(self) -> str:
        """As a table of Markdown, ending in a line break."""
        head = self._head()
        rule = ["---" if n < self._words else "---:" for n in range(len(head))]
        rows = [head, rule, *self._rows()]
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)

    def to_json(self) -> dict[str, Any]:
        """As plain maps, lists and numbers."""
        kept = ("group", "platform", "workers", "price", "hours", "pinned", "elastic")
        return {
            "currency": "USD",
            "hours_per_month": HOURS_PER_MONTH,
            "groups": [{key: getattr(one, key) for key in kept} for one in self.groups],
            "fixed": [
                {
                    "name": one.name,
                    "platform": one.platform,
                    "monthly": one.monthly,
                    "formula": one.size.arithmetic,
                }
                for one in self.fixed
            ],
            "elastic": self.elastic,
            "pinned": self.pinned,
        }

    @property
    def _words(self) -> int:
        """Columns of words, which come first."""
        return 2 if self._is_wide else 1

    @property
    def _is_wide(self) -> bool:
        return len({one.platform for one in self.groups}) > 1

    def _head(self) -> list[str]:
        first = ["platform", "group"] if self._is_wide else ["group"]
        return [*first, "workers", "$/h each", "hours", "$/month", "$/month if pinned"]

    def _rows(self) -> Iterator[list[str]]:
        for one in self.groups:
            numbers = [
                str(one.workers),
                f"{one.price:.2f}",
                figure(one.hours),
                dollars(one.elastic),
                dollars(one.pinned),
            ]
            yield self._row(one.platform, one.group, numbers)
        for fixed in self.fixed:
            same = dollars(fixed.monthly)
            yield self._row(fixed.platform, fixed.name, ["", "", "", same, same])
        total = ["", "", "", dollars(self.elastic), dollars(self.pinned)]
        yield self._row("", "total", total)

    def _row(self, platform: str, name: str, numbers: list[str]) -> list[str]:
        return [*([platform] if self._is_wide else []), name, *numbers]


def dollars(value: float) -> str:
    """An amount in whole dollars.

    Example:
        >>> dollars(8760.0)
        '$8,760'
    """
    return f"${value:,.0f}"


def monthly_costs(platform: Platform) -> CostTable:
    """What a month of a platform costs, with its ``others``.

    Storage, control planes and heads count if the file has a price for them.
    """
    groups: list[GroupCost] = []
    fixed: list[FixedCost] = []
    for one in (platform, *platform.others):
        groups += [_group_cost(one, group) for group in one.groups]
        fixed += _fixed_costs(one)
    return CostTable(tuple(groups), tuple(fixed))


def _group_cost(platform: Platform, group: Group) -> GroupCost:
    works = list(_works(platform, group))
    always = max(group.min, group.warm)
    terms: list[tuple[int, Input | Size]] = [(always, MONTH)] if always else []
    for work in works:
        extra = work.workers + group.warm - always
        if extra > 0:
            terms += [(extra, one) for one in work.hours]
    worker_hours = sum(count * one.value for count, one in terms)
    most = max((one.workers for one in works), default=group.max)
    workers = max(most, whole(worker_hours / HOURS_PER_MONTH))
    count = Input("workers", workers, "workers", "")
    price = Input("price", group.price, "$/h", f"groups.{group.name}.price")
    paid = _paid(group.name, terms, count)
    elastic = computed(
        f"{group.name}, a month",
        workers * group.price * paid.value,
        "$",
        "{count} x {price} x {paid}",
        count=count,
        price=price,
        paid=paid,
    )
    pinned = computed(
        f"{group.name}, a month if always there",
        workers * group.price * HOURS_PER_MONTH,
        "$",
        "{count} x {price} x {month}",
        count=count,
        price=price,
        month=MONTH,
    )
    hours = [one for work in works for one in work.hours if isinstance(one, Size)]
    return GroupCost(
        group.name,
        platform.name,
        workers,
        group.price,
        paid.value,
        pinned.value,
        elastic.value,
        (*hours, paid, elastic, pinned),
    )


def _paid(group: str, terms: list[tuple[int, Input | Size]], workers: Input) -> Size:
    """Hours for which all of a group's workers are paid."""
    name = f"{group}, hours paid in a month"
    if not terms:
        note = "no service level uses it; it costs what it is asked for"
        return Size(name, 0.0, "h", "none", "0 h", (), note)
    inputs = tuple(dict.fromkeys(one for _, one in terms))
    if all(count == workers.value for count, _ in terms):
        return Size(
            name,
            sum(one.value for _, one in terms),
            "h",
            " + ".join(one.name for _, one in terms),
            " + ".join(written(one.value, one.unit) for _, one in terms),
            inputs,
        )
    figures = [f"{count} x {written(one.value, one.unit)}" for count, one in terms]
    return Size(
        name,
        sum(count * one.value for count, one in terms) / workers.value,
        "h",
        f"sum of workers x hours / {workers.name}",
        f"({' + '.join(figures)}) / {written(workers.value, workers.unit)}",
        (*inputs, workers),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What a group does in a month for one service level."""

    workers: int
    #: That it takes, and what starting and waiting for more work add.
    hours: tuple[Input | Size, ...]


def _works(platform: Platform, group: Group) -> Iterator[_Work]:
    serve, train, tune = platform.serve, platform.train, platform.tune
    if serve is not None and serve.group == group.name:
        yield _Work(int(serve_sizes(serve).workers.value), (MONTH,))
    if train is not None:
        path = "service_levels.train.runs_per_month"
        runs = Input("runs", train.runs_per_month, "runs", path)
        hours = (train_sizes(train).month, _starting(group, runs))
        if train.group == group.name:
            yield _Work(train.workers, hours)
        ingest = platform.ingest
        if ingest is not None and ingest.group == group.name:
            yield _Work(int(ingest_sizes(ingest, train).workers.value), hours)
    if tune is not None and tune.group == group.name:
        workers = tune_workers(platform)
        gpus = group.accelerator.count if group.accelerator is not None else 1
        month = tune_sizes(tune, workers, gpus).month
        path = "service_levels.tune.runs_per_month"
        searches = Input("searches", tune.runs_per_month, "searches", path)
        starting = () if tune.after_training else (_starting(group, searches),)
        yield _Work(workers, (month, *starting))


def _starting(group: Group, times: Input) -> Size:
    """Hours for which machines are paid before and after their work."""
    cold = Input(
        "cold start", group.cold_start_s, "s", f"groups.{group.name}.cold_start_s"
    )
    idle = Input(
        "idle timeout", group.idle_timeout_s, "s", f"groups.{group.name}.idle_timeout_s"
    )
    return computed(
        f"{group.name}, starting and idling for {times.name}",
        times.value * (group.cold_start_s + group.idle_timeout_s) / 3600,
        "h",
        "{times} x ({cold} + {idle}) / 3600 s/h",
        times=times,
        cold=cold,
        idle=idle,
    )


def _fixed_costs(platform: Platform) -> Iterator[FixedCost]:
    head = Input("head", platform.head.price, "$/h", "head.price")
    plane = Input(
        "control plane", platform.prices.control_plane, "$/h", "prices.control_plane"
    )
    for what in (head, plane):
        if what.value:
            size = computed(
                f"{what.name}, a month",
                what.value * HOURS_PER_MONTH,
                "$",
                "{what} x {month}",
                what=what,
                month=MONTH,
            )
            yield FixedCost(what.name, platform.name, size.value, size)
    if platform.train is not None and platform.prices.storage_gb_month:
        size = storage(platform, platform.train.data_tb)
        yield FixedCost("training data", platform.name, size.value, size)


def storage(platform: Platform, data_tb: float) -> Size:
    """What a month of the training data in a bucket costs."""
    data = Input("data", data_tb, "TB", "service_levels.train.data_tb")
    price = Input(
        "storage",
        platform.prices.storage_gb_month,
        "$/GB",
        "prices.storage_gb_month",
    )
    return computed(
        "training data, a month",
        data_tb * 1000 * price.value,
        "$",
        "{data} x 1000 GB/TB x {price}",
        data=data,
        price=price,
    )
