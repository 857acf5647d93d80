"""Which class makes the groups of a backend."""

from __future__ import annotations

from rayshim.util.collective import types
from rayshim.util.collective.collective_group.base_collective_group import BaseGroup


class BackendRegistry:
    """Backends of this process by name, in upper case."""

    def __init__(self) -> None:
        self._classes: dict[str, type[BaseGroup]] = {}

    def put(self, name: str, group_cls: type[BaseGroup]) -> None:
        """Add a backend.

        Raises:
            TypeError: the class is no `BaseGroup`.
            ValueError: the name is taken.
        """
        if not issubclass(group_cls, BaseGroup):
            raise TypeError(f"{group_cls} is not a subclass of BaseGroup")
        if name.upper() in self._classes:
            raise ValueError(f"Backend {name.upper()} already registered")
        self._classes[name.upper()] = group_cls

    def get(self, name: str) -> type[BaseGroup]:
        """The class of a backend.

        Raises:
            ValueError: there is none of that name.
        """
        found = self._classes.get(name.upper())
        if found is None:
            raise ValueError(
                f"Backend {name.upper()} not registered; there are "
                f"{', '.join(sorted(self._classes))}"
            )
        return found

    def is_registered(self, name: str) -> bool:
        """Whether there is such a backend, usable or not."""
        return name.upper() in self._classes

    def check(self, name: str) -> bool:
        """Whether there is such a backend and it can be used here."""
        found = self._classes.get(name.upper())
        return found is not None and bool(found.check_backend_availability())


_global_registry = BackendRegistry()


def register_collective_backend(name: str, group_cls: type[BaseGroup]) -> None:
    """Add a backend to this process: call it in the driver and in each actor.

    Args:
        name: e.g. "MY_BACKEND"; ``Backend.MY_BACKEND`` is there from then on.
        group_cls: a subclass of `BaseGroup`.

    Raises:
        TypeError: the class is no `BaseGroup`.
        ValueError: the name is taken.
    """
    _global_registry.put(name, group_cls)
    upper = name.upper()
    if not hasattr(types.Backend, upper):
        setattr(types.Backend, upper, upper)
