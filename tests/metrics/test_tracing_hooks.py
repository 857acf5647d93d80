"""Spans of calls, where they are submitted and where they run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rayshim
from rayshim._core import trace_hooks
from rayshim.util.tracing.tracing_helper import is_tracing_enabled

pytestmark = pytest.mark.slow

HOOK = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult


class ToFile(SpanExporter):
    def export(self, spans):
        with open(os.environ["SPANS_FILE"], "a") as file:
            for s in spans:
                parent = s.parent.span_id if s.parent else 0
                file.write(
                    f"{s.name}|{s.kind.name}|{s.context.trace_id}|"
                    f"{s.context.span_id}|{parent}|{s.status.status_code.name}|"
                    f"{s.attributes['ray.pid']}\\n"
                )
        return SpanExportResult.SUCCESS


def set_up():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    trace.set_tracer_provider(provider)
"""


@rayshim.remote
def inner(x: int) -> int:
    return x + 1


@rayshim.remote
def outer(x: int, y: int = 0) -> int:
    return rayshim.get(inner.remote(x)) + y


@rayshim.remote
class Plain:
    def __init__(self, base: int) -> None:
        self.base = base

    def add(self, x: int) -> int:
        return self.base + x


@rayshim.remote
class Asynchronous:
    async def echo(self, x: int) -> int:
        return x

    async def count(self, n: int) -> Any:
        for number in range(n):
            yield number


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    folder: Path = tmp_path_factory.mktemp("spans")
    (folder / "hook_of_test_tracing.py").write_text(HOOK)
    file = folder / "spans"
    sys.path.insert(0, str(folder))
    os.environ["SPANS_FILE"] = str(file)
    rayshim.init(
        num_cpus=3,
        log_to_driver=False,
        include_dashboard=False,
        _tracing_startup_hook="hook_of_test_tracing:set_up",
    )

    def find(name: str, count: int = 1) -> list[dict[str, str]]:
        keys = ("name", "kind", "trace", "span", "parent", "status", "pid")
        deadline = time.monotonic() + 20
        while True:
            rows = file.read_text().splitlines() if file.exists() else []
            found = [dict(zip(keys, row.split("|"), strict=True)) for row in rows]
            found = [span for span in found if span["name"] == name]
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    yield find
    rayshim.shutdown()
    sys.path.remove(str(folder))
    del os.environ["SPANS_FILE"]


def test_a_call_and_its_run_are_one_trace(spans: Callable[..., Any]) -> None:
    assert rayshim.get(outer.remote(1, y=5)) == 7
    (asked,) = spans("outer ray.remote")
    (ran,) = spans("outer ray.remote_worker")
    (asked_inside,) = spans("inner ray.remote")
    (ran_inside,) = spans("inner ray.remote_worker")
    chain = [asked, ran, asked_inside, ran_inside]
    assert [span["parent"] for span in chain] == [
        "0",
        asked["span"],
        ran["span"],
        asked_inside["span"],
    ]
    assert len({span["trace"] for span in chain}) == 1
    assert [span["kind"] for span in chain] == ["PRODUCER", "CONSUMER"] * 2
    assert asked["pid"] == str(os.getpid()) != ran["pid"]


def test_methods_have_spans(spans: Callable[..., Any]) -> None:
    plain = Plain.remote(3)
    assert rayshim.get(plain.add.remote(4)) == 7
    (asked,) = spans("Plain.add ray.remote")
    (ran,) = spans("Plain.add ray.remote_worker")
    assert ran["parent"] == asked["span"]
    assert spans("Plain.__init__ ray.remote")
    rayshim.get(plain.__ray_ready__.remote())


def test_coroutines_and_streams_have_spans(spans: Callable[..., Any]) -> None:
    actor = Asynchronous.remote()
    assert rayshim.get(actor.echo.remote(4)) == 4
    stream = actor.count.options(num_returns="streaming").remote(3)
    assert [rayshim.get(ref) for ref in stream] == [0, 1, 2]
    assert spans("Asynchronous.echo ray.remote_worker")
    assert spans("Asynchronous.count ray.remote_worker")


def test_failures_are_seen(spans: Callable[..., Any]) -> None:
    @rayshim.remote
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        rayshim.get(fails.remote())
    (ran,) = spans("fails ray.remote_worker")
    assert ran["status"] == "ERROR"


def test_tracing_ends_with_the_session(spans: Callable[..., Any]) -> None:
    assert is_tracing_enabled()
    rayshim.shutdown()
    assert not is_tracing_enabled()
    from rayshim import remote_function
    from rayshim._core import arguments

    assert remote_function.encode is arguments.encode  # type: ignore[attr-defined]


def test_a_hook_that_is_not_there_fails_the_start() -> None:
    with pytest.raises(ValueError, match="no such function"):
        rayshim.init(num_cpus=1, _tracing_startup_hook="nowhere:nothing")
    assert not rayshim.is_initialized()


def test_without_the_extra_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ImportError, match=r"rayshim\[tracing\]"):
        trace_hooks.begin("a:b")
