"""Ways in which a command of ``rayshim k8s`` ends without having done its work.

::

    CommandFailed
    ├── CheckFailed    exit code 1: something is not as it should be
    ├── ClusterRefuses exit code 3: the cluster refuses or lacks something
    └── TookTooLong    exit code 4: it may come yet; the same command goes on

A platform file that cannot be used (exit code 2) is a
:class:`~rayshim.k8s.config.ConfigError`.
"""

from __future__ import annotations

from typing import ClassVar


class CommandFailed(RuntimeError):
    """The text names the object, the cause and the next step, in one or two lines."""

    #: Of the process.
    exit_code: ClassVar[int] = 1


class CheckFailed(CommandFailed):
    """Something is not as it should be."""


class ClusterRefuses(CommandFailed):
    """Rights or kinds are lacking, or an object belongs to somebody else."""

    exit_code = 3


class TookTooLong(CommandFailed):
    """What was waited for did not come in time."""

    exit_code = 4
