"""Program: the Flight server of a folder, until stdin ends.

    python flight_sender.py TOKEN_HEX FOLDER BLOCK_AFTER

Writes its address. Hangs at the value that it opens after ``BLOCK_AFTER`` others, if
that is not negative.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

from rayshim.adapters.flight.server import FlightSender


def main(token: str, folder: str, block_after: int) -> None:
    """Serves."""
    opened = itertools.count()

    def open_value(name: str) -> int:
        if next(opened) >= block_after >= 0:
            threading.Event().wait()
        return os.open(os.path.join(folder, name), os.O_RDONLY)

    served = FlightSender(bytes.fromhex(token), open_value)
    print(served.address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
