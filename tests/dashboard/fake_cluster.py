"""A cluster that is not there: what the pages' context answers, as values.

The names in it are what a hostile program would choose.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from rayshim._core.clusters import Found

#: A name that would run if it was not escaped, in text and in attributes.
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
NODES = ("aa" * 28, "bb" * 28)
#: Beginning of what no page may hold.
RUNS = ("<script>alert", "<img src=x", "onerror=alert(2)>")


class FakeCluster:
    """Stands for a ``DashboardContext``.

    Args:
        tasks: number of calls that are remembered.
        actors: number of actors.
        evil: name of a function, class, label, file and so on.
    """

    def __init__(self, tasks: int = 30, actors: int = 5, evil: str = EVIL) -> None:
        self.found = Found(
            "127.0.0.1:6379", "tcp:127.0.0.1:1/head/head", b"\x01" * 16, "/tmp/session"
        )
        self.settings: dict[str, Any] = {"journal_url": "redis://me:secret@host:1/0"}
        self.evil = evil
        self.now_ms = time.time() * 1000
        #: Questions in the order in which they came.
        self.asked: list[str] = []
        #: Question -> the error that is its answer.
        self.failures: dict[str, Exception] = {}
        self.tasks = [self._task(number) for number in range(tasks)]
        self.actors = [self._actor(number) for number in range(actors)]
        self.log = b"one\ntwo " + evil.encode("utf-8", "replace") + b"\n"
        self.silent_nodes: set[str] = set()
        self.jobs: list[dict[str, Any]] = [self._job()]

    # The interface.

    async def ask(self, method: str, payload: Any = None) -> Any:
        """As the control service would answer."""
        kind = (payload or {}).get("kind") or (payload or {}).get("method")
        name = f"{method} {kind}" if kind else method
        self.asked.append(name)
        failure = self.failures.get(name) or self.failures.get("*")
        if failure is not None:
            raise failure
        answer = getattr(self, "_" + name.replace(" ", "_"))
        return answer(payload) if payload else answer({})

    async def state(self, function_name: str, **arguments: Any) -> Any:
        """As ``rayshim.util.state`` would answer."""
        self.asked.append(function_name)
        failure = self.failures.get(function_name) or self.failures.get("*")
        if failure is not None:
            raise failure
        rows = {
            "list_tasks": self.tasks,
            "list_jobs": self.jobs,
            "list_objects": self._objects(),
            "list_actors": self.actors,
        }.get(function_name)
        if rows is None:
            return {"cluster": {"summary": {}}}
        for key, sign, value in arguments.get("filters") or ():
            assert sign == "="
            rows = [row for row in rows if row.get(key) == value]
        return [dict(row) for row in rows[: arguments.get("limit", 100)]]

    async def rows(self, resource: str) -> tuple[list[dict[str, Any]], list[str]]:
        """As the sources of the state functions would answer."""
        rows = await self.state(f"list_{resource}", limit=1 << 30)
        return rows, [f"driver {self.evil}: no answer"]

    # Rows.

    def _task(self, number: int) -> dict[str, Any]:
        state = ("FINISHED", "RUNNING", "FAILED", "PENDING_NODE_ASSIGNMENT")[
            number % 10 if number % 10 < 4 else 0
        ]
        name = self.evil if number % 7 == 0 else f"work_{number % 11}"
        start = self.now_ms - 30_000 + number % 3000 * 10
        return {
            "task_id": f"{number:048x}",
            "attempt_number": 0,
            "name": name,
            "state": state,
            "job_id": "01000000",
            "actor_id": f"{number:032x}" if number % 5 == 0 else None,
            "type": "ACTOR_TASK" if number % 5 == 0 else "NORMAL_TASK",
            "func_or_class_name": name,
            "parent_task_id": "ff" * 24,
            "node_id": NODES[number % 2],
            "worker_id": f"{number % 8:056x}",
            "worker_pid": 1000 + number % 8,
            "error_type": self.evil if state == "FAILED" else None,
            "error_message": f"Traceback {self.evil}" if state == "FAILED" else None,
            "required_resources": {"CPU": 1.0},
            "call_site": self.evil,
            "creation_time_ms": start - 5,
            "start_time_ms": None if state.startswith("PENDING") else start,
            "end_time_ms": start + 8 if state in ("FINISHED", "FAILED") else None,
            "events": [{"state": "RUNNING", "created_ms": start}],
        }

    def _actor(self, number: int) -> dict[str, Any]:
        state = ("ALIVE", "ALIVE", "DEAD", "RESTARTING", "PENDING_CREATION")[number % 5]
        return {
            "actor_id": f"{number:032x}",
            "class_name": self.evil if number % 3 == 0 else "Counter",
            "state": state,
            "name": self.evil if number % 4 == 0 else "",
            "ray_namespace": self.evil,
            "job_id": "01000000",
            "pid": 2000 + number,
            "node_id": NODES[number % 2],
            "is_detached": False,
            "num_restarts": number % 2,
            "death_cause": f"killed {self.evil}" if state == "DEAD" else "",
            "repr_name": "",
            "required_resources": {self.evil: 1.0},
            "placement_group_id": "",
            "is_infeasible": False,
        }

    def _job(self) -> dict[str, Any]:
        return {
            "submission_id": "raysubmit_1",
            "job_id": "02000000",
            "type": "SUBMISSION",
            "status": "RUNNING",
            "entrypoint": f"echo {self.evil}",
            "message": self.evil,
            "metadata": {self.evil: self.evil},
            "runtime_env": {"env_vars": {"A": self.evil}},
            "start_time": self.now_ms - 5000,
            "end_time": None,
            "driver_node_id": NODES[0],
            "driver_exit_code": None,
        }

    def _objects(self) -> list[dict[str, Any]]:
        return [
            {
                "object_id": f"{number:056x}",
                "object_size": 1000 * number - 1,
                "task_status": "FINISHED",
                "attempt_number": 1,
                "reference_type": "LOCAL_REFERENCE",
                "call_site": self.evil,
                "type": "DRIVER",
                "pid": 77,
                "ip": "10.0.0.1",
            }
            for number in range(3)
        ]

    # Requests.

    def _cluster_info(self, payload: Any) -> dict[str, Any]:
        return {
            "session": "s1-abc",
            "dask_address": "tcp://127.0.0.1:9",
            "node_ip": "10.0.0.1",
            "pid": 1,
            "namespace": self.evil,
        }

    def _node_table(self, payload: Any) -> list[dict[str, Any]]:
        return [
            {
                "node_id": node_id,
                "node_ip": "10.0.0.1",
                "hostname": self.evil,
                "pid": 5,
                "alive": True,
                "usable": True,
                "death": "",
                "is_head_node": node_id == NODES[0],
                "session_dir": "/tmp/s",
                "resources": {"CPU": 4.0, self.evil: 2.0, "object_store_memory": 9.0},
                "available": {"CPU": 1.0, self.evil: 2.0},
                "labels": {"zone": self.evil},
                "draining": False,
                "drain_note": "",
            }
            for node_id in NODES
        ]

    def _ask_node_figures(self, payload: Any) -> list[dict[str, Any]]:
        return [self._told(node_id, self._figures(node_id)) for node_id in NODES]

    def _told(self, node_id: str, content: Any) -> dict[str, Any]:
        error = "no answer" if node_id in self.silent_nodes else ""
        data = b"" if error else msgspec.msgpack.encode(content)
        return {"node_id": node_id, "error": error, "payload": data}

    def _figures(self, node_id: str) -> dict[str, Any]:
        pid = 1000 if node_id == NODES[0] else 1001
        return {
            "leases": [
                {
                    "lease_id": "cc" * 16,
                    "label": f"{self.evil} {{CPU: 1}}",
                    "state": "WAITING",
                    "holder": "unix:/x",
                    "resources": {"CPU": 1.0},
                    "pid": 0,
                    "seconds": 3.5,
                    "backlog": 4,
                }
            ]
            if node_id == NODES[0]
            else [],
            "lease_states": {"WAITING": 1, "GRANTED": 2} if node_id == NODES[0] else {},
            "executors": [
                {
                    "worker_id": f"{pid % 8:056x}",
                    "pid": pid,
                    "state": "LEASED",
                    "job_id": "01000000",
                    "is_blocked": True,
                    "seconds": 4.0,
                    "label": self.evil,
                    "rss_bytes": 50 << 20,
                    "shared_bytes": 5 << 20,
                    "cpu_s": 1.0,
                    "threads": 3,
                }
            ],
            "total": {"CPU": 4.0, self.evil: 2.0},
            "available": {"CPU": 1.0, self.evil: 2.0},
            "store_used_bytes": 3 << 30,
            "store_limit_bytes": 4 << 30,
            "spilled_bytes": 1 << 30,
            "spilled_count": 3,
            "memory_used_bytes": 8 << 30,
            "memory_total_bytes": 16 << 30,
            "cpu_count": 8,
            "cpu_busy_s": 100.0,
            "cpu_total_s": 400.0,
            "load": [0.5, 0.25, 0.125],
            "disk_used_bytes": 1 << 40,
            "disk_total_bytes": 2 << 40,
            "raylet": {"pid": 5, "rss_bytes": 1 << 20, "shared_bytes": 0, "threads": 2},
            "at_s": time.time(),
        }

    def _ask_list_logs(self, payload: Any) -> list[dict[str, Any]]:
        name = f"worker-{0:056x}-01000000-1000.out"
        return [
            self._told(node_id, [(name, len(self.log), 1e9), (self.evil, 1, 1e9)])
            for node_id in NODES
        ]

    def _ask_read_log(self, payload: Any) -> list[dict[str, Any]]:
        wanted = msgspec.msgpack.decode(payload["payload"])
        node_id = payload["node_ids"][0]
        if node_id not in NODES:
            return []
        if wanted["name"] == "missing.log":
            error = "FileNotFoundError: this node has no log file 'missing.log'"
            return [{"node_id": node_id, "error": error, "payload": b""}]
        offset = wanted.get("offset", 0)
        data = self.log[offset : offset + wanted.get("size_bytes", 1 << 20)]
        piece = (data, offset + len(data), len(self.log), 7, False, [])
        return [self._told(node_id, piece)]

    def _state_actors(self, payload: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in self.actors]

    def _state_rows_cluster_events(self, payload: Any) -> list[dict[str, Any]]:
        return [
            {
                "event_id": f"{int(self.now_ms * 1000):016x}00000000",
                "message": f"actor x is RESTARTING: it died {self.evil}",
                "custom_fields": {"id": f"{3:032x}", "state": "RESTARTING"},
            }
        ]

    def _state_demand(self, payload: Any) -> list[dict[str, Any]]:
        return [
            {
                "lease_id": "dd" * 16,
                "label": f"{self.evil} {{GPU: 9}}",
                "resources": {"GPU": 9.0},
                "asker": NODES[0],
                "sent_to": "",
                "seconds": 9.0,
                "state": "INFEASIBLE",
            }
        ]

    def _state_placement_groups(self, payload: Any) -> list[dict[str, Any]]:
        return [
            {
                "placement_group_id": f"{number:036x}",
                "name": self.evil,
                "bundles": {0: {"CPU": 1.0}, 1: {self.evil: 2.0}},
                "bundles_to_node_id": {0: NODES[0], 1: "" if number else NODES[1]},
                "strategy": "PACK",
                "state": "PENDING" if number else "CREATED",
                "stats": {"scheduling_attempt": 1},
                "is_infeasible": bool(number),
            }
            for number in range(2)
        ]

    def _state_lease_tasks(self, payload: Any) -> list[dict[str, Any]]:
        return [{"key": "lease-1", "state": "no-worker"}]

    def _autoscaler_status(self, payload: Any) -> list[str]:
        return [f"group {self.evil}: 1 node"]

    def _cluster_resources(self, payload: Any) -> dict[str, float]:
        return {"CPU": 8.0}

    def _available_resources(self, payload: Any) -> dict[str, float]:
        return {"CPU": 2.0}

    def _demand(self, payload: Any) -> dict[str, Any]:
        return {"leases": []}

    def _why(self, payload: Any) -> list[dict[str, Any]]:
        return [
            {
                "subject": self.evil,
                "state": "waiting",
                "reasons": [
                    {
                        "kind": "resources",
                        "text": f"needs {self.evil}",
                        "numbers": {},
                        "remedy": f"ask for less {self.evil}",
                    }
                ],
            }
        ]
