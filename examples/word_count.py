"""Count the words of Python's own standard library with tasks: map, then reduce.

Each map task counts one chunk of files and splits its counts by word, so that every
reduce task adds up a disjoint share of the words. The result is compared with a plain
serial count.

    python examples/word_count.py --chunks 16
"""

from __future__ import annotations

import argparse
import re
import sys
import sysconfig
import time
import zlib
from collections import Counter
from pathlib import Path

import rayshim as ray

WORD = re.compile(r"[A-Za-z]+")


def count_words(paths: list[Path]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in paths:
        counts.update(WORD.findall(path.read_text(errors="replace").lower()))
    return counts


@ray.remote
def count_chunk(paths: list[Path], shares: int) -> list[Counter[str]]:
    split: list[Counter[str]] = [Counter() for _ in range(shares)]
    for word, count in count_words(paths).items():
        split[zlib.crc32(word.encode()) % shares][word] = count
    return split if shares > 1 else split[0]


@ray.remote
def add_up(*counts: Counter[str]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=sysconfig.get_path("stdlib"))
    parser.add_argument("--files", type=int, default=1500, help="files to read at most")
    parser.add_argument("--chunks", type=int, default=16, help="number of map tasks")
    parser.add_argument("--shares", type=int, default=4, help="number of reduce tasks")
    options = parser.parse_args()

    paths = [
        path
        for path in sorted(Path(options.folder).rglob("*.py"))
        if "site-packages" not in path.parts
    ][: options.files]
    ray.init()

    start = time.perf_counter()
    mapped = [
        count_chunk.options(num_returns=options.shares).remote(
            paths[i :: options.chunks], options.shares
        )
        for i in range(options.chunks)
    ]
    columns = zip(*mapped, strict=True) if options.shares > 1 else [mapped]
    counts: Counter[str] = Counter()
    for share in ray.get([add_up.remote(*column) for column in columns]):
        counts.update(share)
    parallel_s = time.perf_counter() - start

    start = time.perf_counter()
    expected = count_words(paths)
    serial_s = time.perf_counter() - start

    print(f"{counts.total():,} words in {len(paths):,} files, {len(counts):,} distinct")
    print("most frequent:", ", ".join(f"{w} {n:,}" for w, n in counts.most_common(5)))
    print(f"{parallel_s:.2f} s with tasks, {serial_s:.2f} s serially")
    if counts != expected:
        print("MISMATCH: the serial count differs", file=sys.stderr)
        return 1
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
