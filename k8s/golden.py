"""The renders that are committed below ``k8s/deploy``, for people to read and compare.

``python -m rayshim.k8s.golden --write`` renews them after a change of
``k8s/deploy/platform.yaml`` or of what renders it; without ``--write`` it lists the
files that differ, and exits with 1 if there are any. Whatever
:func:`rayshim.k8s.render.render` gives is covered, whichever module it comes from;
files that were written by hand are left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rayshim.k8s.config import Platform
from rayshim.k8s.loading import load_platform
from rayshim.k8s.render import HEADER, render

#: ``k8s/deploy`` of the checkout.
DEPLOY: Final = Path(__file__).resolve().parent / "deploy"


@dataclass(frozen=True, slots=True)
class Golden:
    """A platform file, and where its render is kept."""

    #: Below ``k8s/deploy``; "" is that folder itself.
    folder: str
    platform: str = "platform.yaml"


GOLDEN: Final = (
    Golden(""),
    Golden("overlays/10x", "overlays/10x/platform.yaml"),
    Golden("overlays/eu", "overlays/eu/platform.yaml"),
)


def expected(one: Golden, deploy: Path = DEPLOY) -> dict[Path, str]:
    """Path -> text of the files of a render.

    Args:
        one: which.
        deploy: folder of the platform files.
    """
    platform = _named(load_platform(deploy / one.platform), one)
    folder = deploy / one.folder
    return {folder / path: text for path, text in render(platform).texts().items()}


def _named(platform: Platform, one: Golden) -> Platform:
    """The platform with a file name that is the same on each machine."""
    others = tuple(_named(other, one) for other in platform.others)
    return replace(platform, source=one.platform, others=others)


def different(wanted: Mapping[Path, str]) -> list[Path]:
    """Files that are not there or have another text."""
    return [
        path
        for path, text in wanted.items()
        if not path.is_file() or path.read_text() != text
    ]


def left_over(
    one: Golden, wanted: Mapping[Path, str], deploy: Path = DEPLOY
) -> list[Path]:
    """Files of an earlier render that this one has not any more."""
    start = HEADER.split("{", 1)[0]
    folder = deploy / one.folder
    apart = [deploy / other.folder for other in GOLDEN if other.folder != one.folder]
    return [
        path
        for path in sorted(folder.rglob("*.yaml"))
        if path not in wanted
        and not any(path.is_relative_to(other) for other in apart if other != deploy)
        and path.read_text().startswith(start)
    ]


def main(arguments: Sequence[str]) -> int:
    """Compares or renews all of :data:`GOLDEN`.

    Args:
        arguments: of the command line; "--write" renews.

    Returns:
        The exit code: 1 if something differs and was not renewed.
    """
    is_writing = "--write" in arguments
    code = 0
    for one in GOLDEN:
        if not (DEPLOY / one.platform).is_file():
            continue
        wanted = expected(one)
        changed, surplus = different(wanted), left_over(one, wanted)
        for path in changed + surplus:
            print(path.relative_to(DEPLOY))
        if not is_writing:
            code = 1 if changed or surplus or code else 0
            continue
        for path in changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        for path in surplus:
            path.unlink()
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
