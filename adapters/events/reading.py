"""Reads the events of a session, running or over, from its files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rayshim.adapters.events import arrow_files, records, spool


class Events(NamedTuple):
    """What happened, in the order in which it ended."""

    #: As :data:`.records.CALL_COLUMNS` says.
    calls: list[records.Row]
    #: As :data:`.records.CLUSTER_COLUMNS` says.
    cluster: list[records.Row]


def read(places: Iterable[Path]) -> Events:
    """The events in files and folders, each once.

    Args:
        places: Arrow files, spools, and folders of them.

    Raises:
        FileNotFoundError: a place is not there.
        ValueError: a file is no event file.
    """
    calls: dict[tuple[str, int, str, float], records.Row] = {}
    cluster: dict[tuple[float, str, str, str], records.Row] = {}
    for path in _files(places):
        for kind, rows in _rows_of(path):
            for row in rows:
                if kind == "calls":
                    key = (
                        row["task_id"],
                        row["attempt_number"],
                        row["role"],
                        row["end_s"],
                    )
                    calls[key] = row
                else:
                    about = (row["time_s"], row["kind"], row["id"], row["state"])
                    cluster[about] = row
    return Events(
        sorted(calls.values(), key=lambda row: float(row["end_s"])),
        sorted(cluster.values(), key=lambda row: float(row["time_s"])),
    )


def _files(places: Iterable[Path]) -> Iterable[Path]:
    for place in places:
        if place.is_dir():
            yield from sorted([*place.glob("*.arrow"), *place.glob(spool.PATTERN)])
        elif place.exists():
            yield place
        else:
            raise FileNotFoundError(f"there are no events at {place}")


def _rows_of(path: Path) -> Iterable[tuple[str, list[records.Row]]]:
    if path.suffix == ".spool":
        for kind, payload in spool.read(path):
            read_rows = records.call_rows if kind == "calls" else records.cluster_rows
            yield kind, read_rows(payload)
        return
    try:
        rows = arrow_files.read(path)
    except FileNotFoundError:
        return  # it was the oldest, and has just gone
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no event file: {error}") from None
    if rows:
        yield ("calls" if "task_id" in rows[0] else "cluster"), rows
