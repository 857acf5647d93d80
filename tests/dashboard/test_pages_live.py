"""The pages on a real session: what a program does is on them, and harms nobody."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rayshim
from live_dashboard import Dashboard, start, wait_until

pytestmark = pytest.mark.slow

EVIL = "<script>alert(1)</script>"


@rayshim.remote(max_retries=0)
def fail() -> None:
    raise ValueError(EVIL)


@rayshim.remote
def stay(seconds: float) -> int:
    print(EVIL, flush=True)
    time.sleep(seconds)
    return 1


@rayshim.remote(num_cpus=0)
class Counter:
    def add(self, number: int) -> int:
        return number


class Program:
    """What runs while the pages are looked at."""

    def __init__(self) -> None:
        self.counter = Counter.options(name=EVIL).remote()
        rayshim.get([self.counter.add.remote(n) for n in range(5)])
        named = stay.options(name=EVIL)
        rayshim.get([named.remote(0.0) for _ in range(30)])
        with pytest.raises(ValueError, match="alert"):
            rayshim.get(fail.remote())
        self.value = rayshim.put(b"x" * 200_000)
        self.group = rayshim.util.placement_group([{"CPU": 1}], name=EVIL)
        rayshim.get(self.group.ready())
        self.waits = stay.options(num_gpus=3, name="never").remote(0)
        self.actor_id = self.counter._actor_id.hex()


@pytest.fixture(scope="module")
def live() -> Iterator[tuple[Dashboard, Program]]:
    dashboard = start(num_cpus=2, log_to_driver=False)
    yield dashboard, Program()
    rayshim.shutdown()


def page(dashboard: Dashboard, path: str, status: int = 200) -> str:
    found, content, _ = dashboard.ask("GET", path)
    text = content.decode()
    assert found == status, text
    assert EVIL not in text
    return text


def test_the_overview_counts_what_there_is(live: tuple[Dashboard, Program]) -> None:
    text = page(live[0], "/")

    assert "cannot be shown" not in text
    assert '<strong>36</strong><span class="badge good">finished' in text
    assert '<strong>1</strong><span class="badge bad">failed' in text
    assert "&lt;script&gt;alert(1)" in text  # what failed last


def test_tasks_are_those_of_the_state_interface(
    live: tuple[Dashboard, Program],
) -> None:
    from rayshim.util import state

    rows = state.list_tasks(limit=1000)
    shown = page(live[0], "/tasks?rows=500")

    ids = set(re.findall(r'href="/tasks/([0-9a-f]+)"', shown))
    assert ids == {row.task_id for row in rows}
    assert "&lt;script&gt;" in shown


def test_a_failed_task_shows_its_error(live: tuple[Dashboard, Program]) -> None:
    shown = page(live[0], "/tasks?state=FAILED")
    (task_id,) = set(re.findall(r'href="/tasks/([0-9a-f]+)"', shown))

    text = page(live[0], f"/tasks/{task_id}")

    assert "ValueError: &lt;script&gt;alert(1)" in text


def test_what_waits_is_explained(live: tuple[Dashboard, Program]) -> None:
    text = page(live[0], "/leases")

    assert "never" in text and "infeasible" in text
    assert "GPU: 3" in text


def test_an_actor_has_its_history_and_calls(live: tuple[Dashboard, Program]) -> None:
    dashboard, program = live

    text = page(dashboard, f"/actors/{program.actor_id}")

    assert "alive" in text and "Counter.add" in text
    assert len(re.findall(r"<li><span class=\"badge", text)) >= 2


def test_values_are_shown_by_holder(live: tuple[Dashboard, Program]) -> None:
    text = page(live[0], "/objects")

    assert re.search(r"19\d\.\d KiB", text) and "driver" in text


def test_a_log_is_shown_and_followed(live: tuple[Dashboard, Program]) -> None:
    dashboard, _ = live
    paths = re.findall(r'href="(/logs/[^"?]+)"', page(dashboard, "/logs?kind=out"))
    texts = [page(dashboard, path) for path in paths]
    with_text = [one for one in texts if "&lt;script&gt;alert(1)" in one]
    assert with_text

    source = re.search(r'data-source="([^"]+)"', with_text[0])
    assert source is not None
    _, content, _ = dashboard.ask("GET", source[1] + "?offset=0")

    assert EVIL in json.loads(content)["text"]


@pytest.mark.parametrize("name", ["..%2Ftoken", "%2Fetc%2Fpasswd", "..%2F..%2Ftoken"])
def test_no_log_is_outside_of_its_folder(
    live: tuple[Dashboard, Program], name: str
) -> None:
    nodes = re.findall(r'href="/nodes/([0-9a-f]+)"', page(live[0], "/nodes"))

    status, content, _ = live[0].ask("GET", f"/logs/{nodes[0]}/{name}")

    assert status in (400, 404)
    assert live[0].token.encode() not in content


@pytest.mark.parametrize(
    "path", ["/nodes", "/timeline", "/jobs", "/placement-groups", "/charts", "/dask"]
)
def test_other_pages_are_whole(live: tuple[Dashboard, Program], path: str) -> None:
    assert "cannot be shown" not in page(live[0], path)


def test_ten_thousand_calls_are_shown_soon(live: tuple[Dashboard, Program]) -> None:
    dashboard, _ = live

    @rayshim.remote
    def square(number: int) -> int:
        return number * number

    rayshim.get([square.remote(n) for n in range(10_000)])
    wait_until(lambda: "of 10,000" in page(dashboard, "/tasks"))

    def seconds() -> float:
        began_s = time.perf_counter()
        page(dashboard, "/tasks?q=square&sort=duration_s")
        return time.perf_counter() - began_s

    assert min(seconds() for _ in range(5)) < 1.0


def test_a_job_that_is_submitted_is_on_its_page(
    live: tuple[Dashboard, Program],
) -> None:
    dashboard, _ = live
    body = json.dumps({"entrypoint": "echo from the job"}).encode()
    status, content, _ = dashboard.ask(
        "POST", "/api/jobs/", body=body, content_type="application/json"
    )
    assert status == 200, content
    job_id = json.loads(content)["submission_id"]

    def output() -> Any:
        _, told, _ = dashboard.ask("GET", f"/jobs/{job_id}/tail?offset=0")
        return json.loads(told)["text"]

    wait_until(lambda: "from the job" in output(), 40)
    assert "echo from the job" in page(dashboard, f"/jobs/{job_id}")
