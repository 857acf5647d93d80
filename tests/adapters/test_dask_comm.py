"""Dask behind the token: nothing of a stranger's is unpickled."""

from __future__ import annotations

import asyncio
import pickle
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed.comm import connect, listen
from distributed.comm.core import CommClosedError, FatalCommClosedError
from distributed.protocol import to_serialize

from node_process import NodeProcess
from rayshim.adapters.dask import comm

UNPICKLED: list[str] = []


def mark(text: str) -> str:
    UNPICKLED.append(text)
    return text


class Trap:
    """Shows in ``UNPICKLED`` when it is opened."""

    def __reduce__(self) -> Any:
        return mark, ("opened",)


@pytest.fixture
def token_path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "token"
    path.write_text(secrets.token_hex(32))
    UNPICKLED.clear()
    with dask.config.set({comm.TOKEN_PATH_KEY: str(path)}):
        comm.use_token(str(path))
        yield path


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[Any]]]:
    """An address, and what arrives there."""
    arrived: list[Any] = []

    async def handle(channel: Any) -> None:
        arrived.append(await channel.read())
        await channel.write("thanks")
        await channel.close()

    listener = await listen("rayshim://127.0.0.1:0", handle)
    try:
        yield listener.contact_address, arrived
    finally:
        listener.stop()


def other_token(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "other"
    path.write_text(secrets.token_hex(32))
    return {"extra_conn_args": {"rayshim_token_path": str(path)}}


def test_messages_pass_with_the_token(token_path: Path) -> None:
    async def check() -> None:
        async with listening() as (address, arrived):
            channel = await connect(address)
            await channel.write({"x": to_serialize(Trap())})
            assert await channel.read() == "thanks"
            await channel.close()
            assert arrived == [{"x": "opened"}]

    asyncio.run(check())


def test_a_wrong_token_is_refused_at_once(token_path: Path, tmp_path: Path) -> None:
    async def check() -> None:
        async with listening() as (address, arrived):
            with pytest.raises(FatalCommClosedError, match="refused"):
                await connect(address, **other_token(tmp_path))
            assert arrived == []

    asyncio.run(check())


def test_a_plain_client_is_refused_before_anything_is_unpickled(
    token_path: Path,
) -> None:
    async def check() -> None:
        async with listening() as (address, arrived):
            plain = address.replace("rayshim://", "tcp://")
            with pytest.raises((CommClosedError, OSError)):
                await connect(plain, timeout=1.0)
            assert arrived == []

    asyncio.run(check())


def test_a_stranger_that_writes_a_pickle_is_dropped(token_path: Path) -> None:
    async def check() -> None:
        async with listening() as (address, arrived):
            host, _, port = address.removeprefix("rayshim://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(pickle.dumps(Trap()) * 10)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(reader.readexactly(1000), 5.0)
            writer.close()
            assert arrived == []

    asyncio.run(check())
    assert UNPICKLED == []


def test_a_server_without_the_token_is_refused(token_path: Path) -> None:
    async def check() -> None:
        async def answer(reader: Any, writer: Any) -> None:
            await reader.readexactly(8)
            writer.write(b"RSHM1\0\0\0" + bytes(32))
            await reader.readexactly(64)
            writer.write(bytes(32))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(FatalCommClosedError):
            await connect(f"rayshim://127.0.0.1:{port}")
        server.close()
        await server.wait_closed()

    asyncio.run(check())


def test_no_token_no_listener() -> None:
    async def check() -> None:
        with pytest.raises(ValueError, match="needs the cluster's token"):
            await listen("rayshim://127.0.0.1:0", lambda channel: None)

    with dask.config.set({comm.TOKEN_PATH_KEY: None}):
        asyncio.run(check())


@pytest.mark.slow
def test_a_client_computes_on_workers_that_join() -> None:
    from distributed import Client, Security, Worker

    with NodeProcess(settings={"dask": "background", "dask_delay_s": 60}) as node:
        driver = node.peer()
        address = driver.request("dask_address")
        assert address.startswith("rayshim://127.0.0.1:")
        security = Security(
            extra_conn_args={"rayshim_token_path": str(node.token_path)},
            require_encryption=False,
        )
        with (
            dask.config.set({comm.TOKEN_PATH_KEY: str(node.token_path)}),
            Client(address, security=security, set_as_default=False) as client,
        ):
            # Nothing of Dask's runs in the node process, which grants leases.
            assert client.scheduler_info()["workers"] == {}
            future = client.submit(sum, [1, 2])

            async def work() -> int:
                async with Worker(address, nthreads=1, dashboard=False):
                    value: int = await future
                    return value

            assert client.sync(work, callback_timeout=20) == 3
        assert driver.request("cluster_info")["dask_address"] == address
        driver.close()
