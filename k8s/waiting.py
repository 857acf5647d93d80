"""Waiting for what a cluster does, with one limit for several waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rayshim.k8s.api import Unreachable

#: Seconds between two looks, at first and at most.
FIRST_S: Final = 0.1
MOST_S: Final = 2.0
#: Seconds between two words on what is waited for.
TELL_S: Final = 15.0


class Waiting:
    """Waits for several things, for so long altogether.

    Args:
        limit_s: seconds for all waits together.
        clock: seconds that only grow.
        sleep: of seconds.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._sleep = sleep
        self._end_s = clock() + limit_s

    def until(
        self,
        condition: Callable[[], bool],
        *,
        limit_s: float | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> bool:
        """Asks again and again, at least once.

        Args:
            condition: what is waited for. That the API server does not answer counts
                as not yet.
            limit_s: seconds for this wait, within the limit for all.
            on_wait: called from time to time while it is not true.

        Returns:
            Whether it became true in time.

        Raises:
            Unreachable: the API server did not answer to the last.
        """
        now = self._clock()
        end_s = self._end_s if limit_s is None else min(self._end_s, now + limit_s)
        tell_s, pause_s = now + TELL_S, FIRST_S
        while True:
            away: Unreachable | None = None
            try:
                if condition():
                    return True
                if on_wait is not None and self._clock() >= tell_s:
                    on_wait()
                    tell_s = self._clock() + TELL_S
            except Unreachable as error:
                away = error
            left_s = end_s - self._clock()
            if left_s <= 0:
                if away is not None:
                    raise away
                return False
            self._sleep(min(pause_s, left_s))
            pause_s = min(MOST_S, pause_s * 1.5)
