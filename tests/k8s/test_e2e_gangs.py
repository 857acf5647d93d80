"""Gangs on the emulated Kueue: whole or not at all, whatever is killed.

Kueue itself is not under test, only what pods see of it.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rayshim.k8s import names
from rayshim.k8s.gang import gang_id
from rayshim.k8s.loading import load_platform
from rayshim.k8s.testing.localkube import LocalCluster, platform_nodes
from rayshim.k8s.testing.localkube.kueue_emulator import Admission, KueueEmulator
from whole_platforms import NAMESPACE, Running, running, write_file

QUOTA = 4
#: Worker groups that are no gangs.
PLAIN = {"demo-cpu-ingest", "demo-default", "demo-gpu-train"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PROGRAM = """
import json, os, sys, time
import rayshim as ray
from rayshim.util.placement_group import (
    placement_group, placement_group_table, remove_placement_group
)
from rayshim.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init(log_to_driver=False)
size = int(sys.argv[1])
group = placement_group([{"GPU": 1}] * size, strategy="STRICT_SPREAD")

@ray.remote(num_cpus=0, num_gpus=1, max_retries=-1)
def piece(i, folder):
    with open(f"{folder}/began", "a") as log:
        log.write(f"{i}\\n")
    while not os.path.exists(f"{folder}/gate"):
        time.sleep(0.02)
    return os.environ["DASK_WORKER_NAME"]

def tell(what):
    print(json.dumps(what), flush=True)

tell(group.id.hex())
begun = []
for line in sys.stdin:
    verb, _, folder = line.strip().partition(" ")
    if verb == "state":
        tell(placement_group_table(group)["state"])
    elif verb == "begin":
        begun = [
            piece.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, i)
            ).remote(i, folder)
            for i in range(size)
        ]
        tell("begun")
    elif verb == "finish":
        tell(ray.get(begun, timeout=60))
    elif verb == "end":
        remove_placement_group(group)
        tell("ended")
"""


class GangDriver:
    """A program with a placement group of so many GPUs, each on another worker."""

    def __init__(self, one: Running, folder: Path, size: int) -> None:
        self.size = size
        self._one = one
        self._folder = folder
        folder.mkdir()
        self._process = one.driver(PROGRAM, str(size))
        self.gang = gang_id(self._told())
        #: Of its DaskWorkerGroup, and of its pod group.
        self.name = f"demo-gpu-train-{self.gang}"

    def _told(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, err = self._process.communicate()
            pytest.fail(f"the driver ended: {err}\n{self._one.cluster.describe()}")
        return json.loads(line)

    def ask(self, verb: str) -> Any:
        """What it answers to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb}\n")
        self._process.stdin.flush()
        return self._told()

    def begin(self) -> None:
        """One piece of work on each worker, until :meth:`finish`."""
        self.ask(f"begin {self._folder}")

    def begun(self) -> Counter[str]:
        """Piece -> how often it was begun."""
        log = self._folder / "began"
        return Counter(log.read_text().split()) if log.exists() else Counter()

    def finish(self) -> str:
        """Its pieces end, each on another worker; the gang of all these workers."""
        (self._folder / "gate").touch()
        ran = self.ask("finish")
        assert len(set(ran)) == self.size
        (where,) = {name.rsplit("-worker-")[0] for name in ran}
        return where

    def pods(self) -> list[str]:
        """Its pods that are there."""
        pods = self._one.cluster.pods(NAMESPACE, {names.GANG: self.gang})
        return [pod["metadata"]["name"] for pod in pods]

    def gated(self) -> int:
        """How many of them Kueue holds."""
        pods = self._one.cluster.pods(NAMESPACE, {names.GANG: self.gang})
        return sum(bool(pod["spec"].get("schedulingGates")) for pod in pods)

    def history(self) -> list[Admission]:
        """What Kueue decided about it."""
        return [one for one in kueue_of(self._one).history if one.group == self.name]

    def events(self) -> list[str]:
        """That in words."""
        return [one.event for one in self.history()]

    def is_running(self) -> bool:
        """Each piece was begun."""
        return len(self.begun()) == self.size

    def stop(self) -> None:
        """The program ends, and with it its placement group."""
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def kueue_of(one: Running) -> KueueEmulator:
    assert one.cluster.kueue is not None
    return one.cluster.kueue


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = write_file(tmp_path_factory.mktemp("gangs"), gangs=True, gpu_max=8)
    nodes = platform_nodes(load_platform(path))
    with (
        LocalCluster(nodes, operator=True, kueue=True, enforce_rbac=True) as cluster,
        running(cluster, path) as one,
    ):
        yield one


@contextmanager
def drivers(one: Running, folder: Path, *sizes: int) -> Iterator[list[GangDriver]]:
    """Programs, of which the first one runs; afterwards nothing of them is left."""
    with watched(one):
        found: list[GangDriver] = []
        try:
            for number, size in enumerate(sizes):
                found.append(GangDriver(one, folder / f"{number}", size))
                found[-1].begin()
                if number == 0:
                    one.wait_for("the first", found[0].is_running)
            for waiting in found[1:]:
                one.wait_for("pods", lambda gang=waiting: gang.gated() == gang.size)
                assert not waiting.begun()
            yield found
        finally:
            for each in found:
                each.stop()
        one.wait_for(
            "no gang",
            lambda: set(one.replicas()) == PLAIN,
        )
        one.wait_for("no pod", lambda: not one.pods("gpu-train"))
    for each in found:
        for told in each.history():
            if told.event == "admitted":
                assert len(told.pods) == told.total == each.size


@contextmanager
def watched(one: Running) -> Iterator[None]:
    """Looks all the time: the pods that run are those of one gang, within its quota."""
    stop = threading.Event()
    wrong: list[str] = []
    looks = 0

    def watch() -> None:
        nonlocal looks
        while not stop.wait(0.02):
            looks += 1
            held: Counter[str] = Counter()
            for pod in one.pods("gpu-train"):
                if not pod["spec"].get("schedulingGates"):
                    held[pod["metadata"]["labels"].get(names.GANG, "")] += 1
            if len(held) > 1 or held.total() > QUOTA:
                wrong.append(f"{time.monotonic():.2f} {dict(held)}")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert looks > 10
    assert not wrong, wrong[:5]


def test_of_two_gangs_one_runs_survives_kills_and_the_other_follows(
    platform: Running, tmp_path: Path
) -> None:
    with drivers(platform, tmp_path, 3, 3) as (first, second):
        told = platform.command("status")
        assert (
            f"note: 3 of 3 pods of gang {second.gang} wait for quota in ClusterQueue "
            "train (l4: 3 used of 4)\n"
        ) in told.stdout, told.stdout + told.stderr
        kill_members(platform, first)

        assert first.finish() == first.name
        first.ask("end")
        # It takes the machines over that are there.
        assert second.finish() == first.name
        platform.wait_for("its own are not waited for", lambda: not second.pods())
        assert first.events() == ["admitted", "replaced"]
        assert second.events() == []


def kill_members(platform: Running, gang: GangDriver) -> None:
    """What a member did is done again, and its gang stays."""
    pods = gang.pods()
    # In place, by the kubelet.
    platform.cluster.kill_container(pods[0], NAMESPACE)
    platform.wait_for("its piece again", lambda: gang.begun().total() == 4)
    assert sorted(gang.pods()) == sorted(pods)
    assert gang.ask("state") == "CREATED"
    # As when its machine is lost: the Deployment makes another pod.
    platform.kube.delete("Pod", pods[1], grace_s=0)
    platform.wait_for("its piece again", lambda: gang.begun().total() == 5)
    assert pods[1] not in gang.pods() and len(gang.pods()) == 3


def test_a_preempted_gang_ends_whole_and_comes_back_whole(
    platform: Running, tmp_path: Path
) -> None:
    with drivers(platform, tmp_path, 4, 3) as (first, second):
        kueue_of(platform).preempt(first.name, NAMESPACE)

        platform.wait_for("the second", second.is_running)
        platform.wait_for("all of the first wait", lambda: first.gated() == 4)
        # The head knows that nothing of it is there, and nothing of it was run anew.
        assert first.ask("state") in ("PENDING", "RESCHEDULING")
        assert first.begun() == Counter("0123")
        with platform.link() as link:
            waiting = [gang_id(one.group_id) for one in link.demand().gangs]
        assert waiting == [first.gang]

        assert second.finish() == second.name
        second.ask("end")
        # Four do not fit on the machines of three.
        assert first.finish() == first.name
        assert first.begun() == Counter("01230123")
        assert first.events() == ["admitted", "preempted", "admitted"]
