"""How long a lease takes: from the own node, and through Dask's scheduler.

    python benchmarks/scheduling/lease_latency.py --count 200

An owner asks its own node for a lease: first while that has room, then while it is
full, so that the head's scheduler finds it another node. Each time counts from the
request to the grant. Idle processor time of the head is measured at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import time
from typing import Any

import msgspec

from rayshim.adapters.wire import aio
from rayshim.adapters.wire import messages as wire
from rayshim.cluster_utils import Cluster

JOB = (7).to_bytes(4, "little")
#: Seconds between two requests: the head hears that the last lease has ended.
PAUSE_S = 0.12
IDLE_S = 10.0


class Owner:
    """A process that holds leases, without anything to run on them.

    Args:
        token: The cluster's.
    """

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._address = f"unix:/nowhere/{secrets.token_hex(4)}"
        self._channels: dict[str, aio.Connection] = {}
        self._answers: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def channel(self, address: str, role: str) -> aio.Connection:
        """The channel to a raylet or the head."""
        if address not in self._channels:

            def take(connection: aio.Connection, message: Any) -> None:
                if isinstance(
                    message, wire.LeaseGranted | wire.LeaseRejected | wire.Response
                ):
                    self._answers.put_nowait((address, message))

            channel = await aio.connect(address, self._token, take, lambda _: None)
            hello = wire.Hello(role, secrets.token_bytes(28), self._address, 1, JOB)
            channel.send(hello)
            self._channels[address] = channel
        return self._channels[address]

    async def lease(self, lease_id: bytes, address: str) -> str:
        """Gets a lease, wherever it is granted; returns the raylet that did."""
        role, hops = "driver", 0
        while True:
            channel = await self.channel(address, role)
            request = wire.RequestLease(
                lease_id, JOB, "f", {"CPU": 1.0}, {}, 0, hops=hops
            )
            channel.send(request)
            _, answer = await self._answers.get()
            if isinstance(answer, wire.LeaseGranted):
                return address
            if answer.kind != "spillback":
                raise RuntimeError(answer.reason)
            address, hops, role = answer.spill_to, answer.hops + 1, "remote"

    async def give_back(self, lease_id: bytes, address: str) -> None:
        """Returns a lease."""
        (await self.channel(address, "driver")).send(wire.ReturnLease(lease_id))

    async def ask_head(self, address: str, method: str, **payload: Any) -> Any:
        """The value of a control request."""
        channel = await self.channel(address, "tool")
        channel.send(wire.Request(1, method, msgspec.msgpack.encode(payload)))
        _, answer = await self._answers.get()
        return msgspec.msgpack.decode(answer.payload)

    def close(self) -> None:
        """Ends it."""
        for channel in self._channels.values():
            channel.close()


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(cluster: Cluster, count: int) -> dict[str, Any]:
    """Both latencies in milliseconds."""
    head = cluster.head_process_address
    owner = Owner(cluster.token)
    [home] = [
        row["address"]
        for row in await owner.ask_head(head, "node_table")
        if row["node_id"] == cluster.head_node.node_id
    ]
    info = await owner.ask_head(head, "cluster_info")
    while not info["dask_address"]:
        await asyncio.sleep(0.1)
        info = await owner.ask_head(head, "cluster_info")
    await asyncio.sleep(1.0)
    times: dict[str, list[float]] = {"local": [], "through Dask": []}
    for kind, found in times.items():
        if kind != "local":
            await owner.lease(b"fills-the-node-1", home)
        for number in range(count + 5):
            lease_id = secrets.token_bytes(16)
            begin = time.perf_counter()
            granted_by = await owner.lease(lease_id, home)
            if number >= 5:  # The first ones fork executors and open channels.
                found.append((time.perf_counter() - begin) * 1e3)
            if (granted_by == home) is not (kind == "local"):
                raise RuntimeError(f"a lease meant to be {kind} came from {granted_by}")
            rows: list[Any] = []
            if number == count and kind != "local":
                await asyncio.sleep(PAUSE_S)
                rows = await owner.ask_head(head, "state", kind="lease_tasks")
                assert rows and rows[-1]["engine"] == "dask", rows
                assert rows[-1]["state"] == "long-running", rows
            await owner.give_back(lease_id, granted_by)
            await asyncio.sleep(PAUSE_S)
    begin_s = cpu_s(info["pid"])
    await asyncio.sleep(IDLE_S)
    idle = (cpu_s(info["pid"]) - begin_s) / IDLE_S
    owner.close()
    rows = [
        {
            "name": f"lease, {kind}",
            "median_ms": round(statistics.median(found), 3),
            "p90_ms": round(statistics.quantiles(found, n=10)[-1], 3),
            "count": len(found),
        }
        for kind, found in times.items()
    ]
    return {"rows": rows, "idle_head_cpu_percent": round(100 * idle, 2)}


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    count = parser.parse_args().count
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        print(json.dumps(asyncio.run(measure(cluster, count))))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
