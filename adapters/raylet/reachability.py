"""Whether the hosts of the cluster can connect to a process elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from rayshim.adapters.raylet.groups import Deferred
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire.address import parse_tcp

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import Peer
    from rayshim.adapters.raylet.control import ControlService

#: Seconds that a connection may take.
LIMIT_S = 3.0
_tasks: set[asyncio.Task[None]] = set()


class CanReach(msgspec.Struct):
    """Payload of ``can_reach``: the address of a process (``tcp:...``)."""

    address: str


def ask(control: ControlService, peer: Peer, message: wire.Request) -> None:
    """Answers an empty text, or why no connection comes about.

    Raises:
        Deferred: always: the answer comes later.
        ValueError: it is no address.
    """
    address = msgspec.msgpack.decode(message.payload, type=CanReach).address
    place = parse_tcp(address)

    async def look() -> None:
        error = ""
        try:
            async with asyncio.timeout(LIMIT_S):
                _, writer = await asyncio.open_connection(place.host, place.port)
            writer.close()
        except TimeoutError:
            error = f"nothing came back within {LIMIT_S:g} s"
        except OSError as failure:
            error = failure.strerror or str(failure)
        control.respond(peer, message.request_id, value=error)

    task = asyncio.get_running_loop().create_task(look())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    raise Deferred
