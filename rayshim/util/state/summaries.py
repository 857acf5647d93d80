"""Counts of tasks, actors and objects: by name, class, site, or what made them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Of the id of what a driver's program itself stands for.
DRIVER_TASK_ID_PREFIX = "f" * 40
_MB = 1024 * 1024
_PENDING, _RUNNING = "PENDING", "RUNNING"


@dataclass
class TaskSummaryPerFuncOrClassName:
    """How many calls of one name are in which state."""

    func_or_class_name: str
    type: str
    state_counts: dict[str, int] = field(default_factory=dict)


@dataclass
class Link:
    """What a line of a summary stands for: ``type`` "actor" or "task", and its id."""

    type: str
    id: str


@dataclass
class NestedTaskSummary:
    """A call, an actor, or a group of calls of one name, and what they called."""

    name: str
    #: Tells siblings apart.
    key: str
    #: A type of task, "ACTOR" or "GROUP".
    type: str
    #: When it was submitted, or else began; milliseconds since 1970.
    timestamp: int | None = None
    #: Of the calls in it, its own included.
    state_counts: dict[str, int] = field(default_factory=dict)
    children: list[NestedTaskSummary] = field(default_factory=list)
    link: Link | None = None


@dataclass
class TaskSummaries:
    """The calls of a cluster by name, or by what called what."""

    summary: dict[str, TaskSummaryPerFuncOrClassName] | list[NestedTaskSummary]
    total_tasks: int
    total_actor_tasks: int
    total_actor_scheduled: int
    summary_by: str = "func_name"

    @classmethod
    def to_summary_by_func_name(cls, *, tasks: list[dict[str, Any]]) -> TaskSummaries:
        """Counts calls by their function or method.

        Args:
            tasks: rows as of ``TaskState``.
        """
        summary: dict[str, TaskSummaryPerFuncOrClassName] = {}
        for task in tasks:
            key = task.get("name") or task["func_or_class_name"]
            one = summary.get(key)
            if one is None:
                one = TaskSummaryPerFuncOrClassName(key, task["type"])
                summary[key] = one
            _count(one.state_counts, task["state"])
        return cls(summary, *_totals(tasks))

    @classmethod
    def to_summary_by_lineage(
        cls, *, tasks: list[dict[str, Any]], actors: list[dict[str, Any]]
    ) -> TaskSummaries:
        """Counts calls by the calls that made them.

        Methods are below the actor that they ran in, an actor below the call that made
        it. Several siblings of one name become a group.

        Args:
            tasks: rows as of ``TaskState``.
            actors: rows as of ``ActorState``.
        """
        roots = _Forest(tasks, actors).roots()
        return cls(roots, *_totals(tasks), summary_by="lineage")


def _totals(tasks: list[dict[str, Any]]) -> tuple[int, int, int]:
    kinds = [task["type"] for task in tasks]
    return (
        kinds.count("NORMAL_TASK"),
        kinds.count("ACTOR_TASK"),
        kinds.count("ACTOR_CREATION_TASK"),
    )


def _count(counts: dict[str, int], key: str, count: int = 1) -> None:
    counts[key] = counts.get(key, 0) + count


class _Forest:
    """The calls as trees; see ``TaskSummaries.to_summary_by_lineage``."""

    def __init__(
        self, tasks: list[dict[str, Any]], actors: list[dict[str, Any]]
    ) -> None:
        #: The last attempt at each call.
        self._tasks = {task["task_id"]: task for task in tasks}
        self._actors = {actor["actor_id"]: actor for actor in actors}
        #: Actor id -> its constructor.
        self._creations = {
            task["actor_id"]: task
            for task in self._tasks.values()
            if task["type"] == "ACTOR_CREATION_TASK"
        }
        self._nodes: dict[str, NestedTaskSummary] = {}
        self._roots: list[NestedTaskSummary] = []

    def roots(self) -> list[NestedTaskSummary]:
        """The trees, grouped and counted."""
        for task_id in self._tasks:
            self._task(task_id)
        for root in self._roots:
            _sum_up(root)
        return _grouped(self._roots)

    def _task(self, task_id: str) -> NestedTaskSummary:
        known = self._nodes.get(task_id)
        if known is not None:
            return known
        task = self._tasks[task_id]
        node = NestedTaskSummary(
            task["name"] or "(no name)",
            task_id,
            task["type"],
            task.get("creation_time_ms") or task.get("start_time_ms"),
            {task["state"]: 1},
            link=Link("task", task_id),
        )
        self._nodes[task_id] = node
        is_of_actor = task["type"] in ("ACTOR_TASK", "ACTOR_CREATION_TASK")
        if is_of_actor and task.get("actor_id"):
            self._actor(task["actor_id"], task).children.append(node)
        else:
            self._below(task.get("parent_task_id") or "", node)
        return node

    def _actor(self, actor_id: str, task: dict[str, Any]) -> NestedTaskSummary:
        key = f"actor:{actor_id}"
        known = self._nodes.get(key)
        if known is not None:
            return known
        actor = self._actors.get(actor_id) or {}
        name = actor.get("repr_name") or actor.get("class_name")
        if not name:
            name = task["func_or_class_name"].rpartition(".")[0]
        creation = self._creations.get(actor_id)
        node = NestedTaskSummary(name, key, "ACTOR", link=Link("actor", actor_id))
        self._nodes[key] = node
        parent = creation.get("parent_task_id") if creation else ""
        self._below(parent or "", node)
        return node

    def _below(self, parent_id: str, node: NestedTaskSummary) -> None:
        if parent_id in self._tasks and not self._would_circle(parent_id, node):
            self._task(parent_id).children.append(node)
        else:
            self._roots.append(node)

    def _would_circle(self, parent_id: str, node: NestedTaskSummary) -> bool:
        """Whether a call is below itself: an actor called by its own constructor."""
        seen: set[str] = set()
        while parent_id and parent_id not in seen:
            seen.add(parent_id)
            task = self._tasks.get(parent_id)
            if task is None:
                return False
            if parent_id == node.key or f"actor:{task.get('actor_id')}" == node.key:
                return True
            if task["type"] == "ACTOR_TASK":
                task = self._creations.get(task.get("actor_id"))
                if task is None:
                    return False
            parent_id = task.get("parent_task_id") or ""
        return False


def _sum_up(node: NestedTaskSummary) -> None:
    for child in node.children:
        _sum_up(child)
        for state, count in child.state_counts.items():
            _count(node.state_counts, state, count)
    times = [one.timestamp for one in node.children if one.timestamp]
    if node.timestamp is None and times:
        node.timestamp = min(times)
    node.children = _grouped(node.children)


def _grouped(nodes: list[NestedTaskSummary]) -> list[NestedTaskSummary]:
    """Siblings of one name in one group; what runs first, then by time."""
    by_name: dict[tuple[str, str], list[NestedTaskSummary]] = {}
    for node in nodes:
        by_name.setdefault((node.name, node.type), []).append(node)
    grouped = []
    for (name, _), members in by_name.items():
        if len(members) == 1:
            grouped.append(members[0])
            continue
        group = NestedTaskSummary(name, name, "GROUP")
        for member in members:
            for state, count in member.state_counts.items():
                _count(group.state_counts, state, count)
        times = [one.timestamp for one in members if one.timestamp]
        group.timestamp = min(times) if times else None
        group.children = sorted(members, key=_order)
        grouped.append(group)
    return sorted(grouped, key=_order)


def _order(node: NestedTaskSummary) -> tuple[int, int, int]:
    counts = node.state_counts
    running = sum(n for state, n in counts.items() if state.startswith(_RUNNING))
    pending = sum(n for state, n in counts.items() if state.startswith(_PENDING))
    return -running, -pending, node.timestamp or 0


@dataclass
class ActorSummaryPerClass:
    """How many actors of one class are in which state."""

    class_name: str
    state_counts: dict[str, int] = field(default_factory=dict)


@dataclass
class ActorSummaries:
    """The actors of a cluster by class."""

    summary: dict[str, ActorSummaryPerClass]
    total_actors: int
    summary_by: str = "class"

    @classmethod
    def to_summary(cls, *, actors: list[dict[str, Any]]) -> ActorSummaries:
        """Counts actors.

        Args:
            actors: rows as of ``ActorState``.
        """
        summary: dict[str, ActorSummaryPerClass] = {}
        for actor in actors:
            key = actor["class_name"]
            one = summary.setdefault(key, ActorSummaryPerClass(key))
            _count(one.state_counts, actor["state"])
        return cls(summary, len(actors))


@dataclass
class ObjectSummaryPerKey:
    """The objects of one call site."""

    total_objects: int
    total_size_mb: float
    total_num_workers: int
    total_num_nodes: int
    task_state_counts: dict[str, int] = field(default_factory=dict)
    task_attempt_number_counts: dict[str, int] = field(default_factory=dict)
    ref_type_counts: dict[str, int] = field(default_factory=dict)


@dataclass
class ObjectSummaries:
    """The objects of a cluster by the code that made them."""

    summary: dict[str, ObjectSummaryPerKey]
    total_objects: int
    total_size_mb: float
    #: False where call sites of calls are not recorded.
    callsite_enabled: bool
    summary_by: str = "callsite"

    @classmethod
    def to_summary(cls, *, objects: list[dict[str, Any]]) -> ObjectSummaries:
        """Counts objects.

        Args:
            objects: rows as of ``ObjectState``.
        """
        summary: dict[str, ObjectSummaryPerKey] = {}
        workers: dict[str, set[Any]] = {}
        nodes: dict[str, set[Any]] = {}
        total_mb = 0.0
        for one in objects:
            site = one["call_site"]
            per = summary.setdefault(site, ObjectSummaryPerKey(0, 0.0, 0, 0))
            per.total_objects += 1
            size_mb = max(0, one["object_size"]) / _MB
            per.total_size_mb += size_mb
            total_mb += size_mb
            workers.setdefault(site, set()).add((one["ip"], one["pid"]))
            nodes.setdefault(site, set()).add(one["ip"])
            per.total_num_workers = len(workers[site])
            per.total_num_nodes = len(nodes[site])
            _count(per.task_state_counts, one["task_status"])
            _count(per.task_attempt_number_counts, str(one["attempt_number"]))
            _count(per.ref_type_counts, one["reference_type"])
        is_enabled = bool(objects) and set(summary) != {"disabled"}
        return cls(summary, len(objects), total_mb, is_enabled)


@dataclass
class StateSummary:
    """Summaries by the node that they are of; "cluster" for the whole."""

    node_id_to_summary: dict[str, TaskSummaries | ActorSummaries | ObjectSummaries]
