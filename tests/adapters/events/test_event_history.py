"""What outlives a session: moved when its folder goes, so many, of so many bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rayshim.adapters.events import history


def make(
    root: Path,
    name: str,
    *,
    keep: int = 3,
    keep_bytes: int = 1 << 20,
    secret: bytes = b"",
    size: int = 10,
) -> Path:
    """The folder of a session that runs."""
    folder = root / name
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "node.log").write_bytes(b"x" * size)
    history.begin(
        folder,
        secret=secret or name.encode(),
        head="head",
        is_head=True,
        keep=keep,
        keep_bytes=keep_bytes,
    )
    return folder


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "history").iterdir())


def test_events_and_logs_move(tmp_path: Path) -> None:
    folder = make(tmp_path, "s1-a")
    target = history.archive(folder)
    assert target == tmp_path / "history" / "s1-a"
    assert (target / "logs" / "node.log").exists()
    assert (target / "events" / history.ABOUT).exists()
    assert not (folder / "logs").exists()
    for folder in (target, target.parent):
        assert oct(folder.stat().st_mode)[-3:] == "700"


def test_second_who_removes_the_folder_finds_nothing(tmp_path: Path) -> None:
    folder = make(tmp_path, "s1-a")
    assert history.archive(folder) is not None
    assert history.archive(folder) is None


def test_nothing_is_kept_where_that_is_turned_off(tmp_path: Path) -> None:
    assert history.archive(make(tmp_path, "s1-a", keep=0)) is None
    assert not (tmp_path / "history").exists()


def test_session_without_events_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "s1-a" / "logs").mkdir(parents=True)
    assert history.archive(tmp_path / "s1-a") is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        target = history.archive(make(tmp_path, f"s{number}-a"))
        if target is not None:
            os.utime(target, (number, number))
    assert names(tmp_path) == ["s2-a", "s3-a", "s4-a"]


def test_bytes_are_bounded_and_the_newest_stays(tmp_path: Path) -> None:
    for number in range(3):
        folder = make(tmp_path, f"s{number}-a", keep_bytes=1_000, size=5_000)
        target = history.archive(folder)
        if target is not None:
            os.utime(target, (number, number))
    assert names(tmp_path) == ["s2-a"]


def test_nodes_of_one_cluster_are_one_session(tmp_path: Path) -> None:
    both = [make(tmp_path, name, secret=b"c") for name in ("s1-head", "s1-node")]
    for folder in both:
        history.archive(folder)
    history.archive(make(tmp_path, "s2-other"))
    found = history.sessions(tmp_path)
    assert sorted(len(one) for one in found) == [1, 2]
    assert len(history.find(tmp_path, "s1-node")) == 2


def test_session_is_found_by_its_beginning_and_as_the_last(tmp_path: Path) -> None:
    for number, name in enumerate(("s1-a", "s2-b")):
        target = history.archive(make(tmp_path, name))
        assert target is not None
        os.utime(target, (number + 1e9, number + 1e9))
    assert [one.name for one in history.find(tmp_path, "s1")] == ["s1-a"]
    assert [one.name for one in history.find(tmp_path, "last")] == ["s2-b"]
    with pytest.raises(ValueError, match="2 sessions begin"):
        history.find(tmp_path, "s")
    with pytest.raises(FileNotFoundError, match="no session 'x'"):
        history.find(tmp_path, "x")


def test_session_that_runs_is_found_too(tmp_path: Path) -> None:
    make(tmp_path, "s1-a")
    found = history.find(tmp_path, "last")
    assert [(one.name, one.ended_s) for one in found] == [("s1-a", 0.0)]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cluster": "x"', "\0\0"])
def test_session_whose_description_is_damaged_is_found(
    tmp_path: Path, text: str
) -> None:
    folder = history.archive(make(tmp_path, "s1-a"))
    assert folder is not None
    (folder / "events" / history.ABOUT).write_text(text)
    assert [one.folder for one in history.find(tmp_path, "s1-a")] == [folder]
    history.archive(make(tmp_path, "s2-b", keep=1))
    assert names(tmp_path) == ["s2-b"]
