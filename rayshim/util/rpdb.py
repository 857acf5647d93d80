"""Breakpoints in tasks and actors: ``set_trace()`` there, ``rayshim debug`` here.

The process waits at a unix socket in the folder of its session, which only its user can
open; no port is opened. ``rayshim debug``, on the host of that process, connects.
"""

from __future__ import annotations

import json
import os
import pdb
import socket
import sys
import uuid
from types import FrameType
from typing import Any

from rayshim._core import current

__all__ = ["NAMESPACE", "set_trace"]

#: Where breakpoints that wait are listed, in the cluster's key-value table.
NAMESPACE = "_rayshim_debug"
#: Seconds between looks for an interrupt while nobody is connected.
_LOOK_S = 0.2


def set_trace(breakpoint_uuid: str | None = None) -> None:
    """Stop here until somebody who ran ``rayshim debug`` says how to go on.

    In a driver it is the debugger of Python, at the terminal.

    Args:
        breakpoint_uuid: name of the breakpoint; None makes one.

    Example:
        >>> @rayshim.remote  # doctest: +SKIP
        ... def task(x):
        ...     rayshim.util.rpdb.set_trace()
        ...     return x
    """
    frame = sys._getframe(1)
    peer = current.peer
    if peer is None or peer.executor is None:
        pdb.Pdb().set_trace(frame)
        return
    name = breakpoint_uuid or uuid.uuid4().hex
    path = os.path.join(peer.session_dir, "sockets", f"g-{os.urandom(8).hex()}.sock")
    listener = socket.socket(socket.AF_UNIX)
    previous = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(previous)
    try:
        listener.listen(1)
        peer.request(
            "kv_put",
            {
                "namespace": NAMESPACE,
                "key": name,
                "value": json.dumps(_facts(peer, frame, path)),
            },
        )
        print(
            f"waits for the debugger at {_place(frame)}: run 'rayshim debug' on host "
            f"{socket.gethostname()}",
            file=sys.stderr,
            flush=True,
        )
        connection = _accept(listener)
    finally:
        listener.close()
        os.unlink(path)
        peer.request("kv_del", {"namespace": NAMESPACE, "key": name})
    _RemotePdb(connection).set_trace(frame)


def _accept(listener: socket.socket) -> socket.socket:
    listener.settimeout(_LOOK_S)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue  # a cancellation is raised between two looks
        connection.settimeout(None)
        return connection


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _facts(peer: Any, frame: FrameType, path: str) -> dict[str, Any]:
    call = current.call.get()
    return {
        "socket": path,
        "host": socket.gethostname(),
        "node_ip": peer.node_ip,
        "pid": os.getpid(),
        "place": _place(frame),
        "task": peer.executor.runner.display_name(call.spec) if call else "",
        "task_id": call.task_id.hex() if call else "",
    }


class _RemotePdb(pdb.Pdb):
    """Python's debugger at the other end of a socket.

    Args:
        connection: to who debugs; closed when the program goes on without breakpoints.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # Two: a file that is written forgets what was read ahead.
        self._lines = connection.makefile("r", encoding="utf-8", errors="replace")
        self._shown = connection.makefile("w", encoding="utf-8", errors="replace")
        super().__init__(stdin=self._lines, stdout=self._shown, nosigint=True)
        self.use_rawinput = False
        self.prompt = "(Pdb) "

    def do_continue(self, arg: str) -> bool | None:
        """Go on; the connection stays while there are breakpoints."""
        done = super().do_continue(arg)
        if not self.breaks:
            self._end()
        return done

    do_c = do_cont = do_continue

    def do_quit(self, arg: str) -> bool | None:
        """End the call with ``bdb.BdbQuit``."""
        self._end()
        return super().do_quit(arg)

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool | None:
        """Who debugged is gone: the program goes on."""
        self.clear_all_breaks()
        return self.do_continue(arg)

    def _end(self) -> None:
        for file in (self._shown, self._lines):
            try:
                file.close()
            except OSError:
                pass  # the other side is gone
        self._connection.close()
