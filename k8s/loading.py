"""Reads a platform.yaml. Whatever is wrong is a ConfigError with its path in the file."""

from __future__ import annotations

from pathlib import Path

from rayshim.k8s.config import Platform


def load_platform(source: Path | str, *, scale: float = 1.0) -> Platform:
    """The platform of a file.

    Args:
        source: path of the file; what it ``extends`` is read too.
        scale: how many of its load, as :func:`rayshim.k8s.cost.scaled` takes it.

    Raises:
        ConfigError: it cannot be read or used; names file, path and what to write.
    """
    raise NotImplementedError


def parse_platform(
    text: str, *, source: str = "platform.yaml", scale: float = 1.0
) -> Platform:
    """The platform of a YAML text.

    Args:
        text: as in a file, without ``extends``.
        source: name for messages.
        scale: as for :func:`load_platform`.

    Raises:
        ConfigError: as for :func:`load_platform`.
    """
    raise NotImplementedError
