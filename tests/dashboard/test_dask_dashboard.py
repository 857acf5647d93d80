"""Dask's own dashboard: only where it was asked for, and linked from ours."""

from __future__ import annotations

import re
import urllib.request

import pytest

import rayshim
from live_dashboard import start, wait_until

pytestmark = pytest.mark.slow


def test_it_runs_where_it_was_asked_for() -> None:
    pytest.importorskip("bokeh")
    dashboard = start(_system_config={"dask_dashboard_port": 0})
    try:
        pattern = rb'href="(http://127\.0\.0\.1:\d+)/status"'
        wait_until(lambda: re.search(pattern, dashboard.ask("GET", "/dask")[1]), 40)
        found = re.search(pattern, dashboard.ask("GET", "/dask")[1])
        assert found is not None
        with urllib.request.urlopen(found[1].decode() + "/status") as answer:
            assert answer.status == 200
    finally:
        rayshim.shutdown()


def test_it_does_not_run_by_itself_and_the_page_says_what_to_do() -> None:
    dashboard = start()
    try:
        _, text, _ = dashboard.ask("GET", "/dask")

        assert b"RAYSHIM_DASK_DASHBOARD_PORT=8787" in text
    finally:
        rayshim.shutdown()
