"""Where spilled values lie."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rayshim.adapters.raylet import spill_target
from rayshim.adapters.raylet.spill_target import (
    FolderTarget,
    SpillFull,
    UrlTarget,
    open_target,
    remove_left,
)


@pytest.fixture(params=["folder", "url"])
def target(request, tmp_path):
    place = tmp_path / "spill"
    if request.param == "folder":
        return FolderTarget(str(place))
    return UrlTarget(f"file://{place}")


@pytest.fixture
def value(tmp_path):
    path = tmp_path / "ab-1"
    with open(path, "wb") as file:
        file.write(b"x" * 70_000)
        file.truncate(200_000)  # the rest of a segment is a hole
    return path


def test_a_value_comes_back_as_it_was(target, value, tmp_path):
    assert target.write(str(value), "ab-1") == 200_000
    back = tmp_path / "back"

    target.read("ab-1", str(back))

    assert back.read_bytes() == value.read_bytes()
    assert back.stat().st_mode & 0o777 == 0o600


def test_removed_values_are_gone(target, value, tmp_path):
    target.write(str(value), "ab-1")

    target.remove(["ab-1", "never"])

    with pytest.raises(FileNotFoundError):
        target.read("ab-1", str(tmp_path / "back"))


def test_the_end_removes_everything(target, value, tmp_path):
    target.write(str(value), "ab-1")

    target.close()
    target.close()

    assert not (tmp_path / "spill").exists()


def test_holes_take_no_disk_space(value, tmp_path):
    target = FolderTarget(str(tmp_path / "spill"))
    target.write(str(value), "ab-1")

    assert Path(target.path("ab-1")).stat().st_blocks * 512 < 100_000


def test_a_full_disk_leaves_nothing_behind(value, tmp_path, monkeypatch):
    target = FolderTarget(str(tmp_path / "spill"))

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spill_target.os, "sendfile", fail)

    with pytest.raises(SpillFull, match="No space left"):
        target.write(str(value), "ab-1")
    assert os.listdir(tmp_path / "spill") == []


def test_a_place_outside_of_the_session_is_noted_for_the_next_session(tmp_path, value):
    session, place = tmp_path / "s1", tmp_path / "disk"
    session.mkdir()
    target = open_target(str(place), str(session), "rayshim-s1-ab")
    target.write(str(value), "ab-1")
    assert (place / "rayshim-s1-ab" / "ab-1").exists()

    remove_left(str(session))

    assert list(place.iterdir()) == []


def test_the_default_is_the_folder_of_the_session(tmp_path):
    target = open_target("", str(tmp_path), "rayshim-s1-ab")

    assert target.name == str(tmp_path / "spill")
    assert not (tmp_path / spill_target.NOTE).exists()


def test_a_note_that_names_something_else_removes_nothing(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / spill_target.NOTE).write_text(f'"{precious}"')

    remove_left(str(tmp_path))
    remove_left(str(tmp_path / "missing"))

    assert precious.exists()


def test_a_url_without_fsspec_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)

    with pytest.raises(ImportError, match="fsspec is needed"):
        open_target("s3://bucket/x", str(tmp_path), "rayshim-s1-ab")
