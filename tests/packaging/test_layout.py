"""The tree, the package list and the wheel agree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rayshim import RAYSHIM_VERSION
from source_tree import ROOT, SOURCE_FOLDERS, is_below, modules, project_table

#: Lines; the conventions ask for 400 and allow no more than this.
LONGEST_MODULE = 600
ATTICS = {"utils", "helpers", "common", "misc", "_private"}
#: Modules that Ray's programs import under such names.
NAMED_BY_RAY = frozenset(
    {
        "rayshim._private",
        "rayshim.experimental.state.common",
        "rayshim.util.helpers",
        "rayshim.util.state.common",
    }
)


def setuptools_table() -> dict[str, object]:
    return project_table()["tool"]["setuptools"]  # type: ignore[index, return-value]


def test_package_list_equals_the_tree() -> None:
    in_tree = {
        name if path.name == "__init__.py" else name.rpartition(".")[0]
        for name, path in modules().items()
    }

    assert sorted(in_tree) == setuptools_table()["packages"]


def test_every_package_has_an_init() -> None:
    missing = {
        path.parent
        for path in modules().values()
        if not (path.parent / "__init__.py").exists()
    }

    assert not missing


@pytest.mark.parametrize("name", ["adapters", "k8s", "lineage"])
def test_links_lead_to_the_top_level_folders(name: str) -> None:
    assert (ROOT / "rayshim" / name).readlink() == Path("..", name)


def test_package_data_exists() -> None:
    data = setuptools_table()["package-data"]
    for package, files in data.items():  # type: ignore[attr-defined]
        for file in files:
            assert any(SOURCE_FOLDERS[package].glob(file))


@pytest.mark.parametrize("name", sorted(modules()))
def test_modules_are_short_and_named_by_their_subject(name: str) -> None:
    path = modules()[name]
    line_count = len(path.read_text().splitlines())

    assert line_count <= LONGEST_MODULE
    assert ATTICS.isdisjoint(name.split(".")) or is_below(name, NAMED_BY_RAY)


def test_the_version_is_that_of_the_package() -> None:
    version = project_table()["project"]["version"]  # type: ignore[index]

    assert version == RAYSHIM_VERSION


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wheel_holds_the_modules_and_nothing_generic(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    copy_tracked_files(tree)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, tree],
        check=True,
        timeout=280,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        archive.extractall(tmp_path / "unpacked")

    assert {name.split("/")[0].split("-")[0] for name in held} == {"rayshim"}
    for name, path in modules().items():
        file = name.replace(".", "/")
        file += "/__init__.py" if path.name == "__init__.py" else ".py"
        assert file in held
    assert {
        "rayshim/py.typed",
        "rayshim/_sitehook/sitecustomize.py",
        "rayshim/k8s/testing/localkube/_sitehook/sitecustomize.py",
    } <= held
    loaded = subprocess.run(
        [sys.executable, "-c", "import rayshim.lineage as m; print(m.__file__)"],
        cwd=tmp_path / "unpacked",
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(loaded.stdout.strip()).is_relative_to(tmp_path)


def copy_tracked_files(target: Path) -> None:
    """Copy what a clone would hold, links as links, plus files not yet added."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, copy = ROOT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.exists():
            shutil.copy2(source, copy, follow_symlinks=False)
