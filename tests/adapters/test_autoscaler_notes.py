"""What an autoscaler said is told of the request that it said it of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from rayshim.adapters.raylet.autoscaler_notes import AutoscalerNotes, Note, Report


def test_a_request_hears_nothing_of_other_requests_of_its_function() -> None:
    server: Any = SimpleNamespace(now=lambda: 0.0, drivers={})
    notes = AutoscalerNotes(server)
    report = Report(
        infeasible=[Note("lease", "f {CPU: 1, GPU: 3}", 1, "fits no group")],
        waiting=[Note("lease", "f {CPU: 1}", 4, "get 2 new nodes")],
    )
    notes.take(msgspec.msgpack.encode(report))
    assert notes.about("f {CPU: 1}") == ["get 2 new nodes"]
    assert notes.about("f {CPU: 1, GPU: 3}") == ["fits no group"]
    assert notes.about("g {CPU: 1}") == []
