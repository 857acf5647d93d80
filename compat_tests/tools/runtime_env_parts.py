"""Folders, archives and wheels that the tests of runtime_envs make."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_files(folder: Path, files: dict[str, str]) -> Path:
    """Write files, by their names from ``folder`` on."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def make_zip(path: Path, files: dict[str, str]) -> Path:
    """Write an archive."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def make_wheel(folder: Path, name: str, version: str, body: str) -> Path:
    """Write a wheel of one module that needs nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return make_zip(
        folder / f"{name}-{version}-py3-none-any.whl",
        {
            f"{name}/__init__.py": body,
            f"{info}/METADATA": about,
            f"{info}/WHEEL": wheel,
            f"{info}/RECORD": "",
        },
    )
