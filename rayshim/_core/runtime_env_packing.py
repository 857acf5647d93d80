"""Folders of a driver as packages: which files, how large, and what name that gives."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger("rayshim")

#: Files with patterns of what is left out, in any folder.
_IGNORE_FILES = (".gitignore", ".rayignore")
#: A variable of Ray's: "1" leaves .gitignore files alone.
_NO_GITIGNORE = "RAY_RUNTIME_ENV_IGNORE_GITIGNORE"
#: How many files are named when a package is large.
LARGEST = 10
#: A package of this many bytes or more is described with its largest files.
TALK_BYTES = 1 << 20
_READ_BYTES = 1 << 20


class Package(NamedTuple):
    """What is to be uploaded."""

    #: ``_ray_pkg_<hash>.zip``
    name: str
    #: Name in the archive, and where the content is.
    files: list[tuple[str, Path]]
    #: Of all files, before they are compressed.
    size_bytes: int


def pack_folder(folder: Path, excludes: list[str], *, under: str = "") -> Package:
    """Find the files of a folder that are to travel.

    Args:
        folder: Whose files; links to files and folders inside are followed.
        excludes: Patterns as in a .gitignore file, from the folder on.
        under: Name of a folder in the archive that they are put into.

    Raises:
        ModuleNotFoundError: patterns need the ``pathspec`` package, which is missing.
    """
    prefix = f"{under}/" if under else ""
    files = sorted((prefix + name, path) for name, path in _walk(folder, excludes))
    digest = hashlib.blake2b(digest_size=16)
    size_bytes = 0
    for name, path in files:
        about = path.stat()
        size_bytes += about.st_size
        mark = "x" if about.st_mode & 0o100 else "-"
        digest.update(f"{name}\0{mark}{about.st_size}\0".encode(errors="replace"))
        _add(digest, path)
    return Package(f"_ray_pkg_{digest.hexdigest()}.zip", files, size_bytes)


def file_name(path: Path, ending: str) -> str:
    """The name of a package that is one file already."""
    digest = hashlib.blake2b(digest_size=16)
    _add(digest, path)
    return f"_ray_pkg_{digest.hexdigest()}{ending}"


def described(what: str, package: Package) -> str:
    """The size of a package, with its largest files if it is worth it."""
    text = f"{what}: {len(package.files)} files, {mib(package.size_bytes)}"
    if package.size_bytes >= TALK_BYTES:
        text += f", of which the largest are\n{largest(package)}"
    return text


def largest(package: Package) -> str:
    """The largest files of a package, one on a line."""
    sizes = sorted(
        ((path.stat().st_size, name) for name, path in package.files), reverse=True
    )
    return "\n".join(f"  {mib(size):>12}  {name}" for size, name in sizes[:LARGEST])


def mib(size_bytes: int) -> str:
    """A size for people."""
    return f"{size_bytes / 2**20:.2f} MiB"


def zipped(package: Package, what: str, limit_bytes: int) -> Path:
    """Write a package into a temporary archive, which the caller removes.

    Raises:
        ValueError: it has more than ``limit_bytes``; the largest files are named.
    """
    from rayshim.adapters.environments.archives import TooLarge, write_zip

    handle, path = tempfile.mkstemp(suffix=".zip", prefix="rayshim-package-")
    os.close(handle)
    target = Path(path)
    try:
        write_zip(target, package.files, limit_bytes)
    except TooLarge:
        target.unlink()
        raise too_large(what, package.size_bytes, limit_bytes, package) from None
    except BaseException:
        target.unlink()
        raise
    return target


def too_large(
    what: str, size_bytes: int, limit_bytes: int, package: Package | None = None
) -> ValueError:
    """The error of a package that is larger than allowed."""
    files = f"\nIts largest files:\n{largest(package)}" if package else ""
    return ValueError(
        f"Package size of {what} ({mib(size_bytes)}) exceeds the maximum size of "
        f"{mib(limit_bytes)} (setting runtime_env_package_bytes). To exclude large "
        "files, add them to '.gitignore' or '.rayignore' files, or use the 'excludes' "
        f"option in the runtime_env, or pass the URI of a remote zip file.{files}"
    )


def _add(digest: Any, path: Path) -> None:
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)


def _walk(folder: Path, excludes: list[str]) -> Iterator[tuple[str, Path]]:
    rules = [("", _spec(excludes))] if excludes else []
    yield from _walk_in(folder, "", rules, {os.path.realpath(folder)})


def _walk_in(
    folder: Path, prefix: str, rules: list[tuple[str, Any]], above: set[str]
) -> Iterator[tuple[str, Path]]:
    names: tuple[str, ...] = _IGNORE_FILES
    if os.environ.get(_NO_GITIGNORE) == "1":
        names = names[1:]
    for ignore in names:
        if (folder / ignore).is_file():
            lines = (folder / ignore).read_text(errors="replace").splitlines()
            rules = [*rules, (prefix, _spec(lines))]
    for path in sorted(folder.iterdir()):
        name = prefix + path.name
        if path.is_dir():
            real = os.path.realpath(path)
            if real in above:
                logger.warning("left out %s: the link leads back up", path)
            elif not _is_ignored(name + "/", rules):
                yield from _walk_in(path, name + "/", rules, above | {real})
        elif path.is_file():
            if not _is_ignored(name, rules):
                yield name, path
        elif not _is_ignored(name, rules):
            logger.warning("left out %s: it is no file and no folder", path)


def _is_ignored(name: str, rules: list[tuple[str, Any]]) -> bool:
    return any(spec.match_file(name[len(start) :]) for start, spec in rules)


def _spec(lines: list[str]) -> Any:
    try:
        import pathspec
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the excludes of a runtime_env, .gitignore and .rayignore files need the "
            "package pathspec: pip install pathspec"
        ) from error
    return pathspec.GitIgnoreSpec.from_lines(lines)
