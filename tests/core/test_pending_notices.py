"""When what does not begin is explained, and for how long it says that it waits."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from rayshim._core.pending_notices import PendingNotices
from rayshim.lineage.actor_calls import ActorState


@pytest.mark.parametrize(("age_s", "told"), [(31.0, [31]), (29.0, [])])
def test_an_actor_waits_since_it_was_asked_for(age_s: float, told: list[int]) -> None:
    """Not since the first look, which comes as late as what it looks for."""
    client = SimpleNamespace(
        queue=SimpleNamespace(state=ActorState.PENDING), class_name="A"
    )
    creation = SimpleNamespace(since_s=time.monotonic() - age_s)
    peer: Any = SimpleNamespace(
        settings=SimpleNamespace(pending_warn_s=30.0),
        explained=set(),
        tasks=SimpleNamespace(classes={}),
        actors=SimpleNamespace(clients={b"a": client}, _creations={b"a": creation}),
    )
    notices = PendingNotices(peer)
    waits: list[int] = []
    notices._tell = lambda told, waited_s: waits.append(int(waited_s))  # type: ignore[method-assign]  # instead of a control service
    assert notices.look()
    assert notices.look()
    assert waits == told
