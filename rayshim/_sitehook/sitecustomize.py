"""Makes ``import ray`` mean rayshim in a child process, then chains.

A parent that runs under ``python -m rayshim`` puts this folder on PYTHONPATH, so
every Python process it starts runs this file at start-up. It must be cheap and stand
alone: nothing of rayshim is imported before the program says ``import ray``.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # typing would be imported for it alone
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class LazyAlias:
    """Stands on the meta path until ``ray`` is asked for; then the real one does."""

    @classmethod
    def find_spec(
        cls,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Install rayshim's alias at the first import of `ray` or below it."""
        if name != "ray" and not name.startswith("ray."):
            return None
        try:
            from rayshim.dropin import install_as_ray
        except ModuleNotFoundError as error:
            # Another interpreter, without rayshim: not ours to change.
            if error.name is None or error.name.partition(".")[0] != "rayshim":
                raise
            return None
        alias = install_as_ray()
        sys.meta_path.remove(cls)
        return alias.find_spec(name, path, target)


if os.environ.get("RAYSHIM_DROPIN") == "1":
    sys.meta_path.insert(0, LazyAlias)

# The program sees the path that it would have without us, and the sitecustomize
# that this one hides runs as always.
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _FOLDER]
_hidden = PathFinder.find_spec("sitecustomize", sys.path)
if _hidden is not None and _hidden.loader is not None:
    from importlib.util import module_from_spec

    sys.modules["sitecustomize"] = module_from_spec(_hidden)
    _hidden.loader.exec_module(sys.modules["sitecustomize"])
