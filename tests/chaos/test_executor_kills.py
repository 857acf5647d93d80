"""Executors that are killed while work runs, and actors that come and go."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

import rayshim as ray

TASKS = 5_000
KILL_EVERY_S = 0.5
DURATION_S = 60.0
ROUNDS = 20
ACTORS = 500


@pytest.fixture
def session() -> Iterator[None]:
    """A session with four CPUs."""
    ray.init(num_cpus=4, log_to_driver=False)
    yield
    ray.shutdown()


def executors() -> list[psutil.Process]:
    """The executor processes of this test."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            parent = process.parent()
            # Executors are children of the fork server, which is one of the node.
            if parent is not None and parent.ppid() != os.getpid():
                if parent.pid != os.getpid():
                    found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


class Killer(threading.Thread):
    """Kills a random executor now and then, until told to stop."""

    def __init__(self, every_s: float, seed: int) -> None:
        super().__init__()
        self._every_s = every_s
        self._random = random.Random(seed)
        self.stopping = threading.Event()
        self.kills = 0

    def run(self) -> None:
        """See the class."""
        while not self.stopping.wait(self._every_s):
            alive = executors()
            if alive:
                try:
                    self._random.choice(alive).send_signal(signal.SIGKILL)
                    self.kills += 1
                except psutil.NoSuchProcess:
                    pass


def test_tasks_survive_kills_of_executors(
    session: None, figure: Callable[[str], None]
) -> None:
    @ray.remote(max_retries=-1)
    def work(number: int, size: int) -> tuple[int, bytes]:
        time.sleep(0.04)
        return number, bytes(size)

    sizes = [0, 10, 200_000]
    killer = Killer(KILL_EVERY_S, seed=1)
    total = ray.cluster_resources()
    start = time.monotonic()
    refs = [work.remote(i, sizes[i % 3]) for i in range(TASKS)]
    killer.start()
    try:
        values = ray.get(refs, timeout=600)
        # The faults go on for the whole minute, whatever work is left.
        while time.monotonic() - start < DURATION_S:
            more = [work.remote(i, 10) for i in range(50)]
            assert ray.get(more, timeout=120) == [(i, bytes(10)) for i in range(50)]
    finally:
        killer.stopping.set()
        killer.join()
    took = time.monotonic() - start
    wrong = sum(values[i] != (i, bytes(sizes[i % 3])) for i in range(TASKS))
    settled = time.monotonic()
    while ray.available_resources().get("CPU") != total["CPU"]:
        assert time.monotonic() - settled < 10, "resources were lost"
        time.sleep(0.05)
    back = time.monotonic() - settled
    figure(
        f"{TASKS} tasks, {killer.kills} kills in {took:.0f} s, {wrong} wrong; free = "
        f"total after {back:.2f} s"
    )
    assert wrong == 0
    assert killer.kills >= DURATION_S / KILL_EVERY_S * 0.8


def test_actors_created_and_killed_leave_nothing(
    session: None, figure: Callable[[str], None]
) -> None:
    @ray.remote(num_cpus=0)
    class Small:
        def ping(self) -> int:
            return os.getpid()

    node = psutil.Process().children()[0]
    seen: list[tuple[int, int, float, float]] = []
    for _ in range(ROUNDS):
        made = [Small.remote() for _ in range(ACTORS)]
        pids = ray.get([one.ping.remote() for one in made], timeout=300)
        assert len(set(pids)) == ACTORS
        for one in made:
            ray.kill(one)
        del made, one
        deadline = time.monotonic() + 60
        while sum(psutil.pid_exists(pid) for pid in pids):
            assert time.monotonic() < deadline, "killed actors are still there"
            time.sleep(0.05)
        # The node hears of the last deaths a moment later.
        settled, before = 0, -1
        while settled < 5:
            assert time.monotonic() < deadline, "descriptors are not given back"
            time.sleep(0.2)
            settled = settled + 1 if node.num_fds() == before else 0
            before = node.num_fds()
        me = psutil.Process()
        seen.append(
            (
                node.num_fds(),
                me.num_fds(),
                node.memory_full_info().uss / 2**20,
                me.memory_full_info().uss / 2**20,
            )
        )
    first, last = seen[2], seen[-1]
    figure(
        f"{ROUNDS} x {ACTORS} actors; from round 3 to the last: descriptors of the "
        f"node {first[0]} -> {last[0]}, driver {first[1]} -> {last[1]}; MiB of the "
        f"node {first[2]:.1f} -> {last[2]:.1f}, driver {first[3]:.1f} -> {last[3]:.1f}"
    )
    assert last[0] <= first[0] + 8
    assert last[1] <= first[1] + 8
    # Finished actors are remembered for a while, so some growth is bounded, not none.
    assert last[2] <= first[2] + 20
    assert last[3] <= first[3] + 20
