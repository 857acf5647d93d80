"""How a driver shows the lines of its executors, changed at run time."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest

import rayshim
from rayshim._core.logprint import DriverLog, LogPrinter
from rayshim.adapters.wire import messages as m


class Reactor:
    """Keeps timers."""

    def __init__(self) -> None:
        self.timers: list[Any] = []

    def call_later(self, delay_s: float, callback: Any) -> None:
        self.timers.append((delay_s, callback))


def printer(**options: Any) -> LogPrinter:
    peer: Any = types.SimpleNamespace(
        reactor=Reactor(), lock=threading.RLock(), node_ip="10.0.0.1"
    )
    return LogPrinter(peer, DriverLog(**options))


def say(to: LogPrinter, *lines: str, pid: int = 7, node_ip: str = "10.0.0.1") -> None:
    to.accept(m.LogLines(pid, "f", "out", list(lines), node_ip, b""))


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_lines_say_who_printed_them(capsys: pytest.CaptureFixture[str]) -> None:
    say(printer(), "words")
    assert shown(capsys) == ["(f pid=7) words"]


def test_lines_of_other_nodes_say_where(capsys: pytest.CaptureFixture[str]) -> None:
    say(printer(), "words", node_ip="10.0.0.2")
    assert shown(capsys) == ["(f pid=7, ip=10.0.0.2) words"]


def test_lines_of_the_system_have_no_pid(capsys: pytest.CaptureFixture[str]) -> None:
    say(printer(), "words", pid=0)
    assert shown(capsys) == ["(f) words"]


def test_prefixes_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    say(printer(prefix=False), "words")
    assert shown(capsys) == ["words"]


def test_lines_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    to = printer(skip_regex="secret")
    say(to, "a secret", "words")
    assert shown(capsys) == ["(f pid=7) words"]


def test_some_lines_are_never_folded(capsys: pytest.CaptureFixture[str]) -> None:
    to = printer(allow_regex="^keep")
    for pid in (1, 2):
        say(to, "keep me", "fold me", pid=pid)
    assert shown(capsys) == [
        "(f pid=1) keep me",
        "(f pid=1) fold me",
        "(f pid=2) keep me",
    ]


def test_a_change_prints_what_was_folded(capsys: pytest.CaptureFixture[str]) -> None:
    to = printer()
    for pid in (1, 2, 3):
        say(to, "same", pid=pid)
    to.change(DriverLog(fold=False))
    say(to, "same", pid=4)
    first, folded, last = shown(capsys)
    assert first == "(f pid=1) same"
    assert "[repeated 2x across cluster]" in folded
    assert last == "(f pid=4) same"


def test_nothing_is_shown_when_nothing_is_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    to = printer()
    to.change(DriverLog(show=False))
    say(to, "words")
    assert shown(capsys) == []


@pytest.mark.parametrize(
    ("color", "expected"),
    [("", "\x1b[36m(f pid=7)\x1b[0m x"), ("0", "(f pid=7) x")],
)
def test_terminals_have_colours(
    color: str,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    say(printer(color=color), "x")
    assert shown(capsys) == [expected]


def test_processes_can_have_colours_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    to = printer(color="1", fold=False)
    for pid in (1, 2):
        say(to, "x", pid=pid)
    one, two = shown(capsys)
    assert one[:5] != two[:5]


def test_a_wrong_expression_is_named() -> None:
    with pytest.raises(ValueError, match="skip_regex '\\('"):
        printer(skip_regex="(")


def test_variables_of_ray_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    monkeypatch.setenv("RAY_DEDUP_LOGS_SKIP_REGEX", "s")
    monkeypatch.setenv("RAY_DEDUP_LOGS_ALLOW_REGEX", "a")
    monkeypatch.setenv("RAY_COLOR_PREFIX", "1")
    assert DriverLog.from_environment(5.0) == DriverLog(
        fold=False, allow_regex="a", skip_regex="s", color="1"
    )


def test_without_a_session_there_is_nothing_to_change() -> None:
    with pytest.raises(RuntimeError, match=r"call init\(\)"):
        rayshim.driver_log(fold=False)


def wait_passed_on(text: str) -> None:
    """Wait until the node has written a line down and handed it to this driver."""
    from rayshim._core import session

    assert session.session is not None
    logs = session.session.folder / "logs"
    for _ in range(1000):
        if any(text in path.read_text() for path in logs.glob("worker-*.out")):
            break
        threading.Event().wait(0.01)
    rayshim.cluster_resources()  # its answer comes behind the line


@pytest.mark.slow
def test_a_session_that_shows_nothing_can_show_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rayshim.init(num_cpus=1, log_to_driver=False, include_dashboard=False)
    try:

        @rayshim.remote
        def talk(text: str) -> None:
            print(text)

        rayshim.get(talk.remote("hidden"))
        wait_passed_on("hidden")
        assert rayshim.driver_log().show is False
        assert rayshim.driver_log(show=True, fold=False).show is True
        rayshim.get(talk.remote("seen"))
        found = ""
        for _ in range(200):
            found += capsys.readouterr().out
            if "seen" in found:
                break
            threading.Event().wait(0.02)
    finally:
        rayshim.shutdown()
    assert "seen" in found and "hidden" not in found


def test_a_bar_that_cannot_be_drawn_stops_no_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rayshim._core.bar_lines import BAR_MARK
    from rayshim.experimental import tqdm_ray

    def process_line(line: str) -> None:
        raise OSError("standard error is closed")

    monkeypatch.setattr(tqdm_ray, "process_line", process_line)
    say(printer(), f"{BAR_MARK}{{}}", "after it")
    assert shown(capsys) == ["(f pid=7) after it"]
