"""What an executor needs to know of an environment that was built."""

from __future__ import annotations

from msgspec import Struct, field


class SetupFailed(Exception):
    """An environment cannot be built; the text says why, with a tool's last lines."""


class Context(Struct):
    """Where the parts of an environment are on this host."""

    #: Folder that the executor works in; empty: where it is.
    working_dir: str = ""
    #: Folders where modules are looked for first.
    sys_path: list[str] = field(default_factory=list)
    #: Folders of installed packages, of which the executor reads ``.pth`` files, too.
    site_dirs: list[str] = field(default_factory=list)
    #: Folders with programs, first in ``PATH``.
    bin_dirs: list[str] = field(default_factory=list)
    #: Further environment variables.
    env_vars: dict[str, str] = field(default_factory=dict)
    #: The interpreter of ``site_dirs``, for what executors start, and for executors in
    #: which modules are loaded that the packages replace.
    python: str = ""
    #: Command of an interpreter that the executor must become; empty: any will do.
    command: list[str] = field(default_factory=list)
    #: ``module.function`` or the path of a pickled function that runs first.
    hook: str = ""
    #: Lock files to be held while the environment is in use.
    locks: list[str] = field(default_factory=list)
