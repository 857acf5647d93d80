"""Makes ``import ray`` mean rayshim.

`install_as_ray` puts an `Alias` first on the meta path. It answers ``ray`` and
``ray.x.y`` with the very module objects ``rayshim`` and ``rayshim.x.y``, so classes
compare and exceptions match whichever name a program used, and what is pickled
refers to rayshim alone.

Rules:

* One module object per module, under both names. The alias therefore leaves
  ``__name__`` and ``__spec__`` as rayshim's own.
* Asking whether a module exists (`importlib.util.find_spec`) is no error; importing
  one that rayshim lacks is, and the error names the nearest one there is.
* Child processes inherit the alias through two environment variables: a folder at
  the front of ``PYTHONPATH`` whose ``sitecustomize`` installs it lazily, and
  ``RAYSHIM_DROPIN``, which turns that on.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

__all__ = ["install_as_ray"]

ALIAS = "ray"
TARGET = "rayshim"
#: Set to "1" in the environment of every process below one that has the alias.
VARIABLE = "RAYSHIM_DROPIN"
#: Goes onto PYTHONPATH; holds nothing but a ``sitecustomize`` module.
SITE_FOLDER = Path(__file__).with_name("_sitehook")


class Alias:
    """A meta path finder that answers ``ray`` names with rayshim's modules."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Give a spec whose loader returns rayshim's module of that name.

        Raises:
            ModuleNotFoundError: rayshim has no such module, and an import asks.
        """
        if name != ALIAS and not name.startswith(ALIAS + "."):
            return None
        real_name = TARGET + name[len(ALIAS) :]
        real = importlib.util.find_spec(real_name)
        if real is None:
            if _is_query():
                return None
            raise ModuleNotFoundError(_missing_message(name, real_name), name=name)
        spec = ModuleSpec(name, _Loader(real_name), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec


class _Loader(Loader):
    """Gives the module that rayshim's name stands for, and leaves it as it is."""

    def __init__(self, real_name: str) -> None:
        self._real_name = real_name
        self._real_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real_name)
        _mirror()
        # The import system is about to put the alias's spec here.
        self._real_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._real_spec

    def get_code(self, name: str) -> CodeType | None:
        """Let ``python -m rayshim -m ray.x`` run what ``rayshim.x`` would."""
        spec = importlib.util.find_spec(self._real_name)
        get_code = getattr(spec.loader if spec else None, "get_code", None)
        code: CodeType | None = get_code(self._real_name) if get_code else None
        return code


def _mirror() -> None:
    """Give what is imported its other name, too.

    The import system binds each module that it loads in its package, once more for the
    alias: over what the package itself has under that name, such as the function
    ``ray.util.placement_group``. What has its name is not loaded.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(TARGET + "."):
            sys.modules.setdefault(ALIAS + name[len(TARGET) :], module)


def install_as_ray() -> Alias:
    """Make ``import ray`` mean rayshim, here and in processes started from here.

    Call it before the first ``import ray``; a second call changes nothing. Where
    real Ray is installed too, rayshim wins and says so once on standard error.

    Returns:
        The finder on `sys.meta_path`.

    Raises:
        ImportError: another ``ray`` is imported in this process already.

    Example:
        >>> import rayshim
        >>> _ = rayshim.install_as_ray()
        >>> import ray
        >>> ray is rayshim
        True
    """
    for finder in sys.meta_path:
        if isinstance(finder, Alias):
            return finder
    imported = sys.modules.get(ALIAS)
    if imported is not None and imported is not sys.modules.get(TARGET):
        raise ImportError(
            f"`ray` is imported already, from {_place_of(imported)}: two packages "
            "cannot share the name in one process. Call rayshim.install_as_ray() "
            "before the first `import ray`, or start the program with "
            "`python -m rayshim`."
        )
    alias = Alias()
    sys.meta_path.insert(0, alias)
    if not is_inherited():
        _announce_if_hidden()
    _pass_on()
    return alias


def is_inherited() -> bool:
    """Whether a parent process had the alias and passed it on to this one."""
    return os.environ.get(VARIABLE) == "1"


def inherit() -> None:
    """Have the alias of a driver that is no parent of this process."""
    os.environ[VARIABLE] = "1"
    install_as_ray()


def _pass_on() -> None:
    """Change the environment so that child processes get the alias too."""
    os.environ[VARIABLE] = "1"
    folder = str(SITE_FOLDER)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in entries if entry not in ("", folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *rest])


def _announce_if_hidden() -> None:
    """Say on standard error that an installed Ray is not the one in use."""
    try:
        hidden = PathFinder.find_spec(ALIAS, sys.path)
    except (ImportError, ValueError):
        return
    # A folder that merely has the name is no package (and has no origin).
    if hidden is not None and hidden.origin is not None:
        print(
            f"rayshim: `import ray` gives rayshim; the one at {hidden.origin} "
            "is not used",
            file=sys.stderr,
        )


def _place_of(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "an unknown place")


def _is_query() -> bool:
    """Whether `importlib.util.find_spec` asks, rather than an import statement."""
    frame = sys._getframe(2)
    # One frame of the import system stands between the finder and who asked.
    asker = frame.f_back
    return asker is not None and asker.f_code is importlib.util.find_spec.__code__


#: Ray's libraries above its core.
_LIBRARIES = frozenset(("air", "data", "llm", "rllib", "serve", "train", "tune"))


def _missing_message(name: str, real_name: str) -> str:
    """Name the module that is missing and the nearest one that exists."""
    parent = real_name.rpartition(".")[0]
    known = [module.replace(TARGET, ALIAS, 1) for module in _modules_below(parent)]
    if parent != TARGET:
        known += [module.replace(TARGET, ALIAS, 1) for module in _modules_below(TARGET)]
    message = f"No module named {name!r}: rayshim has no such module"
    if name.split(".")[1] in _LIBRARIES:
        message += " (Ray's libraries are not part of it yet)"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"{message}. The nearest is {close[0]!r}."
    return f"{message}. There are {', '.join(sorted(set(known))) or 'none here'}."


def _modules_below(package_name: str) -> list[str]:
    """Public modules directly below a package, by full name."""
    try:
        package = importlib.import_module(package_name)
    except ImportError:
        return []
    internal = {"adapters", "cli", "dropin", "k8s", "lineage", "settings"}
    return [
        f"{package_name}.{module.name}"
        for module in pkgutil.iter_modules(getattr(package, "__path__", []))
        if not module.name.startswith("_")
        and not (package_name == TARGET and module.name in internal)
    ]
