"""A session can be found as soon as ``init`` returns."""

from __future__ import annotations

import rayshim
from rayshim._core import clusters, session


def test_a_session_is_found_at_once() -> None:
    for _ in range(3):
        rayshim.init(num_cpus=1, log_to_driver=False)
        try:
            assert session.session is not None
            name = f"local:{session.session.name}"
            assert name in [one.address for one in clusters.running()]
            assert clusters.find_cluster(name).pid
        finally:
            rayshim.shutdown()
