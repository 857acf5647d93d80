"""Which environment a call gets: that of its caller, with its own laid over it.

What is common to a process (its variables, and the rest as JSON) is kept by its peer,
so that calls without a runtime_env cost nothing.
"""

from __future__ import annotations

import difflib
import json
import logging
from typing import TYPE_CHECKING, Any

from rayshim._core.runtime_env_fields import check_env_vars

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

logger = logging.getLogger("rayshim")

#: Fields that nodes build, as docs/runtime-environments.md lists them.
FIELDS = frozenset(
    (
        *("env_vars", "working_dir", "py_modules", "excludes", "pip", "uv", "conda"),
        *("py_executable", "worker_process_setup_hook", "config"),
    )
)
#: Names that are no field's, of which this process was told.
_warned: set[str] = set()
#: Of these one call has one: its own takes the place of its caller's.
_MANAGERS = ("pip", "uv", "conda")
#: Fields that no node here can build -> what to do instead.
_UNSUPPORTED = {
    "java_jars": "there is no Java here; leave it out",
    "nsight": "start the profiler around the program, or in a py_executable",
    "_nsight": "start the profiler around the program, or in a py_executable",
    "rocprof_sys": "start the profiler around the program, or in a py_executable",
    "_rocprof_sys": "start the profiler around the program, or in a py_executable",
}


def runtime_env_fields(env: Any) -> dict[str, Any]:
    """A runtime_env as a plain dict, checked, with fields in their one shape.

    Raises:
        TypeError: it is no mapping, or a field has the wrong type.
        ValueError: a field has a wrong value, or two exclude each other.
        NotImplementedError: a field that this version does not build.
    """
    if env is None:
        return {}
    if hasattr(env, "to_dict"):
        env = env.to_dict()
    if not isinstance(env, dict):
        raise TypeError(f"runtime_env must be a dict or RuntimeEnv, not {type(env)}")
    if not env:
        return {}
    for name, instead in _UNSUPPORTED.items():
        if env.get(name):
            raise NotImplementedError(
                f"runtime_env field {name!r} is not supported; {instead}"
            )
    variables = env.get("env_vars")
    if variables is not None:
        check_env_vars(variables)
    if len(env) == 1 and variables is not None:
        return dict(env)
    from rayshim.runtime_env import RuntimeEnv

    made = RuntimeEnv(**{str(name): value for name, value in env.items()})
    _warn_of_unknown([name for name, _ in made.plugins()])
    return dict(made)


def _warn_of_unknown(names: list[str]) -> None:
    """Say once of each name that no field has it: it may be a typing error."""
    for name in set(names) - _warned:
        _warned.add(name)
        near = difflib.get_close_matches(name, sorted(FIELDS), n=1)
        logger.warning(
            "runtime_env has no field %r, which has no effect%s",
            name,
            f"; did you mean {near[0]!r}?" if near else "",
        )


def rest_for_call(peer: Peer, env: dict[str, Any]) -> str:
    """All of a call's environment but its variables, as requests for leases carry it.

    Args:
        peer: Of the caller; files that the environment names are uploaded through it.
        env: Of the call, checked.

    Returns:
        JSON, or an empty text if there is nothing but variables.

    Raises:
        ValueError: a path does not exist, or a folder is too large.
        TypeError: a field of the user's own cannot be written as JSON.
    """
    rest = {name: value for name, value in env.items() if name != "env_vars"}
    if not rest:
        return peer.runtime_env_text
    from rayshim._core.runtime_env_upload import prepare

    merged: dict[str, Any] = json.loads(peer.runtime_env_text or "{}")
    rest = prepare(rest, peer.request, settings=peer.settings)
    if any(rest.get(name) for name in _MANAGERS):
        for name in _MANAGERS:
            merged.pop(name, None)
    return as_text({**merged, **rest})


def as_text(rest: dict[str, Any]) -> str:
    """A prepared environment without its variables, the same for equal ones."""
    if not rest.keys() - {"config"}:
        return ""
    try:
        return json.dumps(rest, sort_keys=True)
    except TypeError as error:
        raise TypeError(f"runtime_env cannot be written as JSON: {error}") from None


def set_for_job(peer: Peer, env: dict[str, Any]) -> None:
    """Make an environment that of all calls of a driver, and have its node build it.

    Raises:
        ValueError: a path does not exist, or a folder is too large.
    """
    peer.job_env = dict(env.get("env_vars") or {})
    peer.runtime_env = dict(env)
    if not env.keys() - {"env_vars"}:
        return
    text = rest_for_call(peer, env)
    if not text:
        return
    peer.runtime_env_text = text
    peer.runtime_env = json.loads(text)
    if peer.job_env:
        peer.runtime_env["env_vars"] = dict(peer.job_env)
    config = env.get("config") or {}
    if config.get("eager_install", True):
        from rayshim.adapters.wire.environment_messages import PrepareEnvironment

        with peer.lock:
            peer.raylet.send(PrepareEnvironment(peer.job_id, text, peer.job_env))
