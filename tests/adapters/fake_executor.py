"""An executor that speaks the wire with blocking sockets and obeys its lease.

A task's ``method`` says what to do: ``echo``, ``exit:N``, ``kill``, ``print:TEXT``,
``write:TEXT`` (no newline), ``child`` (starts a sleeping grandchild, returns its pid),
``sleep:S``, ``pid``, ``env:NAME``, ``stat`` (private bytes).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fake_wire
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire.address import listen_tcp, make


def main(config: dict[str, Any]) -> int:
    """Entry of the forked process."""
    token = bytes.fromhex(Path(config["token_path"]).read_text().strip())
    worker_id = bytes.fromhex(config["worker_id"])
    name = f"w-{config['worker_id'][:16]}.sock"
    path = str(Path(config["session_dir"], "sockets", name))
    address = f"unix:{path}"
    if config["listen_ip"]:
        listener = listen_tcp(config["listen_ip"])
        listener.listen(16)
        port = listener.getsockname()[1]
        address = make(config["listen_ip"], port, config["node_id"], name[:-5])
    else:
        listener = fake_wire.listen(path)
    raylet = fake_wire.Channel.connect(config["raylet_address"], token)
    raylet.send(wire.Hello("executor", worker_id, address, os.getpid(), b""))
    channels = [raylet]
    while True:
        ready = fake_wire.wait([listener, *channels])
        for one in ready:
            if one is listener:
                channels.append(fake_wire.Channel.accept(listener, token))
                continue
            message = one.receive()
            if message is None:
                if one is raylet:
                    return 0
                channels.remove(one)
            elif isinstance(message, wire.Interrupt):
                if message.reason in ("stay", wire.END_NOW):
                    continue  # as one that is stuck
                return 0
            elif isinstance(message, wire.CreateActor):
                _create(raylet, message)
            elif isinstance(message, wire.PushTasks):
                results = [_run(spec, raylet) for spec in message.specs]
                one.send(wire.Results(results, 0.001))


def _create(raylet: fake_wire.Channel, message: wire.CreateActor) -> None:
    method = message.spec.method
    actor_id, incarnation = message.actor_id, message.incarnation
    if method == "fail":
        error = wire.Payload(wire.ERROR, b"boom")
        raylet.send(wire.ActorFailed(actor_id, incarnation, error))
        return
    if method.startswith("exit:"):
        os._exit(int(method[5:]))
    raylet.send(wire.ActorCreated(actor_id, incarnation, "repr"))


def _run(spec: wire.TaskSpec, raylet: fake_wire.Channel) -> wire.Result:
    verb, _, text = spec.method.partition(":")
    value = b""
    if verb == "exit":
        os._exit(int(text))
    elif verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "print":
        sys.stdout.write(f"\x1e{spec.name}\n{text}\n")
        sys.stdout.flush()
    elif verb == "write":
        os.write(2, text.encode())
    elif verb == "flood":
        for _ in range(int(text) >> 16):
            os.write(1, b"x" * 65535 + b"\n")
    elif verb == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        value = str(child.pid).encode()
    elif verb == "sleep":
        time.sleep(float(text))
    elif verb == "pid":
        value = str(os.getpid()).encode()
    elif verb == "env":
        value = os.environ.get(text, "").encode()
    elif verb == "block":
        raylet.send(wire.Blocked(text == "1"))
    elif verb == "leave":
        raylet.send(wire.ActorExiting(bytes.fromhex(text), "asked to"))
        os._exit(0)
    elif verb == "stat":
        rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
        kib = sum(int(row.split()[1]) for row in rows if row.startswith("Private"))
        value = str(kib * 1024).encode()
    return wire.Result(spec.task_id, [wire.Payload(wire.PICKLE, value)])
