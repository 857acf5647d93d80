"""Archives: equal ones for equal folders, and nothing written outside when unpacked."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from rayshim.adapters.environments.archives import (
    TooLarge,
    UnsafeArchive,
    safe_name,
    strip_single_folder,
    unpack,
    write_zip,
)

BAD_NAMES = ["../x", "a/../../x", "/etc/x", "..\\x", "\\x", "C:\\x", "C:/x", "a/.."]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_lead_out_are_refused(name: str) -> None:
    with pytest.raises(UnsafeArchive):
        safe_name(name)


@pytest.mark.parametrize("name", ["a", "a/b", "./a", "..a/b", "a..b"])
def test_names_that_stay_inside_are_taken(name: str) -> None:
    assert not safe_name(name).is_absolute()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_zip_entries_that_lead_out_write_nothing(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr(name, "evil")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnsafeArchive):
        unpack(archive, tmp_path / "inside")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "inside"])


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_tar_entries_that_lead_out_write_nothing(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "bad.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        entry = tarfile.TarInfo(name)
        entry.size = 4
        opened.addfile(entry, io.BytesIO(b"evil"))
    with pytest.raises(UnsafeArchive):
        unpack(archive, tmp_path / "inside")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK]
)
def test_zip_entries_of_other_kinds_are_refused(tmp_path: Path, kind: int) -> None:
    archive = tmp_path / "bad.zip"
    entry = zipfile.ZipInfo("link")
    entry.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr(entry, "/etc/passwd")
    with pytest.raises(UnsafeArchive, match="link"):
        unpack(archive, tmp_path / "inside")
    assert list((tmp_path / "inside").iterdir()) == []


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_tar_entries_of_other_kinds_are_refused(tmp_path: Path, kind: bytes) -> None:
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as opened:
        entry = tarfile.TarInfo("link")
        entry.type, entry.linkname = kind, "/etc/passwd"
        opened.addfile(entry)
    with pytest.raises(UnsafeArchive):
        unpack(archive, tmp_path / "inside")
    assert list((tmp_path / "inside").iterdir()) == []


def test_a_link_that_is_there_already_is_not_in_the_archive(tmp_path: Path) -> None:
    """The classic: a link first, then a file through it."""
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as opened:
        link = tarfile.TarInfo("out")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        opened.addfile(link)
        entry = tarfile.TarInfo("out/x")
        entry.size = 4
        opened.addfile(entry, io.BytesIO(b"evil"))
    with pytest.raises(UnsafeArchive):
        unpack(archive, tmp_path / "inside")
    assert not (tmp_path / "x").exists()


def test_archives_that_grow_too_large_are_stopped(tmp_path: Path) -> None:
    archive = tmp_path / "bomb.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("zeros", bytes(5 << 20))
    with pytest.raises(TooLarge):
        unpack(archive, tmp_path / "inside", limit_bytes=2 << 20)
    assert (tmp_path / "inside" / "zeros").stat().st_size <= 2 << 20


def test_files_that_are_no_archives_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.zip"
    text.write_text("hello")
    with pytest.raises(ValueError, match="no zip"):
        unpack(text, tmp_path / "inside")


def test_written_archives_are_unpacked_as_they_were(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("a")
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o700)
    files = [("a.txt", source / "a.txt"), ("deep/run", source / "run")]
    write_zip(tmp_path / "one.zip", files)
    (source / "a.txt").touch()
    write_zip(tmp_path / "two.zip", files)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    unpack(tmp_path / "one.zip", tmp_path / "inside")
    assert (tmp_path / "inside" / "a.txt").read_text() == "a"
    assert (tmp_path / "inside" / "deep" / "run").stat().st_mode & 0o100
    assert not (tmp_path / "inside" / "a.txt").stat().st_mode & 0o111


def test_writing_stops_at_the_limit(tmp_path: Path) -> None:
    import os

    (tmp_path / "noise").write_bytes(os.urandom(4 << 20))
    with pytest.raises(TooLarge):
        write_zip(tmp_path / "x.zip", [("noise", tmp_path / "noise")], 1 << 20)
    assert (tmp_path / "x.zip").stat().st_size < 4 << 20


def test_a_single_folder_is_lifted(tmp_path: Path) -> None:
    inside = tmp_path / "repo-main"
    (inside / "repo-main").mkdir(parents=True)
    (inside / "file").write_text("x")
    (tmp_path / "__MACOSX").mkdir()
    strip_single_folder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "repo-main"]


def test_two_folders_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    strip_single_folder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
