"""Reads the events of a session, running or over, from its files."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from rayshim.adapters.events import arrow_files, records, spool

logger = logging.getLogger(__name__)


class Events(NamedTuple):
    """What happened, in the order in which it ended."""

    #: As :data:`.records.CALL_COLUMNS` says.
    calls: list[records.Row]
    #: As :data:`.records.CLUSTER_COLUMNS` says.
    cluster: list[records.Row]


def read(places: Iterable[Path]) -> Events:
    """The events in files and folders, each once.

    What is damaged in a folder (its disk was full, its host went down) is left out,
    with a warning that names the file.

    Args:
        places: Arrow files, spools, and folders of them.

    Raises:
        FileNotFoundError: a place is not there.
        ValueError: a file is no event file.
    """
    calls: dict[tuple[str, int, str, float], records.Row] = {}
    cluster: dict[tuple[float, str, str, str], records.Row] = {}
    for path, is_named in _files(places):
        for kind, rows in _rows_of(path, is_named):
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


def has_events(folder: Path) -> bool:
    """Whether a folder has files of events."""
    return any(True for _ in _files([folder]))


def _files(places: Iterable[Path]) -> Iterable[tuple[Path, bool]]:
    """Each file, and whether it is a place itself."""
    for place in places:
        if place.is_dir():
            for path in sorted([*place.glob("*.arrow"), *place.glob(spool.PATTERN)]):
                yield path, False
        elif place.exists():
            yield place, True
        else:
            raise FileNotFoundError(f"there are no events at {place}")


def _rows_of(path: Path, is_named: bool) -> Iterable[tuple[str, list[records.Row]]]:
    try:
        if path.suffix == ".spool":
            yield from _rows_of_spool(path)
            return
        rows = arrow_files.read(path)
    except FileNotFoundError:
        return  # it was the oldest, and has just gone
    except (OSError, ValueError) as error:
        if is_named:
            raise ValueError(f"{path} is no event file: {error}") from None
        logger.warning("%s is damaged, and left out: %s", path, error)
        return
    if rows:
        yield ("calls" if "task_id" in rows[0] else "cluster"), rows


def _rows_of_spool(path: Path) -> Iterable[tuple[str, list[records.Row]]]:
    for kind, payload in spool.read(path):
        read_rows = records.call_rows if kind == "calls" else records.cluster_rows
        try:
            rows = read_rows(payload)
        except msgspec.MsgspecError as error:
            logger.warning("a damaged record of %s is left out: %s", path, error)
            continue
        yield kind, rows
