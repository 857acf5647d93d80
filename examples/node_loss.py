"""Lose a node, and with it the only copies of large values, in the middle of a program.

A ``Cluster`` is several nodes on this machine, each with processes and a store of its
own. Blocks of bytes are made on one of them, which is then killed as a host that fails.
Tasks that take the blocks, and the driver, get them all the same: their owner, which is
the driver, runs the tasks again that made them, on a node that joined meanwhile.

    python examples/node_loss.py --blocks 8
"""

from __future__ import annotations

import argparse
import random
import sys
import zlib

import rayshim as ray
from rayshim.cluster_utils import Cluster

BLOCK_BYTES = 2_000_000


@ray.remote(num_cpus=0)
class Tally:
    """Counts runs, on the head's node."""

    def __init__(self) -> None:
        self.runs = 0

    def add(self) -> int:
        self.runs += 1
        return self.runs


@ray.remote(resources={"far": 1}, num_cpus=0)
def make_block(number: int, tally: ray.actor.ActorHandle) -> bytes:
    """The same block each time, since it may have to be made again."""
    ray.get(tally.add.remote())
    return random.Random(number).randbytes(BLOCK_BYTES)


@ray.remote(num_cpus=0)
def checksum(block: bytes) -> int:
    return zlib.crc32(block)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=8)
    options = parser.parse_args()
    count = options.blocks
    expected = [random.Random(number).randbytes(BLOCK_BYTES) for number in range(count)]

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    far = cluster.add_node(num_cpus=1, resources={"far": 2})
    ray.init(address=cluster.address)
    tally = Tally.remote()
    blocks = [make_block.remote(number, tally) for number in range(count)]
    # They are made, and stay where they were made.
    ray.wait(blocks, num_returns=count, fetch_local=False)
    print(f"{count} blocks of {BLOCK_BYTES:,} bytes lie on node {far.node_id[:8]}")

    cluster.remove_node(far, allow_graceful=False)
    [dead] = [node for node in ray.nodes() if not node["Alive"]]
    print(f"it is dead: {dead['DeathReasonMessage']}")
    cluster.add_node(num_cpus=1, resources={"far": 2})

    sums = ray.get([checksum.remote(block) for block in blocks])
    found = ray.get(blocks)
    runs = ray.get(tally.add.remote()) - 1
    ray.shutdown()
    cluster.shutdown()

    print(f"{runs} runs made {count} blocks")
    if found != expected or sums != [zlib.crc32(block) for block in expected]:
        print("MISMATCH: a block differs from what was made first", file=sys.stderr)
        return 1
    if runs != 2 * count:
        print("MISMATCH: each block should be made twice", file=sys.stderr)
        return 1
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
