"""Bars of all processes are drawn by one manager, on standard error."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from rayshim._core.bar_lines import BAR_MARK, draw
from rayshim.experimental import tqdm_ray


@pytest.fixture(autouse=True)
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[tqdm_ray.BarManager]:
    manager = tqdm_ray.BarManager()
    monkeypatch.setattr(tqdm_ray, "_manager", manager)
    yield manager
    manager.close()


def state(**changes: Any) -> dict[str, Any]:
    fields = {
        "x": 1,
        "total": 4,
        "desc": "load",
        "unit": "files",
        "pos": 0,
        "uuid": "one",
        "pid": 7,
        "ip": "127.0.0.1",
        "closed": False,
    }
    return {**fields, **changes}


def test_a_closed_bar_is_written_once_where_there_is_no_terminal(
    manager: tqdm_ray.BarManager, capfd: pytest.CaptureFixture[str]
) -> None:
    for count in range(5):
        manager.process_state_update(state(x=count))
    assert "load" not in capfd.readouterr().err
    manager.process_state_update(state(x=4, closed=True))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("(pid=7) load") == 1
    assert "4/4 files" in err
    assert not manager.has_bars
    assert manager.num_updates == 6


def test_bars_stay_together_until_all_are_closed(
    manager: tqdm_ray.BarManager, capfd: pytest.CaptureFixture[str]
) -> None:
    manager.process_state_update(state(uuid="one"))
    manager.process_state_update(state(uuid="two", desc="store", pid=8))
    manager.process_state_update(state(uuid="one", closed=True))
    assert manager.has_bars
    manager.process_state_update(state(uuid="two", desc="store", pid=8, closed=True))
    err = capfd.readouterr().err
    assert "(pid=7) load" in err
    assert "(pid=8) store" in err


def test_the_end_of_the_session_leaves_what_is_drawn(
    manager: tqdm_ray.BarManager, capfd: pytest.CaptureFixture[str]
) -> None:
    manager.process_state_update(state(x=2))
    manager.close()
    assert "2/4" in capfd.readouterr().err


def test_markup_in_a_title_is_text(
    manager: tqdm_ray.BarManager, capfd: pytest.CaptureFixture[str]
) -> None:
    manager.process_state_update(state(desc="[red]a[/red]", closed=True))
    assert "[red]a[/red]" in capfd.readouterr().err


def test_a_bar_of_this_process_has_no_number(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert list(tqdm_ray.tqdm(range(3), desc="items")) == [0, 1, 2]
    err = capfd.readouterr().err
    assert "items" in err
    assert "pid=" not in err
    assert "3/3" in err


def test_a_marked_line_is_drawn(
    manager: tqdm_ray.BarManager, capfd: pytest.CaptureFixture[str]
) -> None:
    draw(BAR_MARK + json.dumps(state(closed=True)))
    assert "load" in capfd.readouterr().err
    assert manager.num_updates == 1


@pytest.mark.parametrize("text", ["no json", "[1]", '{"x": 1}', '{"uuid": []}'])
def test_a_marked_line_of_something_else_is_printed(
    text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    draw(BAR_MARK + text)
    assert capfd.readouterr().out == text + "\n"


def test_printing_beside_bars(
    manager: tqdm_ray.BarManager, capfd: pytest.CaptureFixture[str]
) -> None:
    tqdm_ray.safe_print("before")
    manager.process_state_update(state())
    tqdm_ray.safe_print("between", "two", sep="-")
    manager.process_state_update(state(x=4, closed=True))
    assert capfd.readouterr().out == "before\nbetween-two\n"


def test_states_are_sent_at_most_once_in_the_interval(
    manager: tqdm_ray.BarManager,
) -> None:
    bar = tqdm_ray.tqdm(total=10, flush_interval_s=1000)
    for _ in range(5):
        bar.update()
    bar.set_description("later")
    bar.n = 7
    bar.total = 8
    assert manager.num_updates == 1
    assert (bar.n, bar.total) == (7, 8)
    bar.refresh()
    bar.close()
    bar.close()
    assert manager.num_updates == 3


def test_a_with_block_closes_its_bar(manager: tqdm_ray.BarManager) -> None:
    with tqdm_ray.tqdm(total=1) as bar:
        bar.update()
        assert manager.has_bars
    assert not manager.has_bars


def test_the_total_comes_from_what_is_iterated() -> None:
    with tqdm_ray.tqdm([1, 2]) as sized, tqdm_ray.tqdm(iter([1])) as endless:
        assert (sized.total, endless.total) == (2, None)


def test_a_state_names_its_process() -> None:
    with tqdm_ray.tqdm(position=3) as bar:
        assert bar._state()["pid"] == os.getpid()
        assert bar._state()["pos"] == 3
