"""Every page on a made-up cluster: whole, escaped, and honest about faults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from starlette.applications import Starlette

from asgi_client import AsgiClient
from fake_cluster import EVIL, NODES, RUNS, FakeCluster
from rayshim.dashboard import api, pages
from rayshim.dashboard.rendering import POLICY

TASK = f"{2:048x}"
LOG = f"worker-{0:056x}-01000000-1000.out"
ADDRESSES = (
    "/",
    "/nodes",
    f"/nodes/{NODES[0]}",
    "/leases",
    "/actors",
    f"/actors/{0:032x}",
    f"/actors/{2:032x}",
    f"/actors/{3:032x}",
    "/tasks",
    "/tasks?state=FAILED&sort=duration_s&order=desc&q=work&rows=25&page=2",
    f"/tasks/{TASK}",
    f"/tasks/{3:048x}",
    "/timeline",
    "/timeline?span=0",
    f"/timeline?function={quote(EVIL)}",
    "/objects",
    "/logs",
    f"/logs/{NODES[0]}/{LOG}",
    "/jobs",
    "/jobs/raysubmit_1",
    "/placement-groups",
    "/charts",
    "/dask",
    "/settings",
    "/why/cccccccc",
)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[AsgiClient]:
    app = Starlette(routes=[*pages.routes(cluster), *api.routes(cluster)])
    with AsgiClient(app) as client:
        yield client


class Tags(HTMLParser):
    """Collects the tags of a page, and what does not close."""

    void = frozenset("meta link input br img hr".split())

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")


def tags_of(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    return tags


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_is_whole_and_escaped(client: AsgiClient, address: str) -> None:
    answer = client.get(address)

    assert answer.status_code == 200, answer.text
    for piece in RUNS:
        assert piece not in answer.text
    tags = tags_of(answer.text)
    assert not tags.wrong and not tags.open
    scripts = [about for tag, about in tags.seen if tag == "script"]
    assert scripts == [{"type": "module", "src": "/static/page.js"}]
    for tag, about in tags.seen:
        assert tag not in ("style", "iframe", "img", "object")
        assert not [name for name in about if name == "style" or name[:2] == "on"]
        assert not str(about.get("href")).startswith("javascript:")
    assert answer.headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_has_a_part_that_is_sent_only_when_it_changed(
    client: AsgiClient, address: str
) -> None:
    part = client.get(address, headers={"x-part": "-"})

    assert part.status_code == 200
    assert "<html" not in part.text and not tags_of(part.text).wrong
    assert len(part.headers["x-part"]) == 24


def test_a_part_that_did_not_change_is_not_sent(client: AsgiClient) -> None:
    first = client.get("/dask", headers={"x-part": "-"})
    again = client.get("/dask", headers={"x-part": first.headers["x-part"]})

    assert (again.status_code, again.content) == (204, b"")


@pytest.mark.parametrize("address", ["/", "/tasks", "/nodes", "/jobs", "/logs"])
def test_a_head_that_is_gone_is_named_on_the_page(
    cluster: FakeCluster, client: AsgiClient, address: str
) -> None:
    cluster.failures["*"] = ConnectionError("no cluster answers at tcp:1 <b>")

    answer = client.get(address)

    assert answer.status_code == 503
    assert "no cluster answers at tcp:1 &lt;b&gt;" in answer.text
    assert 'data-refresh="' in answer.text


def test_what_is_missing_is_said_and_the_rest_is_shown(
    cluster: FakeCluster, client: AsgiClient
) -> None:
    cluster.failures["list_tasks"] = RuntimeError("too many rows")

    answer = client.get("/")

    assert answer.status_code == 200
    assert "RuntimeError: too many rows" in answer.text
    assert "object store" in answer.text


def test_a_node_that_does_not_answer_is_named(
    cluster: FakeCluster, client: AsgiClient
) -> None:
    cluster.silent_nodes.add(NODES[1])

    for address in ("/", "/nodes", f"/nodes/{NODES[1]}", "/leases"):
        assert "does not answer" in client.get(address).text


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("/tasks/00", "remembers no task 00"),
        ("/actors/00", "knows no actor 00"),
        ("/nodes/00", "has no node 00"),
        ("/jobs/nope", "knows no job nope"),
        (f"/logs/{NODES[0]}/missing.log", "no log file"),
        ("/logs/00/worker.out", "No node 00 is alive"),
    ],
)
def test_what_is_not_known_is_not_found(
    client: AsgiClient, address: str, text: str
) -> None:
    answer = client.get(address)

    assert answer.status_code == 404
    assert text in answer.text


def test_tables_are_filtered_sorted_and_cut_by_the_server(client: AsgiClient) -> None:
    text = client.get("/tasks?state=FAILED&rows=25").text
    assert "1–3 of 3 tasks (30 without filter)" in text

    text = client.get("/tasks?rows=25&page=2").text
    assert "26–30 of 30 tasks" in text and 'rel="prev"' in text

    text = client.get("/tasks?sort=name&q=work_3").text
    assert set(re.findall(r">(work_\d+)</td>", text)) == {"work_3"}


def test_many_tabs_cost_as_much_as_one(
    cluster: FakeCluster, client: AsgiClient
) -> None:
    for _ in range(5):
        client.get("/tasks")

    assert cluster.asked.count("list_tasks") == 1


def test_passwords_in_settings_are_not_shown(client: AsgiClient) -> None:
    text = client.get("/settings").text

    assert "secret" not in text
    assert "redis://***@host:1/0" in text


def test_why_something_waits_is_on_the_page(client: AsgiClient) -> None:
    for address in ("/leases", f"/actors/{3:032x}", "/placement-groups"):
        assert "needs &lt;script&gt;" in client.get(address).text


class TestApi:
    def test_rows_have_the_shape_of_rays(self, client: AsgiClient) -> None:
        told = client.get("/api/v0/tasks?limit=5&detail=1").json()

        assert told["result"] is True
        rows = told["data"]["result"]["result"]
        assert [row["task_id"] for row in rows] == [f"{n:048x}" for n in range(5)]

    def test_filters_go_to_the_state_interface(self, client: AsgiClient) -> None:
        keys = "filter_keys=state&filter_predicates=%3D&filter_values=FAILED"
        told = client.get(f"/api/v0/tasks?{keys}").json()

        rows = told["data"]["result"]["result"]
        assert {row["state"] for row in rows} == {"FAILED"}

    def test_wrong_numbers_are_refused_by_name(self, client: AsgiClient) -> None:
        answer = client.get("/api/v0/tasks?limit=many")

        assert answer.status_code == 400
        assert answer.json()["msg"] == "limit is a whole number, not 'many'"

    def test_cluster_status_names_what_is_used(self, client: AsgiClient) -> None:
        told = client.get("/api/cluster_status").json()

        usage = told["data"]["clusterStatus"]["loadMetricsReport"]["usage"]
        assert usage == {"CPU": [6.0, 8.0]}

    def test_a_head_that_is_gone_is_an_error(
        self, cluster: FakeCluster, client: AsgiClient
    ) -> None:
        cluster.failures["*"] = ConnectionError("gone")

        answer = client.get("/api/v0/nodes")

        assert answer.status_code == 503
        assert "gone" in answer.json()["msg"]

    def test_a_log_is_read_from_where_one_was(
        self, cluster: FakeCluster, client: AsgiClient
    ) -> None:
        told = client.get(f"/logs/{NODES[0]}/{LOG}/tail?offset=4").json()
        assert told["text"] == cluster.log[4:].decode()
        assert told["offset"] == len(cluster.log) and not told["more"]

        cluster.log += "é".encode()[:1]
        told = client.get(f"/logs/{NODES[0]}/{LOG}/tail?offset={told['offset']}").json()
        assert told["text"] == "�" or told["text"] == ""

    def test_the_output_of_a_job_is_its_log(
        self, cluster: FakeCluster, client: AsgiClient
    ) -> None:
        told = client.get("/jobs/raysubmit_1/tail?offset=0").json()

        assert told["text"] == cluster.log.decode()


@pytest.mark.parametrize(
    "address", ["/", "/jobs", "/jobs/raysubmit_1", "/tasks", "/api/v0/jobs"]
)
def test_names_that_are_no_utf_8_are_shown_as_escapes(address: str) -> None:
    cluster = FakeCluster(evil="file \udcff")
    app = Starlette(routes=[*pages.routes(cluster), *api.routes(cluster)])
    with AsgiClient(app) as client:
        answer = client.get(address)

    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("address", ["/jobs/new", "/jobs/new/tail"])
def test_a_job_is_found_as_soon_as_it_was_submitted(
    cluster: FakeCluster, client: AsgiClient, address: str
) -> None:
    client.get("/jobs")  # whose answer is kept for a moment
    cluster.jobs.append({**cluster.jobs[0], "submission_id": "new"})

    assert client.get(address).status_code == 200
