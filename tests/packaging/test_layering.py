"""Who may import whom. The rules are those of the layout table in the conventions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from source_tree import Import, imports_of, is_below, modules

MODULES = modules()

#: Standard library without I/O, clock, randomness, threads and logging.
PURE = frozenset(
    "__future__ abc array base64 binascii bisect collections copy dataclasses decimal "
    "enum fractions functools graphlib hashlib heapq itertools keyword math numbers "
    "operator re statistics string struct textwrap types typing weakref".split()
)
#: Ids draw from the operating system unless a test or simulation draws for them.
EXCEPTIONS = {"rayshim.lineage.ids": frozenset({"os.urandom"})}
#: Folder of adapters/ -> the technology that it may import beside its own kind.
TECHNOLOGY: dict[str, frozenset[str]] = {
    "dask": frozenset({"cloudpickle", "dask", "distributed", "tornado"}),
    "environments": frozenset({"fsspec", "msgspec"}),
    "events": frozenset({"msgspec", "pyarrow"}),
    "flight": frozenset({"msgspec", "pyarrow"}),
    "http": frozenset({"h11", "starlette", "uvicorn"}),
    "journal": frozenset({"redis"}),
    "metrics": frozenset({"prometheus_client", "psutil", "starlette"}),
    "nvml": frozenset(),
    "ports": frozenset(),
    "processes": frozenset({"psutil"}),
    "raylet": frozenset({"fsspec", "msgspec", "psutil"}),
    "shm": frozenset(),
    "sim": frozenset(),
    "wire": frozenset({"msgspec"}),
}
#: Installed with rayshim always, and cheap enough to import at the top of a module.
CORE = frozenset({"click", "cloudpickle", "msgspec", "psutil", "rich"})
#: Modules that only the dashboard's process loads, which is made of this.
WEB = frozenset({"rayshim.dashboard", "rayshim.jobs.rest"})
#: What `rayshim[k8s]` installs, and what its test cluster is made of besides.
KUBERNETES = frozenset({"kubernetes", "prometheus_client", "urllib3", "yaml"})
LOCALKUBE = frozenset({"aiohttp", "jsonpatch", "jsonschema", "starlette", "uvicorn"})
LIBRARIES = frozenset(f"rayshim.{name}" for name in ("data", "train", "tune", "serve"))


def below(*packages: str) -> list[str]:
    return [name for name in MODULES if is_below(name, frozenset(packages))]


def folder_of(adapter: str) -> str:
    """The folder of adapters/ that a module is in; "ports" for the package itself."""
    return [*adapter.split("."), "ports"][2]


def imports(name: str) -> list[Import]:
    return list(imports_of(name, MODULES[name]))


def complain(name: str, found: list[Import], rule: str) -> None:
    lines = [f"{MODULES[name]}:{item.line}: imports {item.name}" for item in found]
    assert not found, "\n".join([rule, *lines])


@pytest.mark.parametrize("name", below("rayshim.lineage"))
def test_lineage_imports_only_itself_and_pure_modules(name: str) -> None:
    allowed = PURE | {"rayshim.lineage"} | EXCEPTIONS.get(name, frozenset())
    found = [item for item in imports(name) if not is_below(item.name, allowed)]
    complain(name, found, "lineage decides; what touches the world goes to adapters")


@pytest.mark.parametrize("name", below("rayshim.adapters"))
def test_adapters_import_only_lower_layers_and_their_technology(name: str) -> None:
    folder = folder_of(name)
    assert folder in TECHNOLOGY, f"say in {__file__} what adapters/{folder} may import"
    ours = {
        "rayshim.adapters",
        "rayshim.exceptions",
        "rayshim.lineage",
        "rayshim.settings",
    }
    allowed = sys.stdlib_module_names | ours | TECHNOLOGY[folder]
    found = [item for item in imports(name) if not is_below(item.name, allowed)]
    complain(name, found, "an adapter knows its technology and the layers below")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_technology_is_imported_in_its_adapter_only(name: str) -> None:
    found = [
        item
        for item in imports(name)
        if (
            is_below(item.name, {"dask", "distributed"})
            # Dask's users hand it a graph or a client: both need the public side.
            and not is_below(name, {"rayshim.adapters.dask", "rayshim.util.dask"})
        )
        or (
            is_below(item.name, {"pyarrow.flight"})
            and not is_below(name, {"rayshim.adapters.flight"})
        )
    ]
    complain(name, found, "Dask belongs to adapters/dask, Flight to adapters/flight")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_optional_packages_are_imported_where_they_are_needed(name: str) -> None:
    folder = folder_of(name) if is_below(name, {"rayshim.adapters"}) else "ports"
    allowed = sys.stdlib_module_names | CORE | {"rayshim"} | TECHNOLOGY[folder]
    if is_below(name, WEB):
        allowed |= {"starlette"}
    if is_below(name, {"rayshim.util.dask"}):
        allowed |= TECHNOLOGY["dask"]
    if is_below(name, {"rayshim.k8s"}):
        allowed |= KUBERNETES
    if is_below(name, {"rayshim.k8s.testing"}):
        allowed |= LOCALKUBE
    found = [
        item
        for item in imports(name)
        if item.at_import_time and not is_below(item.name, allowed)
    ]
    complain(name, found, "import it inside the function that uses it")


@pytest.mark.parametrize("name", below("rayshim.k8s"))
def test_the_platform_stands_on_the_planner_and_the_autoscaler(name: str) -> None:
    hidden = {"rayshim._core", "rayshim.dashboard", "rayshim.jobs", "rayshim.util"}
    found = [item for item in imports(name) if is_below(item.name, hidden)]
    complain(
        name, found, "k8s/ knows the cluster by its control service, as any client"
    )


@pytest.mark.parametrize("name", below("rayshim.lineage", "rayshim.adapters"))
def test_nothing_below_knows_of_kubernetes(name: str) -> None:
    theirs = {"kubernetes", "rayshim.k8s", "yaml"}
    found = [i for i in imports(name) if is_below(i.name, theirs)]
    complain(name, found, "Kubernetes belongs to k8s/")


@pytest.mark.parametrize("name", below(*LIBRARIES))
def test_libraries_use_public_names_only(name: str) -> None:
    hidden = {"rayshim._core", "rayshim.adapters", "rayshim.lineage"}
    found = [item for item in imports(name) if is_below(item.name, hidden)]
    complain(name, found, "libraries are written against the public names")


def test_the_scan_finds_relative_and_nested_imports(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import os.path\n"
        "from . import near\n"
        "from ..far import thing\n"
        "def f():\n"
        "    import late\n"
    )

    found = list(imports_of("rayshim.lineage.sub.module", path))

    assert found == [
        Import("os.path", 1, True),
        Import("rayshim.lineage.sub.near", 2, True),
        Import("rayshim.lineage.far.thing", 3, True),
        Import("late", 5, False),
    ]
