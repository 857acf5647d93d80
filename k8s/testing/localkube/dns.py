"""The cluster's DNS: a file of names that the processes of pods look into."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

#: Folder that goes on PYTHONPATH of a process that is to see the names.
HOOK_FOLDER = Path(__file__).with_name("_sitehook")
DOMAIN = "svc.cluster.local"


def search_domains(namespace: str) -> list[str]:
    """Domains tried behind a name in a pod.

    Source: https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
    """
    return [f"{namespace}.{DOMAIN}", DOMAIN, "cluster.local"]


class Dns:
    """The names of a cluster.

    Args:
        folder: where the file is.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "names"
        self.path.write_text("")
        self._hook = _load_hook()

    def write(self, names: Iterable[tuple[str, str]]) -> None:
        """Set all names.

        Args:
            names: (full name, address); a name may have several addresses.
        """
        lines = sorted(f"{address} {name}\n" for name, address in names)
        scratch = self.path.with_suffix(".new")
        scratch.write_text("".join(lines))
        scratch.replace(self.path)

    def environment(self, namespace: str) -> dict[str, str]:
        """Variables of a process that is to see the names, PYTHONPATH included."""
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        kept = [os.path.abspath(one) for one in inherited if one]
        return {
            "PYTHONPATH": os.pathsep.join([str(HOOK_FOLDER), *kept]),
            "LOCALKUBE_NAMES": str(self.path),
            "LOCALKUBE_SEARCH": " ".join(search_domains(namespace)),
        }

    def resolve(self, host: str, namespace: str = "default") -> list[str]:
        """Addresses of a name as a pod of the namespace would see them."""
        names = self._hook.Names(str(self.path), search_domains(namespace))
        found: list[str] = names.find(host)
        return found

    @contextmanager
    def in_this_process(self, namespace: str = "default") -> Iterator[None]:
        """Let :mod:`socket` of this process resolve the names."""
        names = self._hook.Names(str(self.path), search_domains(namespace))
        real = self._hook.install(names)
        try:
            yield
        finally:
            self._hook.restore(real)


def _load_hook() -> ModuleType:
    path = HOOK_FOLDER / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("rayshim_localkube_names", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
