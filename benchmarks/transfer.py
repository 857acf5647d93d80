"""How fast a value gets from one process or node to another.

    python benchmarks/transfer.py --megabytes 1000 --rounds 3 \\
        --ray-python RAY_ENV/bin/python

Lines, in turn in each round:

- a plain socket on loopback, ``sendfile`` on one side, ``recv_into`` on the other:
  into memory that was used before, and into a fresh file of shared memory (through a
  buffer and ``pwrite``, which is the fastest way on Linux). The second is what a
  transfer has to do and the bound of the others.
- Flight as the nodes use it, one and several streams, into a fresh file as well.
- a whole cluster of two nodes on this machine: a task on one returns an array, a task
  on the other gets it; rayshim, and Ray if its interpreter is named.

The sender's file and the fresh files are in /dev/shm: three times the size is needed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

SHARED_MEMORY = Path("/dev/shm")
TOKEN = bytes(32)
NAME = "a1-1"
OBJECT_ID = bytes(28)
#: What ``recv_into`` is given: it stays in the cache of a core.
BUFFER_BYTES = 1 << 20
PAGE_BYTES = 4096
BASE = "socket, fresh file"


# The sending process.


def serve(folder: Path) -> None:
    """Sends the file over a plain socket and over Flight until stdin ends."""
    from rayshim.adapters.flight.server import FlightSender

    sender = FlightSender(TOKEN, lambda name: os.open(folder / name, os.O_RDONLY))
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_send_files, args=(listener, folder), daemon=True).start()
    print(json.dumps([listener.getsockname()[1], sender.address]), flush=True)
    sys.stdin.read()
    sender.close()


def _send_files(listener: socket.socket, folder: Path) -> None:
    channel, _ = listener.accept()
    with channel, open(folder / NAME, "rb") as file:
        while channel.recv(1):
            offset, left = 0, os.fstat(file.fileno()).st_size
            while left:
                sent = os.sendfile(channel.fileno(), file.fileno(), offset, left)
                offset, left = offset + sent, left - sent


# The receiving process.


@contextmanager
def fresh_file(folder: Path, size_bytes: int) -> Iterator[int]:
    """A descriptor of a new file of that size."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.ftruncate(file.fileno(), size_bytes)
        yield file.fileno()


def socket_into_memory(channel: socket.socket, size_bytes: int) -> Callable[[], None]:
    """Receive into memory whose pages are there."""
    memory = mmap.mmap(-1, size_bytes)
    memory.write(bytes(size_bytes))
    view = memoryview(memory)

    def run() -> None:
        channel.send(b"x")
        place = 0
        while place < size_bytes:
            end = min(size_bytes, place + BUFFER_BYTES)
            place += channel.recv_into(view[place:end])

    return run


def socket_into_file(
    channel: socket.socket, folder: Path, size_bytes: int
) -> Callable[[], None]:
    """Receive into a buffer and write that to a fresh file."""
    buffer = memoryview(bytearray(BUFFER_BYTES))

    def run() -> None:
        with fresh_file(folder, size_bytes) as fd:
            channel.send(b"x")
            place = 0
            while place < size_bytes:
                got = channel.recv_into(buffer)
                place += os.pwrite(fd, buffer[:got], place)

    return run


def flight_into_file(
    address: str, folder: Path, size_bytes: int, streams: int
) -> Callable[[], None]:
    """Fetch as nodes do, in as many streams."""
    from rayshim.adapters.flight.client import FlightReceiver, Stopper

    receiver = FlightReceiver(TOKEN)

    def part(fd: int, offset: int, length: int) -> None:
        span = (offset, length)
        receiver.fetch(address, NAME, OBJECT_ID, span, fd, Stopper())

    share = -(-size_bytes // (streams * PAGE_BYTES)) * PAGE_BYTES
    spans = [
        (offset, min(share, size_bytes - offset))
        for offset in range(0, size_bytes, share)
    ]

    def run() -> None:
        with fresh_file(folder, size_bytes) as fd:
            threads = [
                threading.Thread(target=part, args=(fd, *span)) for span in spans
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    return run


def measure(run: Callable[[], None], size_bytes: int) -> float:
    """GB/s."""
    start = time.perf_counter()
    run()
    return size_bytes / 1e9 / (time.perf_counter() - start)


# Whole clusters.


def cluster(backend: str, size_bytes: int, repeats: int) -> None:
    """Prints the GB/s of transfers between two nodes, as JSON."""
    import numpy as np

    if backend == "ray":
        import ray
        from ray.cluster_utils import Cluster
    else:
        import rayshim as ray
        from rayshim.cluster_utils import Cluster

    nodes = Cluster()
    for name in "AB":
        nodes.add_node(
            num_cpus=1, resources={name: 1}, object_store_memory=3 * size_bytes
        )
    ray.init(address=nodes.address, log_to_driver=False)

    def make(count: int) -> Any:
        return np.ones(count, np.uint8)

    def take(holder: list[Any]) -> float:
        start = time.perf_counter()
        value = ray.get(holder[0])
        taken = time.perf_counter() - start
        assert value[-1] == 1
        return taken

    make_there = ray.remote(num_cpus=0, resources={"A": 0.1})(make)
    take_here = ray.remote(num_cpus=0, resources={"B": 0.1})(take)
    # Processes and connections are started before anything is measured.
    ray.get(take_here.remote([make_there.remote(1 << 20)]))
    rates = []
    for _ in range(repeats):
        made = make_there.remote(size_bytes)
        ray.wait([made], fetch_local=False)
        rates.append(size_bytes / 1e9 / ray.get(take_here.remote([made])))
        del made
    print(json.dumps(rates), flush=True)
    ray.shutdown()
    nodes.shutdown()


def run_cluster(
    python: str, backend: str, size_bytes: int, repeats: int
) -> list[float]:
    """The same in a process of its own."""
    command = [python, __file__, "--cluster", backend, "--repeats", str(repeats)]
    command += ["--megabytes", str(size_bytes // 1_000_000)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        # A machine that is busy may not get a cluster up: the rest still counts.
        print(f"a round of {backend} failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return []
    rates: list[float] = json.loads(lines[-1])
    return rates


def compare(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """All lines, in turn."""
    size_bytes = arguments.megabytes * 1_000_000
    rates: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for name, found in _processes(arguments, size_bytes):
            rates.setdefault(name, []).extend(found)
        for backend, python in (
            ("rayshim", sys.executable),
            ("ray", arguments.ray_python),
        ):
            if python and not arguments.no_cluster:
                found = run_cluster(python, backend, size_bytes, arguments.repeats)
                rates.setdefault(f"{backend}, two nodes", []).extend(found)
    return rates


def _processes(
    arguments: argparse.Namespace, size_bytes: int
) -> Iterator[tuple[str, list[float]]]:
    """The lines between two processes."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=SHARED_MEMORY))
        )
        with open(folder / NAME, "wb") as file:
            block = os.urandom(1_000_000)
            for _ in range(arguments.megabytes):
                file.write(block)
        serving = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(serving.communicate)
        assert serving.stdout is not None
        port, address = json.loads(serving.stdout.readline())
        channel = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        lines: dict[str, Callable[[], None]] = {
            "socket, used memory": socket_into_memory(channel, size_bytes),
            BASE: socket_into_file(channel, folder, size_bytes),
        }
        for streams in arguments.streams:
            plural = "s" if streams > 1 else ""
            name = f"Flight, {streams} stream{plural}, fresh file"
            lines[name] = flight_into_file(address, folder, size_bytes, streams)
        for run in lines.values():
            run()  # Connections, and the sender's page tables.
        found: dict[str, list[float]] = {name: [] for name in lines}
        for _ in range(arguments.repeats):
            for name, run in lines.items():
                found[name].append(measure(run, size_bytes))
        yield from found.items()


def show(rates: dict[str, list[float]], arguments: argparse.Namespace) -> None:
    """A Markdown table."""
    print(
        f"\n{arguments.megabytes} MB, {arguments.rounds} rounds of "
        f"{arguments.repeats}, {os.cpu_count()} CPUs, {platform.system()} "
        f"{platform.release()}, {date.today()}, load {os.getloadavg()[0]:.1f}\n"
    )
    print(
        "| line | GB/s, median | least | most | of the socket |\n|---|---|---|---|---|"
    )
    base = statistics.median(rates[BASE])
    for name, found in rates.items():
        if not found:
            print(f"| {name} | failed | | | |")
            continue
        median = statistics.median(found)
        print(
            f"| {name} | {median:.2f} | {min(found):.2f} | {max(found):.2f} "
            f"| {median / base:.0%} |"
        )


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--ray-python", default="", help="interpreter that has Ray")
    parser.add_argument("--no-cluster", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cluster", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
    elif arguments.cluster:
        size_bytes = arguments.megabytes * 1_000_000
        cluster(arguments.cluster, size_bytes, arguments.repeats)
    else:
        show(compare(arguments), arguments)


if __name__ == "__main__":
    main()
