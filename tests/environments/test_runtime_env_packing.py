"""Packages of folders: which files, what name, what is said, and how they travel."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from rayshim._core import runtime_env_packing as packing
from rayshim._core.runtime_env_upload import prepare
from rayshim.adapters.environments.archives import unpack
from rayshim.adapters.raylet.package_store import PackageStore
from rayshim.settings import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    (home / "a.txt").write_text("a")
    (home / "deep" / "b.txt").write_text("b")
    return home


@pytest.fixture
def store(tmp_path: Path) -> PackageStore:
    return PackageStore(tmp_path / "packages", 1 << 30)


def asker(store: PackageStore) -> Any:
    def ask(method: str, payload: Any) -> Any:
        call = getattr(store, method.removeprefix("package_"))
        return call(msgspec.msgpack.encode(payload))

    return ask


def names(package: packing.Package) -> list[str]:
    return [name for name, _ in package.files]


def test_equal_content_gives_equal_names(folder: Path, tmp_path: Path) -> None:
    import shutil

    other = Path(shutil.copytree(folder, tmp_path / "other"))
    assert packing.pack_folder(folder, []).name == packing.pack_folder(other, []).name
    (other / "a.txt").write_text("A")
    assert packing.pack_folder(folder, []).name != packing.pack_folder(other, []).name


def test_names_of_files_count(folder: Path) -> None:
    before = packing.pack_folder(folder, []).name
    (folder / "a.txt").rename(folder / "c.txt")
    assert packing.pack_folder(folder, []).name != before


def test_being_executable_counts(folder: Path) -> None:
    before = packing.pack_folder(folder, []).name
    (folder / "a.txt").chmod(0o755)
    assert packing.pack_folder(folder, []).name != before


def test_excluded_files_do_not_count(folder: Path) -> None:
    before = packing.pack_folder(folder, ["*.log"]).name
    (folder / "x.log").write_text("x")
    assert packing.pack_folder(folder, ["*.log"]).name == before


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (["*.txt"], []),
        (["/a.txt"], ["deep/b.txt"]),
        (["deep"], ["a.txt"]),
        (["deep/"], ["a.txt"]),
        (["**/b.txt"], ["a.txt"]),
        (["*.txt", "!a.txt"], ["a.txt"]),
        (["# comment", ""], ["a.txt", "deep/b.txt"]),
    ],
)
def test_excludes_are_patterns_of_git(
    folder: Path, patterns: list[str], left: list[str]
) -> None:
    assert names(packing.pack_folder(folder, patterns)) == left


@pytest.mark.parametrize("name", [".gitignore", ".rayignore"])
def test_ignore_files_hold_for_their_folder(folder: Path, name: str) -> None:
    (folder / "deep" / name).write_text("/b.txt\n")
    assert names(packing.pack_folder(folder, [])) == ["a.txt", f"deep/{name}"]


def test_gitignore_can_be_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".gitignore").write_text("*.txt\n")
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    assert "a.txt" in names(packing.pack_folder(folder, []))


def test_links_are_followed_and_loops_are_not(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "c.txt").write_text("c")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    logging.getLogger("rayshim").propagate = True
    found = names(packing.pack_folder(folder, []))
    assert found == ["a.txt", "deep/b.txt", "link/c.txt"]


def test_large_packages_name_their_largest_files(folder: Path) -> None:
    for number in range(12):
        (folder / f"{number:02}.bin").write_bytes(bytes((number + 1) << 18))
    text = packing.described("working_dir", packing.pack_folder(folder, []))
    lines = text.splitlines()
    assert lines[0].startswith("working_dir: 14 files, 19.5")
    assert len(lines) == 11
    assert lines[1].endswith("11.bin")


def test_packages_that_are_too_large_are_refused(
    folder: Path, store: PackageStore
) -> None:
    (folder / "noise.bin").write_bytes(os.urandom(1 << 20))
    settings = Settings(runtime_env_package_bytes=1 << 19)
    with pytest.raises(ValueError, match=r"exceeds the maximum size[\s\S]*noise.bin"):
        prepare({"working_dir": str(folder)}, asker(store), settings=settings)
    assert not store.folder.exists()


def test_folders_become_names_that_can_be_unpacked(
    folder: Path, store: PackageStore, tmp_path: Path
) -> None:
    (folder / "big.bin").write_bytes(os.urandom(3 << 20))
    env = prepare({"working_dir": str(folder), "excludes": ["a.txt"]}, asker(store))
    assert env.keys() == {"working_dir"}
    name = env["working_dir"].removeprefix("gcs://")
    unpack(store.folder / name, tmp_path / "inside")
    big = (tmp_path / "inside" / "big.bin").read_bytes()
    assert big == (folder / "big.bin").read_bytes()
    assert not (tmp_path / "inside" / "a.txt").exists()
    assert [path.name for path in store.folder.iterdir()] == [name]


def test_what_is_there_is_not_sent_again(folder: Path, store: PackageStore) -> None:
    asked = []
    ask = asker(store)

    def note(method: str, payload: Any) -> Any:
        asked.append(method)
        return ask(method, payload)

    first = prepare({"working_dir": str(folder)}, note)
    assert "package_put" in asked
    asked.clear()
    assert prepare({"working_dir": str(folder)}, note) == first
    assert asked == ["package_size"]


def test_preparing_again_changes_nothing(folder: Path, store: PackageStore) -> None:
    def hook() -> None:
        pass

    env = prepare(
        {
            "working_dir": str(folder),
            "py_modules": [str(folder)],
            "worker_process_setup_hook": hook,
        },
        asker(store),
    )
    assert prepare(env, asker(store)) == env


def test_modules_travel_under_their_names(
    folder: Path, store: PackageStore, tmp_path: Path
) -> None:
    single = tmp_path / "single.py"
    single.write_text("X = 1")
    module = ModuleType("single")
    module.__file__ = str(single)
    env = prepare({"py_modules": [str(folder), module, single]}, asker(store))
    for number, uri in enumerate(env["py_modules"]):
        name = uri.removeprefix("gcs://")
        unpack(store.folder / name, tmp_path / "inside" / str(number))
    assert (tmp_path / "inside" / "0" / "home" / "a.txt").exists()
    assert (tmp_path / "inside" / "1" / "single.py").exists()
    assert env["py_modules"][1] == env["py_modules"][2]


@pytest.mark.parametrize("field", ["working_dir", "py_modules"])
def test_paths_that_do_not_exist_are_refused(field: str, store: PackageStore) -> None:
    value = "/no/such/path" if field == "working_dir" else ["/no/such/path"]
    with pytest.raises(ValueError, match="/no/such/path"):
        prepare({field: value}, asker(store))


def test_uris_stay_as_they_are(store: PackageStore) -> None:
    env = {"working_dir": "s3://a/b.zip", "py_modules": ["https://a/c.zip"]}
    assert prepare(env, asker(store)) == env


# The store of the control service.


def put(store: PackageStore, **piece: Any) -> bool:
    return store.put(msgspec.msgpack.encode(piece))


NAME = "_ray_pkg_0123456789abcdef.zip"


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "_ray_pkg_../../x.zip",
        "_ray_pkg_0123456789abcdef.zip/../x",
        "_ray_pkg_0123456789abcdef.exe",
        "_ray_pkg_0123456789abcdef.zip\n",
        "",
    ],
)
def test_other_names_are_refused(store: PackageStore, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a package"):
        put(store, name=name, upload="00" * 8, offset=0, data=b"x", is_last=True)
    with pytest.raises(ValueError, match="no name of a package"):
        store.get(msgspec.msgpack.encode({"name": name, "offset": 0}))


@pytest.mark.parametrize("upload", ["../../x", "", "00\n"])
def test_other_names_of_uploads_are_refused(store: PackageStore, upload: str) -> None:
    with pytest.raises(ValueError, match="no name of an upload"):
        put(store, name=NAME, upload=upload, offset=0, data=b"x")


def test_pieces_that_come_twice_count_once(store: PackageStore) -> None:
    first = {"name": NAME, "upload": "00" * 8, "offset": 0, "data": b"ab"}
    last = {**first, "offset": 2, "data": b"cd", "is_last": True}
    for piece in (first, first, last, last):
        put(store, **piece)
    assert (store.folder / NAME).read_bytes() == b"abcd"


def test_a_piece_that_is_missing_is_told(store: PackageStore) -> None:
    put(store, name=NAME, upload="00" * 8, offset=0, data=b"ab")
    with pytest.raises(ValueError, match="misses the pieces from byte 2"):
        put(store, name=NAME, upload="00" * 8, offset=5, data=b"x")


def test_unfinished_uploads_are_not_there(store: PackageStore) -> None:
    put(store, name=NAME, upload="00" * 8, offset=0, data=b"ab")
    assert store.size(msgspec.msgpack.encode({"name": NAME})) == -1
    with pytest.raises(ValueError, match="no package"):
        store.get(msgspec.msgpack.encode({"name": NAME, "offset": 0}))


def test_the_oldest_packages_make_room(tmp_path: Path) -> None:
    store = PackageStore(tmp_path / "packages", 25)
    for number in range(3):
        name = f"_ray_pkg_{number:016x}.zip"
        piece = {"name": name, "upload": "00" * 8, "offset": 0, "data": bytes(10)}
        put(store, **piece, is_last=True)
        os.utime(store.folder / name, (1000 + number, 1000 + number))
    assert sorted(path.name[24] for path in store.folder.iterdir()) == ["1", "2"]
