"""The arithmetic behind every size, for people: ``rayshim k8s plan --explain``.

Each figure is an input, which stands in platform.yaml, or computed from inputs. The
page ``docs/platform-sizing.md`` is made of the same sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from rayshim.k8s.config import Group, Platform, ServeLevel
from rayshim.k8s.cost import CostTable, monthly_costs, scaled, storage
from rayshim.k8s.figures import Input, Size, amount, computed, figure
from rayshim.k8s.sizes import (
    ingest_sizes,
    serve_sizes,
    train_sizes,
    tune_sizes,
    tune_workers,
)

#: The multiple of the load that is looked at besides.
TIMES: Final = 10.0


@dataclass(frozen=True, slots=True)
class Line:
    """One step."""

    text: str
    #: What it says in figures; None: only words.
    size: Size | Input | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Steps under a heading."""

    title: str
    lines: tuple[Line, ...]

    def to_text(self) -> str:
        """For a terminal, ending in a line break."""
        return "".join([f"{self.title}\n", *(f"  {one.text}\n" for one in self.lines)])

    def to_markdown(self) -> str:
        """For the documentation, ending in a line break."""
        blocks = [f"## {self.title}\n"]
        for kind, lines in groupby(self.lines, key=lambda one: type(one.size)):
            if kind is Size:
                sizes = [one.size for one in lines if isinstance(one.size, Size)]
                blocks.append(_table(_HEAD, (_cells(one) for one in sizes)))
            elif kind is Input:
                inputs = [one.size for one in lines if isinstance(one.size, Input)]
                rows = ((f"`{one.path}`", _result(one)) for one in inputs)
                blocks.append(_table(("in platform.yaml", "value"), rows))
            else:
                blocks.append("".join(f"- {one.text}\n" for one in lines))
        return "\n".join(blocks)

    def to_json(self) -> dict[str, Any]:
        """As plain maps, lists and numbers."""
        lines = []
        for one in self.lines:
            size = None if one.size is None else one.size.to_json()
            lines.append({"text": one.text, "size": size})
        return {"title": self.title, "lines": lines}


def explain(platform: Platform) -> list[Section]:
    """All sizes of a platform, one after the other, from inputs to money.

    Returns:
        Sections for the inputs, each service level, the cost of a month, ten times the
        load (if this is one time it), and a region that may not share storage.

    Example:
        >>> from rayshim.k8s.loading import load_platform
        >>> platform = load_platform("k8s/deploy/platform.yaml")
        >>> print(explain(platform)[1].lines[0].text)
        p50 = 8 ms + 3 ms + 5 ms + 6 ms + 10 ms = 32 ms
    """
    costs = monthly_costs(platform)
    sections = [
        Section(f"{kind}: {group}", tuple(_line(one) for one in sizes))
        for kind, group, sizes in _levels(platform)
    ]
    sections.append(Section("Cost of a month", tuple(_cost_lines(costs))))
    if platform.scale == 1:
        title = f"At {TIMES:g} times the load"
        sections.append(Section(title, tuple(_larger(platform, costs))))
    if platform.residency is None:
        title = "A region that may not share storage, as in the EU"
    else:
        title = f"Alone in {platform.residency.region}"
    sections.append(Section(title, tuple(_apart(platform, costs))))
    found = _inputs(line.size for section in sections for line in section.lines)
    inputs = [Line(f"{one.path} = {_result(one)}", one) for one in found]
    return [Section("Inputs", tuple(inputs)), *sections]


def _levels(platform: Platform) -> Iterator[tuple[str, str, Iterable[Size]]]:
    """Kind, group and sizes of each service level."""
    for one in _all(platform):
        if one.serve is not None:
            yield (
                "Serving",
                one.serve.group,
                _serve(one.group(one.serve.group), one.serve),
            )
        if one.train is not None:
            yield "Training", one.train.group, train_sizes(one.train)
        if one.ingest is not None and one.train is not None:
            sizes = ingest_sizes(one.ingest, one.train)
            yield "Reading for training", one.ingest.group, sizes
        if one.tune is not None:
            yield "Search", one.tune.group, _tune(one)


def _serve(group: Group, level: ServeLevel) -> Iterator[Size]:
    for size in serve_sizes(level):
        if size.name == "workers" and group.min < size.value:
            note = f"min of {group.name} is only {group.min}: fewer may be there"
            yield replace(size, note=note)
        else:
            yield size


def _tune(platform: Platform) -> Iterable[Size]:
    tune = platform.tune
    if tune is None:
        return ()
    accelerator = platform.group(tune.group).accelerator
    gpus = accelerator.count if accelerator is not None else 1
    return tune_sizes(tune, tune_workers(platform), gpus)


def _cost_lines(costs: CostTable) -> Iterator[Line]:
    steps = [size for group in costs.groups for size in group.steps]
    steps += [one.size for one in costs.fixed]
    yield from map(_line, dict.fromkeys(steps))
    yield _line(_total("all, a month", costs))
    pinned = Input("all if pinned", costs.pinned, "$", "")
    elastic = Input("all", costs.elastic, "$", "")
    yield _line(
        computed(
            "saved by going when idle",
            costs.pinned - costs.elastic,
            "$",
            "{pinned} - {elastic}",
            pinned=pinned,
            elastic=elastic,
        )
    )


def _total(name: str, costs: CostTable) -> Size:
    parts = [(one.group, one.elastic) for one in costs.groups]
    parts += [(one.name, one.monthly) for one in costs.fixed]
    return _sum(name, parts)


def _sum(name: str, parts: list[tuple[str, float]]) -> Size:
    inputs = tuple(Input(part, value, "$", "") for part, value in parts)
    return Size(
        name,
        sum(value for _, value in parts),
        "$",
        " + ".join(one.name for one in inputs),
        " + ".join(amount(one.value, one.unit) for one in inputs),
        inputs,
    )


def _larger(platform: Platform, costs: CostTable) -> Iterator[Line]:
    larger = scaled(platform, TIMES)
    yield Line(
        "Requests, rows, bytes and the GPU hours of a configuration grow; latencies, "
        "the window and the number of configurations stay. Each worker does what it "
        "does now: measure that again before relying on it."
    )
    for one in larger.others:
        yield Line(
            f"Serving moves to the EKS cluster {one.eks_cluster} with a head of its "
            f"own ({one.name}), so that starts and ends of training, an upgrade, or "
            "the failure of a head concern one of them."
        )
    grown = {one.name: one for each in _all(larger) for one in each.groups}
    for group in platform.groups:
        after = grown[group.name]
        yield Line(
            f"{group.name}: min {group.min} -> {after.min}, max {group.max} -> "
            f"{after.max}"
        )
    quotas = {one.name: one.quota for each in _all(larger) for one in each.queues}
    for queue in platform.queues:
        for name, value in queue.quota.items():
            if name not in ("cpu", "memory"):
                yield Line(
                    f"quota of {queue.name}: {name} {figure(value)} -> "
                    f"{figure(quotas[queue.name][name])}"
                )
    now = {
        (kind, size.name): size
        for kind, _, sizes in _levels(platform)
        for size in sizes
    }
    for kind, group_name, sizes in _levels(larger):
        for size in sizes:
            before = now[kind, size.name]
            if before.value != size.value:
                name = f"{group_name}, {size.name}"
                yield _line(replace(size, name=name, note=f"{_result(before)} now"))
    yield from _larger_costs(costs, monthly_costs(larger))


def _larger_costs(before: CostTable, after: CostTable) -> Iterator[Line]:
    now = {one.group: one.steps[-2] for one in before.groups}
    for group in after.groups:
        size = group.steps[-2]
        yield _line(replace(size, note=f"{_result(now[group.group])} now"))
    total = _total("all, a month", after)
    yield _line(replace(total, note=f"{amount(before.elastic, '$')} now"))
    if before.elastic:
        yield _line(
            computed(
                "cost against now",
                after.elastic / before.elastic,
                "times",
                "{after} / {before}",
                after=Input("all then", after.elastic, "$", ""),
                before=Input("all now", before.elastic, "$", ""),
            )
        )


def _all(platform: Platform) -> tuple[Platform, ...]:
    return (platform, *platform.others)


def _apart(platform: Platform, costs: CostTable) -> Iterator[Line]:
    where = "it" if platform.residency is None else platform.residency.region
    yield Line(
        f"Nothing in {where} may read or write elsewhere: the cluster, the buckets, "
        "the registry of the images and the head's state are its own, and `plan` "
        "refuses what lies outside."
    )
    yield Line(
        "No features, models or checkpoints are shared. Both regions read, train and "
        "search on their own data, so what one learns does not help the other, and "
        "releases, alerts and drills are done twice."
    )
    train, prices = platform.train, platform.prices
    own = (platform.train, platform.tune, platform.ingest)
    groups = {level.group for level in own if level is not None}
    learning = [(one.group, one.elastic) for one in costs.groups if one.group in groups]
    if learning:
        yield _line(_sum("its own training and search at this load, a month", learning))
    fixed = [
        (one.name, one.monthly) for one in costs.fixed if one.name != "training data"
    ]
    if fixed:
        yield _line(_sum("its own cluster without workers, a month", fixed))
    if train is not None and prices.storage_gb_month:
        yield _line(storage(platform, train.data_tb))
    if train is not None and prices.transfer_gb:
        at = "service_levels.train"
        data = Input("data", train.data_tb, "TB", f"{at}.data_tb")
        runs = Input("runs", train.runs_per_month, "runs", f"{at}.runs_per_month")
        epochs = Input("epochs", train.epochs, "epochs", f"{at}.epochs")
        price = Input("transfer", prices.transfer_gb, "$/GB", "prices.transfer_gb")
        gigabytes = train.data_tb * 1000
        yield _line(
            computed(
                "were sharing allowed: a copy for each run, a month",
                gigabytes * train.runs_per_month * prices.transfer_gb,
                "$",
                "{data} x 1000 GB/TB x {runs} x {price}",
                data=data,
                runs=runs,
                price=price,
            )
        )
        yield _line(
            computed(
                "were sharing allowed: reading from afar in each epoch, a month",
                gigabytes * epochs.value * runs.value * prices.transfer_gb,
                "$",
                "{data} x 1000 GB/TB x {epochs} x {runs} x {price}",
                data=data,
                epochs=epochs,
                runs=runs,
                price=price,
            )
        )
    yield _line(_total("all of it at this load, a month", costs))


def _line(size: Size) -> Line:
    return Line(size.to_text(), size)


def _inputs(sizes: Iterable[Size | Input | None]) -> list[Input]:
    """What platform.yaml says for some sizes, each value once."""
    found: dict[str, Input] = {}

    def look(size: Size | Input | None) -> None:
        if isinstance(size, Size):
            for one in size.inputs:
                look(one)
        elif size is not None and size.path:
            found.setdefault(size.path, size)

    for size in sizes:
        look(size)
    return sorted(found.values(), key=lambda one: one.path)


_HEAD: Final = ("what", "formula", "in figures", "result", "")


def _cells(size: Size) -> tuple[str, ...]:
    result = f"**{_result(size)}**"
    return size.name, size.formula, size.arithmetic, result, size.note


def _result(size: Size | Input) -> str:
    return amount(size.value, size.unit)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
