"""Lines on actors: calls, fan-out, asyncio, creation; and placement groups."""

from __future__ import annotations

import asyncio
import importlib

from harness import Operation, Suite
from kit import Kit

ACTORS = Suite()


@ACTORS.line("1:1 actor calls sync")
def one_by_one(kit: Kit) -> tuple[Operation, float]:
    server = kit.server()
    return lambda: kit.ray.get(server.small_value.remote()), 1


@ACTORS.line("1:1 actor calls async")
def many(kit: Kit) -> tuple[Operation, float]:
    server = kit.server()
    return lambda: kit.ray.get([server.small_value.remote() for _ in range(1000)]), 1000


@ACTORS.line("1:1 actor calls concurrent")
def many_threaded(kit: Kit) -> tuple[Operation, float]:
    server = kit.server(max_concurrency=16)
    return lambda: kit.ray.get([server.small_value.remote() for _ in range(1000)]), 1000


@ACTORS.line("1:1 actor calls with args async")
def many_with_value(kit: Kit) -> tuple[Operation, float]:
    server = kit.server()

    def run() -> None:
        kit.ray.get([server.small_value_arg.remote(i) for i in range(1000)])

    return run, 1000


@ACTORS.line("1:n actor calls async")
def one_to_many(kit: Kit) -> tuple[Operation, float]:
    client = kit.client(kit.servers(2))
    return lambda: kit.ray.get(client.call_each.remote(1000)), 2000


@ACTORS.line("n:n actor calls async")
def many_to_many(kit: Kit) -> tuple[Operation, float]:
    servers = kit.servers(2)

    def run() -> None:
        kit.ray.get([kit.call_round_robin.remote(servers, 1000) for _ in range(4)])

    return run, 4000


@ACTORS.line("n:n actor calls with arg async")
def many_to_many_with_ref(kit: Kit) -> tuple[Operation, float]:
    clients = [kit.client(kit.servers(1)) for _ in range(2)]

    def run() -> None:
        kit.ray.get([client.call_each_with_ref.remote(500) for client in clients])

    return run, 1000


@ACTORS.line("1:1 async-actor calls sync")
def async_one_by_one(kit: Kit) -> tuple[Operation, float]:
    server = kit.async_server()
    return lambda: kit.ray.get(server.small_value.remote()), 1


@ACTORS.line("1:1 async-actor calls async")
def async_many(kit: Kit) -> tuple[Operation, float]:
    server = kit.async_server()
    return lambda: kit.ray.get([server.small_value.remote() for _ in range(1000)]), 1000


@ACTORS.line("1:1 async-actor calls with args async")
def async_many_with_value(kit: Kit) -> tuple[Operation, float]:
    server = kit.async_server()

    def run() -> None:
        kit.ray.get([server.small_value_arg.remote(i) for i in range(1000)])

    return run, 1000


@ACTORS.line("1:n async-actor calls async")
def async_one_to_many(kit: Kit) -> tuple[Operation, float]:
    client = kit.client(kit.async_servers(2))
    return lambda: kit.ray.get(client.call_each.remote(1000)), 2000


@ACTORS.line("n:n async-actor calls async")
def async_many_to_many(kit: Kit) -> tuple[Operation, float]:
    servers = kit.async_servers(2)

    def run() -> None:
        kit.ray.get([kit.call_round_robin.remote(servers, 1000) for _ in range(4)])

    return run, 4000


@ACTORS.line("driver awaits 1k refs")
def awaited(kit: Kit) -> tuple[Operation, float]:
    server = kit.server()

    async def gather() -> None:
        await asyncio.gather(*[server.small_value.remote() for _ in range(1000)])

    return lambda: asyncio.run(gather()), 1000


@ACTORS.line("actor creation")
def creation(kit: Kit) -> tuple[Operation, float]:
    def run() -> None:
        servers = [kit.fresh_server() for _ in range(4)]
        kit.ray.get([server.small_value.remote() for server in servers])
        for server in servers:
            kit.ray.kill(server)

    return run, 4


@ACTORS.line("placement group create/removal")
def placement_groups(kit: Kit) -> tuple[Operation, float]:
    util = importlib.import_module(kit.ray.__name__ + ".util")

    def run() -> None:
        groups = [util.placement_group([{"custom": 0.001}]) for _ in range(50)]
        for group in groups:
            if not group.wait(timeout_seconds=30):
                raise TimeoutError("a placement group was not created in 30 s")
        for group in groups:
            util.remove_placement_group(group)

    return run, 50
