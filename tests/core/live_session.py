"""What the tests of real sessions share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rayshim as ray
from rayshim._core import session as sessions

DEADLINE_S = 10.0
LARGE = 1 << 20
#: Sessions come up faster without these.
BARE = {"dask": "off", "prestart_executors": 0}
#: Settings that give every CPU its executor before the first call.
READY = {"prestart_executors": -1}


def start(num_cpus: int = 1, **settings: Any) -> sessions.Session:
    """Open a session that has nothing but executors on demand."""
    ray.init(
        num_cpus=num_cpus,
        log_to_driver=False,
        logging_level="WARNING",
        _system_config={**BARE, **settings},
    )
    assert sessions.session is not None
    return sessions.session


def start_ready(num_cpus: int, **settings: Any) -> sessions.Session:
    """Open a session whose executors are all up."""
    session = start(num_cpus, **READY, **settings)
    ray.get([work.remote(0.05) for _ in range(num_cpus)])
    return session


def wait_until(condition: Callable[[], Any], *, deadline_s: float = DEADLINE_S) -> Any:
    """The first true value of ``condition``."""
    end_s = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.01)
    return value


def is_running(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


@ray.remote
def echo(value: Any = None) -> Any:
    return value


@ray.remote
def work(seconds: float = 0.0) -> float:
    """Sleep, and tell when it was over on the machine's monotonic clock."""
    if seconds:
        time.sleep(seconds)
    return time.monotonic()


@ray.remote
def pid() -> int:
    return os.getpid()


def large() -> np.ndarray[Any, Any]:
    """A value that lives in the node store."""
    return np.ones(LARGE // 8)


@ray.remote
def make_large() -> np.ndarray[Any, Any]:
    return large()


@ray.remote(num_cpus=0)
class Keeper:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.kept: Any = None

    def keep(self, value: Any) -> None:
        self.kept = value

    def give(self) -> Any:
        return self.kept

    def read(self) -> int:
        return int(ray.get(self.kept[0]).nbytes)

    def hand_to(self, other: Any) -> None:
        ray.get(other.keep.remote(self.kept))

    def ask(self, other: Any) -> Any:
        return ray.get(other.read.remote())
