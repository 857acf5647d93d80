"""Names of the local cluster in a Python process of a pod.

A pod has this folder on PYTHONPATH, so every Python process in it runs this file at
start-up. It answers what a cluster's DNS would, out of a file, and then runs the
``sitecustomize`` that it hides. Only what asks :mod:`socket` hears of it; libraries in
C that resolve names themselves do not.

``LOCALKUBE_NAMES``: the file, of lines ``ADDRESS NAME``, read again when it changes.
``LOCALKUBE_SEARCH``: domains, separated by spaces, that are tried behind a name.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # typing would be imported for it alone
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Names:
    """The file of names.

    Args:
        path: of the file.
        search: domains that are tried behind a name.
    """

    def __init__(self, path: str, search: list[str]) -> None:
        self._path = path
        self._search = search
        self._stamp = (0, 0)
        self._addresses: dict[str, list[str]] = {}

    def find(self, host: object) -> list[str]:
        """Addresses of a name, in random order; none if it is not the cluster's."""
        if isinstance(host, bytes | bytearray):
            host = host.decode("ascii", "replace")
        if not isinstance(host, str) or not host:
            return []
        self._read()
        name = host.rstrip(".").lower()
        candidates = [f"{name}.{domain}" for domain in self._search]
        if host.endswith("."):
            candidates = []
        for candidate in (name, *candidates):
            if found := self._addresses.get(candidate):
                return random.sample(found, len(found))
        return []

    def _read(self) -> None:
        try:
            now = os.stat(self._path)
            stamp = (now.st_mtime_ns, now.st_ino)
            if stamp == self._stamp:
                return
            with open(self._path) as file:
                lines = file.read().split("\n")
        except OSError:
            return
        addresses: dict[str, list[str]] = {}
        for line in lines:
            address, _, name = line.partition(" ")
            if name:
                addresses.setdefault(name, []).append(address)
        self._addresses, self._stamp = addresses, stamp


def install(names: Names) -> tuple[object, ...]:
    """Let :mod:`socket` answer for these names; returns what :func:`restore` takes."""
    real = socket.getaddrinfo, socket.gethostbyname, socket.gethostbyname_ex

    def getaddrinfo(
        host: Any, port: Any, *args: Any, **options: Any
    ) -> list[tuple[Any, ...]]:
        found = names.find(host)
        if not found:
            return list(real[0](host, port, *args, **options))
        return [one for each in found for one in real[0](each, port, *args, **options)]

    def gethostbyname(host: Any) -> str:
        found = names.find(host)
        return found[0] if found else real[1](host)

    def gethostbyname_ex(host: Any) -> tuple[str, list[str], list[str]]:
        found = names.find(host)
        return (str(host), [], found) if found else real[2](host)

    made = getaddrinfo, gethostbyname, gethostbyname_ex
    _put(made)
    return real


def restore(real: tuple[object, ...]) -> None:
    """Take :func:`install` back."""
    _put(real)


def _put(functions: tuple[object, ...]) -> None:
    names = "getaddrinfo", "gethostbyname", "gethostbyname_ex"
    for name, function in zip(names, functions, strict=True):
        setattr(socket, name, function)


def _start() -> None:
    install(
        Names(
            os.environ["LOCALKUBE_NAMES"],
            os.environ.get("LOCALKUBE_SEARCH", "").split(),
        )
    )
    # uvloop resolves names in C; those who would use it fall back to asyncio.
    sys.modules.setdefault("uvloop", None)  # type: ignore[arg-type]
    # The program sees the path that it would have without us, and the sitecustomize
    # that this one hides runs as always.
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _FOLDER]
    hidden = PathFinder.find_spec("sitecustomize", sys.path)
    if hidden is not None and hidden.loader is not None:
        from importlib.util import module_from_spec

        sys.modules["sitecustomize"] = module_from_spec(hidden)
        hidden.loader.exec_module(sys.modules["sitecustomize"])


if "LOCALKUBE_NAMES" in os.environ and __name__ == "sitecustomize":
    _start()
