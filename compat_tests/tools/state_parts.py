"""The session that the tests of ``ray.util.state`` look at, and what ran in it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Seconds in which the state of what was done before has to be told.
TOLD_WITHIN_S = 30.0


def until(look: Callable[[], Any], holds: Callable[[Any], object]) -> Any:
    """The first answer that holds: on Ray state is told with a delay."""
    deadline = time.monotonic() + TOLD_WITHIN_S
    while True:
        answer = look()
        if holds(answer):
            return answer
        assert time.monotonic() < deadline, f"still {answer!r}"
        time.sleep(0.05)


@contextmanager
def session(num_cpus: int = 4) -> Iterator[Any]:
    """A session with a dashboard, which Ray needs for its state."""
    import ray

    ray.shutdown()
    context = ray.init(
        num_cpus=num_cpus,
        include_dashboard=True,
        logging_level="ERROR",
        log_to_driver=False,
    )
    # Other clusters may run on this machine, among which Ray does not choose.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    try:
        yield context
    finally:
        del os.environ["RAY_ADDRESS"]
        ray.shutdown()
