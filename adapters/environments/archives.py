"""Archives of folders: written the same for the same content, unpacked with care.

Whoever may submit work may run code, so an archive needs no trust as to what it runs;
but a name such as ``../x`` in one that came from somewhere else must not write outside
of its folder. What is neither a plain file nor a folder is refused.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

#: The time that entries carry, so that equal folders give equal archives.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_COPY_BYTES = 1 << 20
#: What an archive may grow to when it is unpacked, at most, by default.
MAX_UNPACKED_BYTES = 64 << 30


class UnsafeArchive(ValueError):
    """An archive holds a name or a kind of entry that is not unpacked."""


class TooLarge(ValueError):
    """An archive is, or becomes, larger than allowed."""


def write_zip(
    target: Path, files: list[tuple[str, Path]], limit_bytes: int = 0
) -> None:
    """Write files into a zip archive.

    Args:
        target: The archive to write.
        files: Name in the archive, and where the content is.
        limit_bytes: What the archive may have; 0: any size.

    Raises:
        TooLarge: it has more. What was written of it is left to the caller.
    """
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, path in files:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.file_size = path.stat().st_size  # decides on the 64 bit format
            with path.open("rb") as source, archive.open(entry, "w") as sink:
                while chunk := source.read(_COPY_BYTES):
                    sink.write(chunk)
                    if limit_bytes and target.stat().st_size > limit_bytes:
                        raise TooLarge(f"the archive has more than {limit_bytes} bytes")
    if limit_bytes and target.stat().st_size > limit_bytes:
        raise TooLarge(f"the archive has more than {limit_bytes} bytes")


def unpack(
    archive: Path, folder: Path, *, limit_bytes: int = MAX_UNPACKED_BYTES
) -> None:
    """Unpack a zip or tar archive (also compressed) into a folder.

    Args:
        archive: What to unpack; its content decides on the format.
        folder: Where to; it is made.
        limit_bytes: What all files may have together.

    Raises:
        UnsafeArchive: a name is absolute or leads out of the folder, or an entry is a
            link, a device or a pipe. Some files may have been written by then.
        TooLarge: the files have more than allowed.
        ValueError: it is no such archive.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if zipfile.is_zipfile(archive):
        _unpack_zip(archive, folder, limit_bytes)
    elif tarfile.is_tarfile(archive):
        _unpack_tar(archive, folder, limit_bytes)
    else:
        raise ValueError(f"{archive.name} is no zip and no tar archive")


def strip_single_folder(folder: Path) -> None:
    """Lift the content of the only folder in a folder, if that is all there is."""
    inside = [path for path in folder.iterdir() if path.name != "__MACOSX"]
    if len(inside) != 1 or not inside[0].is_dir():
        return
    # Its name may be that of something inside.
    only = inside[0].rename(folder / f".lifted-{os.urandom(4).hex()}")
    for path in only.iterdir():
        path.rename(folder / path.name)
    only.rmdir()
    shutil.rmtree(folder / "__MACOSX", ignore_errors=True)


def safe_name(name: str) -> PurePosixPath:
    """The parts of an entry's name, if they stay inside.

    Raises:
        UnsafeArchive: they do not.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    if (
        path.is_absolute()
        or ".." in path.parts
        or "\0" in name
        or (path.parts and path.parts[0].endswith(":"))
    ):
        raise UnsafeArchive(f"the name {name!r} leads out of the archive's folder")
    return path


def _unpack_zip(archive: Path, folder: Path, limit_bytes: int) -> None:
    left = limit_bytes
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            path = safe_name(entry.filename)
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UnsafeArchive(
                    f"{entry.filename!r} is a link, a device or a pipe; only files and "
                    "folders are unpacked"
                )
            target = folder.joinpath(path)
            if entry.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            with opened.open(entry) as source:
                mode = (entry.external_attr >> 16) & 0o111
                left = _write(target, _chunks(source), mode, left, limit_bytes)


def _unpack_tar(archive: Path, folder: Path, limit_bytes: int) -> None:
    left = limit_bytes
    with tarfile.open(archive) as opened:
        for entry in opened:
            path = safe_name(entry.name)
            target = folder.joinpath(path)
            if entry.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif entry.isreg():
                source = opened.extractfile(entry)
                assert source is not None
                with source:
                    mode = entry.mode & 0o111
                    left = _write(target, _chunks(source), mode, left, limit_bytes)
            else:
                raise UnsafeArchive(
                    f"{entry.name!r} is a link, a device or a pipe; only files and "
                    "folders are unpacked"
                )


def _chunks(source: object) -> Iterator[bytes]:
    while chunk := source.read(_COPY_BYTES):  # type: ignore[attr-defined]  # any file
        yield chunk


def _write(
    target: Path, chunks: Iterator[bytes], mode: int, left: int, limit: int
) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as sink:
        for chunk in chunks:
            left -= len(chunk)
            if left < 0:
                raise TooLarge(f"its files have more than {limit} bytes together")
            sink.write(chunk)
    if mode:
        target.chmod(target.stat().st_mode | mode)
    return left
