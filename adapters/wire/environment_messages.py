"""What a raylet and the processes of its node say about runtime_envs."""

from __future__ import annotations

from msgspec import Struct


class PrepareEnvironment(Struct, array_like=True, tag=150):
    """A driver's runtime_env: build it before the first call needs it."""

    job_id: bytes
    #: As in RequestLease.
    runtime_env: str
    env_vars: dict[str, str]


class EnterEnvironment(Struct, array_like=True, tag=151):
    """To an executor before its first lease: what its calls run in."""

    #: As in RequestLease; what is called from inside inherits it.
    runtime_env: str
    env_vars: dict[str, str]
    #: JSON of :class:`rayshim.adapters.environments.context.Context`.
    context: str


class EnvironmentEntered(Struct, array_like=True, tag=152):
    """The answer to it."""

    #: Why it does not do; empty if it does.
    error: str = ""
