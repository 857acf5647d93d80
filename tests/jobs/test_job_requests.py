"""What a request for a job may hold, without a cluster."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rayshim.adapters.http.answers import Json
from rayshim.jobs import supervisor
from rayshim.jobs.requests import JobRequest


@pytest.mark.parametrize(
    "values",
    [
        {"entrypoint": "echo \ud800"},
        {"entrypoint": "a\0b"},
        {"submission_id": "\udcff"},
        {"submission_id": "../x"},
        {"submission_id": ".."},
        {"metadata": {"a": "\udcff"}},
        {"metadata": {"\udcff": "a"}},
        {"runtime_env": {"env_vars": {"A": "\udcff"}}},
        {"runtime_env": {"config": {"setup_timeout_seconds": math.nan}}},
        {"entrypoint_num_cpus": math.nan},
        {"entrypoint_resources": {"\udcff": 1}},
    ],
)
def test_what_no_answer_can_hold_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        JobRequest.from_json({"entrypoint": "true", **values})


@pytest.mark.parametrize(
    ("text", "wait_s"), [("nan", 3.0), ("soon", 3.0), ("", 3.0), ("0.5", 0.5)]
)
def test_times_that_are_none_do_not_keep_a_job_from_its_end(
    monkeypatch: pytest.MonkeyPatch, text: str, wait_s: float
) -> None:
    monkeypatch.setenv(supervisor.STOP_WAIT_VARIABLE, text)
    assert supervisor._stop_wait_s() == wait_s


def test_answers_are_json_whatever_is_in_them() -> None:
    rows = [{"name": "\udcff", "amounts": (math.inf, math.nan, 1.5)}, {"name": "é"}]
    told = json.loads(Json(rows).body)
    assert told == [{"name": "\udcff", "amounts": [None, None, 1.5]}, {"name": "é"}]
