"""What the commands of ``rayshim k8s`` print, as rows and as words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rayshim.cli.showing import print_wide
from rayshim.k8s.config import Platform
from rayshim.k8s.differences import Difference, State
from rayshim.k8s.looking import OperatorReport, Report
from rayshim.k8s.prerequisites import Missing

if TYPE_CHECKING:
    from rayshim.k8s.drill import DrillResult
    from rayshim.k8s.installing import Installed
    from rayshim.k8s.removing import Removed

Row = Mapping[str, Any]

#: States in the order in which ``plan`` shows them; what is unchanged is only counted.
_SHOWN = (State.FOREIGN, State.CREATED, State.CHANGED, State.NO_KIND, State.HIDDEN)


def difference_rows(found: Iterable[Difference]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "kind": one.kind,
            "name": one.name,
            "namespace": one.namespace,
            "state": one.state.value,
            "note": one.note,
            "changes": [
                {"path": field.path, "found": field.found, "wanted": field.wanted}
                for field in one.changes
            ],
        }
        for one in found
    ]


def missing_rows(found: Iterable[Missing]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "product": one.product,
            "kinds": list(one.kinds),
            "is_required": one.is_required,
            "next_step": one.next_step,
        }
        for one in found
    ]


def print_differences(found: Sequence[Difference], lacking: Sequence[Missing]) -> None:
    """What ``up`` would do, and what the cluster lacks."""
    counts = counted(one.state.value for one in found)
    click.echo(f"\nAgainst the cluster: {counts or 'nothing to compare'}")
    for state in _SHOWN:
        for one in found:
            if one.state is not state:
                continue
            note = f" ({one.note})" if one.note else ""
            click.echo(f"  {state.value}: {one.kind} {one.name}{note}")
            for field in one.changes:
                click.echo(f"      {field.text()}")
    for row in lacking:
        click.echo(f"  {row.text()}")


def print_installed(platform: Platform, done: Installed) -> None:
    """What ``up`` did, in a few lines."""
    for note in done.notes:
        click.echo(f"note: {note}")
    counts = counted(one.state.value for one in done.objects)
    click.echo(
        f"Platform {platform.name} is up in namespace {platform.namespace} ({counts})"
    )


def print_removed(platform: Platform, done: Removed) -> None:
    """What ``down`` did, in a few lines."""
    if done.kept:
        click.echo(f"kept: {', '.join(done.kept)}")
    if not done.deleted:
        click.echo(f"Nothing of platform {platform.name} was there to remove")
        return
    click.echo(
        f"Platform {platform.name} is gone from namespace {platform.namespace} "
        f"({len(done.deleted)} objects deleted)"
    )


def removed_data(done: Removed) -> dict[str, list[str]]:
    """For JSON."""
    return {"deleted": done.deleted, "kept": done.kept, "notes": done.notes}


def print_report(report: Report | OperatorReport) -> None:
    """How the platform, or the operator, is; problems first."""
    for text in report.problems:
        click.echo(f"PROBLEM {text}")
    if isinstance(report, OperatorReport):
        for text in report.notes:
            click.echo(f"note: {text}")
        _print_rows("operator", report.pods)
        return
    for text in report.warnings:
        click.echo(f"note: {text}")
    if not report.problems:
        click.echo(f"Platform {report.platform} in {report.namespace} is well")
    head = report.head
    click.echo(
        f"head: {head['state']} {head['pod']} ({head['age_s']:.0f} s old, "
        f"{head['restarts']} restarts)"
    )
    told_s = report.autoscaler["age_s"]
    said = "has told nothing" if told_s is None else f"told {told_s:.0f} s ago"
    click.echo(f"autoscaler: {report.autoscaler['ready_pods']} pods ready, {said}")
    _print_rows("groups", report.groups)
    _print_rows("gangs", report.gangs)
    _print_rows("events", report.events)


def drill_rows(results: Iterable[DrillResult]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "name": one.name,
            "recovery_s": one.recovery_s,
            "limit_s": one.limit_s,
            "is_passed": one.is_passed,
            "failure": one.failure,
            "steps": [{"after_s": s.after_s, "text": s.text} for s in one.steps],
        }
        for one in results
    ]


def print_drills(results: Sequence[DrillResult]) -> None:
    """What drills have measured."""
    for one in results:
        word = "passed" if one.is_passed else "FAILED"
        why = f": {one.failure}" if one.failure else ""
        click.echo(
            f"{word} {one.name}: {one.recovery_s:.1f} s of {one.limit_s:.0f} s{why}"
        )
        for step in one.steps:
            click.echo(f"  {step.after_s:+8.1f} s  {step.text}")


def counted(words: Iterable[str]) -> str:
    """How often each word comes, as "3 created, 1 changed"."""
    return ", ".join(f"{count} {word}" for word, count in Counter(words).items())


def _print_rows(title: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    from rich.table import Table
    from rich.text import Text

    click.echo(f"{title}:")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    print_wide(table)


def _cell(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)
