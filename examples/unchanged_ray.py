"""A program that knows only Ray. Run it without a change:

python -m rayshim examples/unchanged_ray.py
"""

import argparse
import sys

import ray
from ray.exceptions import RayTaskError


class Square:
    """Defined in the program itself, so it travels by value."""

    def __init__(self, edge):
        self.edge = edge


@ray.remote
def area(square):
    if square.edge < 0:
        raise ValueError("an edge has no negative length")
    return square.edge**2


@ray.remote
class Total:
    def __init__(self):
        self.value = 0

    def add(self, value):
        self.value += value
        return self.value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--squares", type=int, default=10)
    options = parser.parse_args()

    ray.init()
    total = Total.remote()
    sums = [
        total.add.remote(area.remote(Square(edge))) for edge in range(options.squares)
    ]
    result = ray.get(sums[-1])
    print(f"{options.squares} squares cover {result}")
    try:
        ray.get(area.remote(Square(-1)))
    except RayTaskError as error:
        is_both = isinstance(error, ValueError)
    ok = is_both and result == sum(edge**2 for edge in range(options.squares))
    print("OK" if ok else "MISMATCH")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
