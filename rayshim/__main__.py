"""``python -m rayshim script.py``: run a program that says ``import ray`` unchanged.

The program meets what ``python script.py`` would give it: `sys.argv`, ``sys.path[0]``,
``__file__``, exit codes, tracebacks that begin in its own code, and a ``__main__``
module that is the program, so its functions and classes pickle by value.
"""

from __future__ import annotations

import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from rayshim import RAYSHIM_VERSION
from rayshim.dropin import install_as_ray

USAGE = """\
usage: python -m rayshim [--help | --version] PROGRAM [ARGUMENT ...]

Run a program in which `import ray` means rayshim, unchanged.

PROGRAM is one of
  FILE         a Python file, or a folder or zip file with a __main__.py
  -m MODULE    a module or package, as in `python -m MODULE`
  -c CODE      a string of code
  -            code read from standard input
All arguments after it are the program's own.
"""
#: Exit code for a wrong command line; python's own.
USAGE_ERROR = 2


def main(arguments: list[str] | None = None) -> None:
    """Run the program that the command line names; return when it ends.

    Args:
        arguments: the command line without the interpreter's part.

    Raises:
        SystemExit: as raised by the program, or for a wrong command line.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        raise SystemExit(0 if arguments else USAGE_ERROR)
    first, *rest = arguments
    if first in ("-V", "--version"):
        print(f"rayshim {RAYSHIM_VERSION}")
    elif first in ("-m", "-c"):
        if not rest:
            _leave(f"argument expected for the {first} option", USAGE_ERROR)
        install_as_ray()
        run_module(rest[0], rest[1:]) if first == "-m" else run_code(rest[0], rest[1:])
    elif first == "-":
        install_as_ray()
        run_code(sys.stdin.read(), rest, name="<stdin>", argv0="-")
    elif first.startswith("-"):
        _leave(f"unknown option {first}\n{USAGE}", USAGE_ERROR)
    else:
        install_as_ray()
        run_file(first, rest)


def run_file(path: str, arguments: list[str]) -> None:
    """Run a file as ``python path`` does."""
    sys.argv[:] = [path, *arguments]
    absolute = os.path.join(Path.cwd(), path)  # keeps ./ as python does
    if pkgutil.get_importer(absolute) is not None:  # a folder or a zip file
        _replace_first_path(absolute)
        spec = PathFinder.find_spec("__main__", [absolute])
        if spec is None:
            _leave(f"can't find '__main__' module in {absolute!r}", 1)
        _run_importable(spec, path)
        return
    _replace_first_path(str(Path(path).resolve().parent))
    main_module = _new_main(file=absolute)
    main_module.__loader__ = SourceFileLoader("__main__", absolute)
    _run(main_module, lambda: _compile_file(absolute))


def run_module(name: str, arguments: list[str]) -> None:
    """Run a module or package as ``python -m name`` does."""
    sys.argv[:] = ["-m", *arguments]
    _replace_first_path(str(Path.cwd()))
    spec = _find_module(name)
    if spec.origin is not None:
        sys.argv[0] = spec.origin
    _run_importable(spec, name)


def run_code(
    source: str, arguments: list[str], *, name: str = "<string>", argv0: str = "-c"
) -> None:
    """Run a string as ``python -c source`` does."""
    sys.argv[:] = [argv0, *arguments]
    _replace_first_path("")
    _run(_new_main(), lambda: compile(source, name, "exec", dont_inherit=True))


def _run_importable(spec: ModuleSpec | None, asked: str) -> None:
    """Run what the import system found for the program that was asked for."""
    get_code = getattr(spec.loader if spec else None, "get_code", None)
    code: CodeType | None = get_code(spec.name) if spec and get_code else None
    if spec is None or code is None:
        _leave(f"No code object available for {asked}", 1)
    main_module = _new_main(file=spec.origin)
    main_module.__loader__ = spec.loader
    main_module.__spec__ = spec
    main_module.__package__ = spec.parent
    main_module.__dict__["__cached__"] = spec.cached
    _run(main_module, lambda: code)


def _find_module(name: str) -> ModuleSpec:
    """Find a module, or the ``__main__`` of a package."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            main_spec = importlib.util.find_spec(name + ".__main__")
            if main_spec is None:
                _leave(
                    f"No module named {name}.__main__; {name!r} is a package and "
                    "cannot be directly executed",
                    1,
                )
            spec = main_spec
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        _leave(f"Error while finding module specification for {name!r} ({reason})", 1)
    if spec is None:
        _leave(f"No module named {name}", 1)
    return spec


def _compile_file(path: str) -> CodeType:
    try:
        with io.open_code(path) as file:
            code: CodeType | None = pkgutil.read_code(file)
        if code is None:
            with io.open_code(path) as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        _leave(f"can't open file {path!r}: {reason}", USAGE_ERROR)
    return code


def _new_main(file: str | None = None) -> ModuleType:
    """Put a fresh ``__main__`` in the place of the module that runs this code."""
    ours = sys.modules["__main__"]
    if getattr(ours, "__file__", None) == __file__:
        sys.modules.setdefault("rayshim.__main__", ours)
    module = ModuleType("__main__")
    namespace = module.__dict__
    namespace.update(__annotations__={}, __builtins__=sys.modules["builtins"])
    module.__spec__ = None
    if file is not None:
        module.__file__ = file
        namespace["__cached__"] = None
    sys.modules["__main__"] = module
    return module


def _run(module: ModuleType, get_code: Callable[[], CodeType]) -> None:
    """Execute code in `module`; an exception leaves with the program's frames only."""
    try:
        exec(get_code(), module.__dict__)
    except SystemExit:
        raise
    except BaseException:
        _trim_uncaught(module)
        raise


def _trim_uncaught(module: ModuleType) -> None:
    """Make the hook for uncaught exceptions skip the frames above the program's."""
    hook = sys.excepthook

    def trimmed_hook(
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> Any:
        while traceback and traceback.tb_frame.f_globals is not module.__dict__:
            traceback = traceback.tb_next
        return hook(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = trimmed_hook


def _replace_first_path(entry: str) -> None:
    """Put the program's folder where the interpreter put this one's."""
    if sys.flags.safe_path:
        return
    sys.path[:1] = [entry]


def _leave(message: str, code: int) -> NoReturn:
    print(f"{sys.executable} -m rayshim: {message}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
