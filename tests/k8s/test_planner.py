"""Decisions for situations with names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoscaled import cpu_group, gang, gpu_group, leases, platform_of
from rayshim.k8s import names
from rayshim.k8s.config import Group
from rayshim.k8s.gang import gang_id
from rayshim.k8s.observed import (
    Decisions,
    DeleteWorker,
    DrainWorker,
    EndGang,
    KeepWorker,
    Memory,
    Observed,
    ObservedGroup,
    PodState,
    SetReplicas,
    StartGang,
    Worker,
)
from rayshim.k8s.planner import decide
from rayshim.lineage.demand import NODE_GROUP_LABEL, Demand, NodeFacts

NOW = 1_000_000.0
CPU, GPU = "cpu-ingest", "gpu-train"


class Situation:
    """Worker groups of the default platform, and what is added to them."""

    def __init__(self, *groups: Group, **replicas: int) -> None:
        self.platform = platform_of(*groups)
        self.groups = {
            one.name: ObservedGroup(
                names.worker_group("demo", one.name),
                one.name,
                replicas.get(one.name.partition("-")[0], 0),
                "7",
                handled=replicas.get(one.name.partition("-")[0], 0),
                written=replicas.get(one.name.partition("-")[0], 0),
            )
            for one in self.platform.groups
        }
        self.workers: list[Worker] = []
        self.nodes: list[NodeFacts] = []
        self.absent: dict[str, float] = {}
        self.owed: dict[str, float] = {}
        #: For how long no placement group waits that does not wait now.
        self.unwanted_s = 9.0

    def gang(self, group: str, number: int, size: int, **options: Any) -> str:
        """The worker group of a gang; its id."""
        subject = gang(number, 1).group_id
        found = gang_id(subject)
        known = {"handled": size, "written": None, "size": size, "subject": subject}
        self.groups[found] = ObservedGroup(
            names.worker_group("demo", group, found),
            group,
            size,
            "7",
            found,
            **{**known, **options},
        )
        return found

    def change(self, name: str, **options: Any) -> None:
        self.groups[name] = replace(self.groups[name], **options)

    def worker(self, key: str, **options: Any) -> str:
        """A Deployment of a group or gang, without a node."""
        about = self.groups[key]
        name = f"{about.name}-worker-{len(self.workers):010x}"
        known = {"created_s": NOW - 5, "gang": about.gang}
        self.workers.append(
            Worker(name, about.group, about.name, **{**known, **options})
        )
        return name

    def node(
        self, key: str, *, used: float = 0.0, idle_s: float = 100.0, **options: Any
    ) -> str:
        """A worker with a node."""
        facts = {
            name: options.pop(name)
            for name in ("is_draining", "is_pinned", "sole_copies_bytes", "node_id")
            if name in options
        }
        about = self.groups[key]
        state = {"has_joined": True, "pod": PodState.READY}
        name = self.worker(key, **{**state, **options})
        total = self.platform.group(about.group).logical_resources()
        labels = {
            **self.platform.group(about.group).node_group().labels,
            NODE_GROUP_LABEL: about.group,
            names.WORKER: name,
        }
        node_id = facts.pop("node_id", f"{len(self.nodes) + 1:056x}")
        self.nodes.append(
            NodeFacts(
                node_id,
                about.group,
                total,
                {**total, "CPU": total["CPU"] - used},
                labels,
                idle_s=0.0 if used else idle_s,
                **facts,
            )
        )
        return name

    def decide(self, *, age_s: float = 0.0, **facts: Any) -> Decisions:
        may_stop = facts.pop("may_stop", True)
        demand = Demand("life", NOW - age_s, tuple(self.nodes), **facts)
        return self._decide(demand, may_stop)

    def decide_unheard(self) -> Decisions:
        return self._decide(None, True)

    def _decide(self, demand: Demand | None, may_stop: bool) -> Decisions:
        return decide(
            demand,
            Observed(NOW, tuple(self.groups.values()), tuple(self.workers)),
            self.platform,
            NOW,
            memory=Memory(
                absent=self.absent,
                owed=self.owed,
                unwanted=dict.fromkeys(self.groups, NOW - self.unwanted_s),
            ),
            may_stop=may_stop,
        )


def replicas(made: Decisions) -> dict[str, int]:
    return {one.worker_group: one.replicas for one in made.replicas}


def test_what_waits_for_cpus_avoids_gpu_workers() -> None:
    made = Situation(cpu_group(upscaling_speed=9.0), gpu_group()).decide(
        leases=leases(3, CPU=4.0)
    )

    assert made.launch == {CPU: 3}
    assert replicas(made) == {"demo-cpu-ingest": 3}


def test_owed_and_starting_workers_count_as_there() -> None:
    case = Situation(cpu_group(upscaling_speed=9.0), cpu=3)
    case.change(CPU, handled=1)
    case.worker(CPU, pod=PodState.PENDING)

    made = case.decide(leases=leases(3, CPU=4.0))

    assert not made.launch
    assert not made.replicas
    assert case.decide(leases=leases(4, CPU=4.0)).replicas[0].replicas == 4


def test_more_are_not_started_than_the_speed_allows() -> None:
    made = Situation(cpu_group(upscaling_speed=1.0)).decide(leases=leases(5, CPU=4.0))

    assert made.launch == {CPU: 1}


def test_what_fits_no_group_starts_nothing_and_says_so() -> None:
    shape = replace(leases(1, GPU=8.0)[0], label="gpu-train")
    made = Situation().decide(leases=(shape,))

    assert not made.launch
    assert not made.start_gangs
    assert [one.text for one in made.infeasible] == [
        "gpu-train: bundle {GPU: 8} fits no group (largest has GPU: 4); change the "
        "request or add a group"
    ]


def test_an_idle_worker_is_drained_first_and_replicas_stay() -> None:
    case = Situation(cpu=2)
    idle = case.node(CPU)
    case.node(CPU, used=1.0)

    made = case.decide()

    assert made.drain == (
        DrainWorker(
            idle,
            f"{1:056x}",
            CPU,
            "idle for 100 s (idle_timeout_s of group cpu-ingest: 20)",
        ),
    )
    assert not made.delete
    assert not made.replicas


def test_a_worker_that_left_is_deleted_then_replicas_follow() -> None:
    case = Situation(cpu=2)
    left = case.worker(
        CPU, has_joined=True, draining_since_s=NOW - 9, drain_reason="idle"
    )
    case.node(CPU, used=1.0)

    made = case.decide()

    assert made.delete == (DeleteWorker(left, "demo-cpu-ingest", CPU, "idle"),)
    assert made.replicas == (SetReplicas("demo-cpu-ingest", CPU, 1, "7", "1 are gone"),)


def test_a_worker_whose_pod_still_runs_is_given_a_moment_to_join_anew() -> None:
    case = Situation(cpu=1)
    left = case.worker(
        CPU, has_joined=True, draining_since_s=NOW - 9, pod=PodState.READY
    )

    assert not case.decide().delete
    case.absent[left] = NOW - 1
    assert [one.worker for one in case.decide().delete] == [left]


def test_replicas_follow_what_somebody_deleted() -> None:
    case = Situation(cpu=3)
    case.node(CPU, used=1.0)

    made = case.decide()

    assert made.replicas == (SetReplicas("demo-cpu-ingest", CPU, 1, "7", "2 are gone"),)


def test_what_was_deleted_and_is_needed_takes_two_turns() -> None:
    # The operator acts upon a number that differs from the one before.
    case = Situation(cpu_group(min=2), cpu=2)
    case.node(CPU, used=1.0)
    made = case.decide()
    assert replicas(made) == {"demo-cpu-ingest": 1}
    assert not made.launch

    case.change(CPU, replicas=1, handled=1)
    assert case.decide().launch == {CPU: 1}


def test_replicas_are_not_lowered_while_the_operator_may_be_making_workers() -> None:
    case = Situation(cpu=3)
    case.change(CPU, handled=1)
    case.node(CPU, used=1.0)
    case.owed["demo-cpu-ingest"] = NOW - 10
    assert not case.decide().replicas

    case.owed["demo-cpu-ingest"] = NOW - 61  # Twice the cold start: it will not.
    assert replicas(case.decide()) == {"demo-cpu-ingest": 1}


def test_replicas_that_somebody_lowered_are_set_back() -> None:
    case = Situation(cpu=1)
    for _ in range(3):
        case.node(CPU, used=1.0)

    (made,) = case.decide().replicas

    assert (made.replicas, made.is_repair) == (3, True)
    assert made.reason.startswith("replicas was set to 1 while 3 workers are there")
    # The file, not the folder in which the autoscaler's pod finds it.
    case.platform = replace(case.platform, source="/etc/rayshim/platform.yaml")
    (made,) = case.decide().replicas
    assert made.reason.endswith("lower groups.cpu-ingest.max in platform.yaml")


def test_workers_that_somebody_asked_for_are_kept_until_they_are_idle() -> None:
    case = Situation(cpu=2)
    case.change(CPU, written=0)
    case.worker(CPU, created_s=NOW - 50)
    case.node(CPU, idle_s=5.0)

    made = case.decide()

    assert not (made.delete or made.drain or made.replicas)
    case.change(CPU, written=2)
    assert [one.worker for one in case.decide().delete] == [case.workers[0].name]


def test_what_nothing_needs_is_cancelled_by_how_far_it_has_come() -> None:
    case = Situation(cpu_group(min=1), cpu=4)
    order = [PodState.RUNNING, PodState.GATED, PodState.PENDING, PodState.MISSING]
    for state in order:
        case.worker(CPU, pod=state, created_s=NOW - 50)

    made = case.decide()

    ranks = [case.workers[place].name for place in (3, 1, 2)]
    assert [one.worker for one in made.delete] == ranks
    assert replicas(made) == {"demo-cpu-ingest": 1}


def test_lost_workers_are_left_to_their_deployment_for_a_while() -> None:
    case = Situation(cpu=1)
    lost = case.worker(CPU, has_joined=True, note="the machine is gone")
    case.absent[lost] = NOW - 59
    made = case.decide(leases=leases(1, CPU=1.0))
    assert not made.launch
    assert not made.delete

    case.absent[lost] = NOW - 61
    made = case.decide(leases=leases(1, CPU=1.0))
    assert made.delete == (
        DeleteWorker(
            lost,
            "demo-cpu-ingest",
            CPU,
            "it was lost for more than 60 s: the machine is gone",
        ),
    )


def test_minimum_and_warm_workers_are_started_whatever_the_head_says() -> None:
    case = Situation(cpu_group(min=1, warm=2), cpu=0)

    unheard = case.decide_unheard()
    old = case.decide(age_s=45.0, leases=leases(9, CPU=4.0))

    assert unheard.launch == old.launch == {CPU: 2}
    assert old.notes == (
        "demand is 45 s old: nothing is stopped, and only minimum and warm workers are "
        "started",
    )
    assert unheard.notes[0].startswith("the head has not said yet what is lacking")


def test_old_or_incomplete_demand_stops_nothing() -> None:
    case = Situation(cpu=3)
    case.node(CPU)
    case.worker(CPU, created_s=NOW - 500)
    case.worker(CPU, has_joined=True, draining_since_s=NOW - 99)

    for made in (case.decide(age_s=31.0), case.decide(may_stop=False)):
        assert not (made.drain or made.delete or made.keep or made.replicas)
    made = case.decide()
    assert len(made.drain) == 1
    assert len(made.delete) == 2


def test_a_node_of_a_deployment_that_is_gone_is_no_capacity() -> None:
    case = Situation(cpu=0)
    case.node(CPU)
    case.workers.clear()

    assert case.decide(leases=leases(1, CPU=1.0)).launch == {CPU: 1}


def test_the_head_and_nodes_started_by_hand_are_used_and_left_alone() -> None:
    case = Situation()
    free = {"CPU": 4.0}
    case.nodes.append(NodeFacts("aa", CPU, free, free, idle_s=1e6))

    assert case.decide(leases=leases(1, CPU=4.0)) == Decisions()


def test_a_refused_drain_is_taken_back() -> None:
    case = Situation(cpu=1)
    worker = case.node(
        CPU, draining_since_s=NOW - 9, draining_node=f"{1:056x}", idle_s=1.0
    )

    assert case.decide().keep == (
        KeepWorker(worker, CPU, "its node did not drain", is_refused=True),
    )


def test_a_placement_group_gets_a_gang_of_its_own() -> None:
    case = Situation(gpu=1)
    case.node(GPU)

    made = case.decide(gangs=(gang(1, 3, GPU=4.0),))

    (start,) = made.start_gangs
    assert start == StartGang("g000000001", GPU, 3, gang(1, 1).group_id)
    assert not made.launch
    # What is idle is not what it waits for.
    assert not made.replicas


def test_two_gangs_never_have_more_than_the_maximum_together() -> None:
    case = Situation()
    made = case.decide(gangs=(gang(1, 3, GPU=4.0), gang(2, 3, GPU=4.0)))

    assert [one.gang for one in made.start_gangs] == ["g000000001"]
    assert made.waiting[-1].text == (
        "job-2: its 3 bundles (PACK) wait until others give back, gpu-train is limited "
        "to 4 nodes; raise the limit to have it sooner"
    )


def test_a_gang_that_was_started_is_not_started_again() -> None:
    case = Situation()
    found = case.gang(GPU, 1, 3, handled=0)

    made = case.decide(gangs=(gang(1, 3, GPU=4.0),))

    assert not made.start_gangs
    assert not made.replicas
    assert [one.text for one in made.waiting] == [
        f"job-1: 3 of 3 workers of gang {found} start"
    ]


def test_a_gang_that_waits_for_quota_says_so() -> None:
    case = Situation()
    found = case.gang(GPU, 1, 4)
    case.worker(found, pod=PodState.RUNNING)
    for _ in range(3):
        case.worker(found, pod=PodState.GATED)
    observed = Observed(
        NOW,
        tuple(case.groups.values()),
        tuple(case.workers),
        {"train": {"a100": (8.0, 8.0)}},
    )

    demand = Demand("life", NOW, gangs=(gang(1, 4, GPU=4.0),))
    made = decide(demand, observed, case.platform, NOW)

    assert made.waiting[0].text == (
        "job-1: 3 of 4 pods of gang g000000001 wait for quota in ClusterQueue train "
        "(a100: 8 used of 8)"
    )


def test_single_requests_do_not_wait_for_a_gangs_workers() -> None:
    case = Situation()
    found = case.gang(GPU, 1, 1)
    case.worker(found, pod=PodState.PENDING)

    made = case.decide(gangs=(gang(1, 1, GPU=4.0),), leases=leases(1, GPU=1.0))

    assert made.launch == {GPU: 1}


def test_a_gang_is_drained_as_a_whole_once_its_placement_group_is_over() -> None:
    case = Situation()
    found = case.gang(GPU, 1, 2)
    workers = [case.node(found, idle_s=6.0), case.node(found, idle_s=6.0)]

    made = case.decide()

    assert [one.worker for one in made.drain] == workers
    assert not made.end_gangs


def test_a_gang_with_one_busy_node_stays_whole() -> None:
    case = Situation()
    found = case.gang(GPU, 1, 2)
    case.node(found)
    case.node(found, used=1.0)

    assert case.decide() == Decisions()


def test_a_gang_whose_placement_group_waits_for_a_lost_member_stays() -> None:
    case = Situation()
    found = case.gang(GPU, 1, 2)
    case.node(found)
    lost = case.worker(found, has_joined=True)
    case.absent[lost] = NOW - 1e6

    made = case.decide(gangs=(gang(1, 1, GPU=4.0),))

    assert not (made.drain or made.delete or made.end_gangs or made.start_gangs)


def test_a_gang_that_has_left_is_deleted() -> None:
    case = Situation()
    found = case.gang(GPU, 1, 2)
    for _ in range(2):
        case.worker(found, has_joined=True, draining_since_s=NOW - 3)

    made = case.decide()

    assert made.end_gangs == (
        EndGang(
            found,
            f"demo-gpu-train-{found}",
            GPU,
            "placement group 000000001000 has ended",
        ),
    )
    assert not made.delete


def test_a_placement_group_that_does_not_wait_for_a_moment_keeps_its_gang() -> None:
    case = Situation()
    for number in (1, 2):
        found = case.gang(GPU, number, 1)
    case.worker(found, pod=PodState.GATED)
    case.node("g000000001")
    case.unwanted_s = 2.0

    assert case.decide() == Decisions()


def test_gangs_nobody_waits_for_are_cancelled_gated_ones_first() -> None:
    case = Situation(gpu_group(max=9))
    for number, state in ((1, PodState.PENDING), (2, PodState.GATED)):
        found = case.gang(GPU, number, 2)
        case.worker(found, pod=state)
        case.worker(found, pod=state)

    made = case.decide()

    assert [one.gang for one in made.end_gangs] == ["g000000002", "g000000001"]
    assert made.end_gangs[0].reason == (
        "placement group 000000002000 is gone, and its workers had not joined"
    )


def test_a_gang_whose_placement_group_is_being_placed_stays() -> None:
    case = Situation(gpu_group(max=9))
    found = case.gang(GPU, 1, 2)
    case.worker(found, pod=PodState.GATED)
    case.worker(found, pod=PodState.GATED)

    assert case.decide().end_gangs
    assert not case.decide(placing=(gang(1, 2).group_id,)).end_gangs


def test_a_gang_that_somebody_resized_is_set_back() -> None:
    case = Situation()
    found = case.gang(GPU, 1, 2)
    case.change(found, replicas=1, handled=1)
    case.node(found, used=1.0)
    case.node(found, used=1.0)

    (made,) = case.decide().replicas

    assert (made.worker_group, made.replicas) == (f"demo-gpu-train-{found}", 2)
    assert made.is_repair


def test_a_group_that_was_not_installed_is_told() -> None:
    case = Situation()
    del case.groups[CPU]

    made = case.decide(leases=leases(1, CPU=4.0))

    assert not made.replicas
    assert made.notes == (
        "cpu-ingest: 1 workers are needed and there is no daskworkergroup "
        "demo-cpu-ingest; run rayshim k8s up",
    )
