"""How an executor takes up an environment that its raylet had built.

It happens once, in the main thread, before the first lease is told to anybody. Most
environments only need paths. One with another interpreter, or with packages of which
the executor has others loaded already, needs a fresh process: the executor becomes one
by ``exec``, under its own process id, and says hello to its raylet again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import pickle
import site
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.environments.context import Context
from rayshim.adapters.wire.environment_messages import (
    EnterEnvironment,
    EnvironmentEntered,
)

if TYPE_CHECKING:
    from rayshim._core.executor import Executor

#: What an interpreter runs that takes an executor's place. The paths are those of the
#: interpreter before; what this one finds itself comes first.
_CODE = (
    "import sys; sys.path[:1] = [] if sys.path[0] == '' else sys.path[:1]; "
    "sys.path += [one for one in {path!r} if one not in sys.path]; "
    "from rayshim._core.runtime_env_entering import go_on; go_on({descriptor})"
)


def enter(executor: Executor, message: EnterEnvironment) -> None:
    """Take up an environment and say so, or why not (main thread)."""
    error = ""
    try:
        context = msgspec.json.decode(message.context, type=Context)
        os.environ.update(message.env_vars)
        if _needs_process(context):
            _become(executor, message, context)
        _apply(executor, message, context)
    except BaseException as failure:
        error = f"{type(failure).__name__}: {failure}"
        if isinstance(failure, _HookError):
            error = str(failure)
    peer = executor.peer
    with peer.lock:
        peer.raylet.send(EnvironmentEntered(error))


def go_on(descriptor: int) -> None:
    """Be the executor that this process was before it became this interpreter."""
    from rayshim._core.executor import main

    with open(descriptor, "rb") as file:
        file.seek(0)
        config = msgspec.json.decode(file.read())
    _die_with(config["parent_pid"])
    main(config)


class _HookError(Exception):
    """A worker_process_setup_hook failed; the text has its traceback."""


def _needs_process(context: Context) -> bool:
    if context.command:
        return True
    if not context.python:
        return False
    for folder in context.site_dirs:
        for name in os.listdir(folder):
            module = name.partition(".")[0]
            if module in sys.modules and not name.endswith((".dist-info", ".pth")):
                return True
    return False


def _become(executor: Executor, message: EnterEnvironment, context: Context) -> None:
    command = context.command or [context.python]
    alone = msgspec.structs.replace(context, command=[], python="")
    config = {
        **executor.config,
        "parent_pid": os.getppid(),
        "entering": [
            message.runtime_env,
            message.env_vars,
            msgspec.json.encode(alone).decode(),
        ],
    }
    descriptor = os.memfd_create("rayshim-executor", 0)
    os.write(descriptor, msgspec.json.encode(config))
    path = [entry for entry in sys.path if entry]
    code = _CODE.format(path=path, descriptor=descriptor)
    _set_variables(context)
    if context.working_dir:
        os.chdir(context.working_dir)
    with contextlib.suppress(OSError):
        os.unlink(executor.peer.socket_path)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execvp(command[0], [*command, "-c", code])


def _die_with(parent_pid: int) -> None:
    """Also when the command of the interpreter runs it as a child of its own."""
    from rayshim.adapters.processes.lifeline import die_with_parent

    die_with_parent(os.getppid() if os.getppid() != 1 else parent_pid)


def _apply(executor: Executor, message: EnterEnvironment, context: Context) -> None:
    peer = executor.peer
    peer.job_env = dict(message.env_vars)
    peer.runtime_env_text = message.runtime_env
    peer.runtime_env = json.loads(message.runtime_env)
    _set_variables(context)
    if context.working_dir:
        os.chdir(context.working_dir)
    front = [path for path in context.sys_path if path not in sys.path]
    sys.path[:0] = front
    for folder in context.site_dirs:
        _see_packages(folder, len(context.sys_path))
    if context.python:
        sys.executable = context.python
    importlib.invalidate_caches()
    if context.hook:
        _run_hook(context.hook)


def _set_variables(context: Context) -> None:
    if context.bin_dirs:
        old = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = os.pathsep.join([*context.bin_dirs, old])
    if context.sys_path:
        # For Python processes that the calls start.
        inherited = os.environ.get("PYTHONPATH")
        paths = [*context.sys_path, *([inherited] if inherited else [])]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    os.environ.update(context.env_vars)


def _see_packages(folder: str, position: int) -> None:
    """Put a folder of packages, and what its .pth files name, before all others."""
    if folder in sys.path:
        return  # the interpreter is that environment's own
    before = list(sys.path)
    known = set(before)
    sys.path.append(folder)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".pth") and not name.startswith("_rayshim_"):
            site.addpackage(folder, name, known)
    added = sys.path[len(before) :]
    sys.path[:] = [*before[:position], *added, *before[position:]]


def _run_hook(hook: str) -> None:
    try:
        # It runs before its process knows of which job it is, and so whether that
        # program has the alias. Without Ray nothing else can be meant.
        if importlib.util.find_spec("ray") is None:
            from rayshim import dropin

            dropin.inherit()
        _load_hook(hook)()
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        raise _HookError(
            f"the worker_process_setup_hook failed in pid {os.getpid()}:\n{text}"
        ) from error


def _load_hook(hook: str) -> Callable[[], Any]:
    if os.path.isabs(hook):
        with open(hook, "rb") as file:
            function: Callable[[], Any] = pickle.load(file)
        return function
    module, _, name = hook.rpartition(".")
    if not module:
        raise ValueError(
            f"{hook!r} names no function: write it as 'module.function', or pass the "
            "function itself"
        )
    found: Callable[[], Any] = getattr(importlib.import_module(module), name)
    return found
