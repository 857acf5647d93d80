"""Pushing all that has room, while classes of calls come and go."""

from __future__ import annotations

from typing import Any

import pytest

from rayshim._core.submit import TaskSubmitter
from rayshim.lineage.dispatch import SchedulingClass


def test_a_call_that_is_found_to_lack_a_value_may_bring_a_class_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The class of the call that made the value, whose leases went back long ago.
    tasks = object.__new__(TaskSubmitter)
    classes = [SchedulingClass(key, key, None) for key in "abc"]
    maker = classes.pop()
    for one in classes:
        one.queue.append("call")
    tasks.classes = {one.key: one for one in classes}
    advanced = []

    def advance(self: TaskSubmitter, scheduling: Any, *, flush: bool) -> None:
        advanced.append(scheduling.key)
        self.classes.setdefault(maker.key, maker)

    monkeypatch.setattr(TaskSubmitter, "_advance", advance)
    tasks.flush_all()
    assert advanced == ["a", "b"]
