"""Multiply two matrices in blocks that tasks read from shared memory without a copy.

The blocks are put into the object store once; every task gets read-only views of the
ones it needs. The product is compared with numpy's.

    python examples/sharded_matmul.py --size 1536 --blocks 3
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import rayshim as ray


@ray.remote
def multiply_strip(*blocks: np.ndarray) -> np.ndarray:
    """Sum of products of a row of blocks of A with a column of blocks of B.

    Args:
        blocks: the row's blocks, then the column's, each of shape (edge, edge).
    """
    row, column = blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
    if any(block.flags.writeable for block in blocks):
        raise AssertionError("a block arrived as a writable copy")
    total = row[0] @ column[0]
    for a, b in zip(row[1:], column[1:], strict=True):
        total += a @ b
    return total


def put_blocks(matrix: np.ndarray, blocks: int) -> list[list[ray.ObjectRef]]:
    return [
        [ray.put(np.ascontiguousarray(block)) for block in np.hsplit(strip, blocks)]
        for strip in np.vsplit(matrix, blocks)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1536, help="edge of the matrices")
    parser.add_argument("--blocks", type=int, default=3, help="blocks along an edge")
    options = parser.parse_args()
    if options.size % options.blocks:
        parser.error("--size must be a multiple of --blocks")

    generator = np.random.default_rng(1)
    a = generator.standard_normal((options.size, options.size))
    b = generator.standard_normal((options.size, options.size))

    ray.init()
    start = time.perf_counter()
    a_blocks, b_blocks = put_blocks(a, options.blocks), put_blocks(b, options.blocks)
    put_s = time.perf_counter() - start
    start = time.perf_counter()
    refs = [
        [
            multiply_strip.remote(*row, *(strip[j] for strip in b_blocks))
            for j in range(options.blocks)
        ]
        for row in a_blocks
    ]
    product = np.block([ray.get(row) for row in refs])
    multiply_s = time.perf_counter() - start

    start = time.perf_counter()
    expected = a @ b
    numpy_s = time.perf_counter() - start
    error = float(np.abs(product - expected).max())
    print(f"{options.size} x {options.size} in {options.blocks**2} blocks")
    print(f"put {(a.nbytes + b.nbytes) / 1e6:.0f} MB in {put_s:.2f} s")
    print(f"multiplied in {multiply_s:.2f} s, numpy {numpy_s:.2f} s")
    print(f"largest difference {error:.1e}")
    if error > 1e-9 * options.size:
        print("MISMATCH: numpy's product differs", file=sys.stderr)
        return 1
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
