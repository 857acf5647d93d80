"""`import rayshim` is light: what is heavy loads when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["asyncio", "dask", "distributed", "numpy", "pandas", "pyarrow", "rich"]


@pytest.mark.parametrize("module", ["rayshim", "rayshim.dropin", "rayshim.lineage"])
def test_import_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*sorted(set({HEAVY}) & set(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == []


def test_unknown_attribute_is_an_attribute_error() -> None:
    import rayshim

    with pytest.raises(AttributeError, match="no_such_name"):
        rayshim.no_such_name  # noqa: B018
