"""`import ray` means rayshim: names, errors, child processes, a Ray beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayshim import dropin

#: Lines that every program of these tests begins with.
INSTALL = "import sys, rayshim; from rayshim import dropin; dropin.install_as_ray()\n"


def run(
    program: str, *, path: Path | None = None, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a clean interpreter, with `path` in front of the others."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", dropin.VARIABLE)
    }
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=check,
    )


def test_names_give_the_same_module_objects() -> None:
    done = run(
        INSTALL
        + """
import importlib
import ray, ray.lineage.references as short, rayshim.lineage.references as long
from ray.lineage import references
assert ray is rayshim and ray.__name__ == "rayshim"
assert short is long is references
assert importlib.import_module("ray.lineage.leases") is sys.modules[
    "rayshim.lineage.leases"
]
"""
    )

    assert done.stderr == ""


def test_what_a_package_has_is_not_hidden_by_a_module_of_that_name() -> None:
    done = run(
        INSTALL
        + """
from ray.util.placement_group import PlacementGroup
import ray, ray.util.placement_group
print(type(ray.util.placement_group).__name__)
from ray.util import placement_group
assert placement_group is rayshim.util.placement_group
"""
    )
    assert done.stdout == "function\n"


def test_the_alias_leaves_the_spec_of_a_module_as_it_was() -> None:
    run(
        INSTALL
        + """
import importlib, ray.lineage
assert ray.__spec__.name == "rayshim"
assert ray.lineage.__spec__.name == "rayshim.lineage"
assert importlib.reload(ray) is rayshim
"""
    )


def test_pickles_refer_to_rayshim_and_both_names_load() -> None:
    run(
        INSTALL
        + """
import pickle, ray.lineage.resources as module
kind = next(v for v in vars(module).values() if isinstance(v, type)
            and v.__module__ == "rayshim.lineage.resources")
data = pickle.dumps(kind, 0)
assert b"crayshim.lineage.resources" in data
assert pickle.loads(data.replace(b"crayshim", b"cray")) is kind
"""
    )


def test_missing_module_is_named_with_the_nearest_one() -> None:
    done = run(INSTALL + "import ray.lineage.reference", check=False)

    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: No module named 'ray.lineage.reference': rayshim has no "
        "such module. The nearest is 'ray.lineage.references'."
    )


def test_missing_module_can_be_caught_and_asked_for() -> None:
    run(
        INSTALL
        + """
import importlib.util
try:
    import ray.rllib
except ImportError as error:
    assert error.name == "ray.rllib"
assert importlib.util.find_spec("ray.rllib") is None
assert importlib.util.find_spec("ray.lineage") is not None
"""
    )


def test_installing_twice_changes_nothing() -> None:
    run(
        INSTALL
        + """
import os
path, finders = os.environ["PYTHONPATH"], list(sys.meta_path)
dropin.install_as_ray()
assert (path, finders) == (os.environ["PYTHONPATH"], sys.meta_path)
"""
    )


def test_children_have_the_alias_and_a_clean_path() -> None:
    done = run(
        INSTALL
        + """
import subprocess
child = "import sys, ray; print(ray.__name__, any('_sitehook' in p for p in sys.path))"
subprocess.run([sys.executable, "-c", child], check=True)
"""
    )

    assert done.stdout == "rayshim False\n"


def test_a_child_that_never_imports_ray_loads_nothing_of_rayshim() -> None:
    done = run(
        "import sys; print('rayshim' in sys.modules)",
        path=dropin.SITE_FOLDER,
        **{dropin.VARIABLE: "1"},
    )

    assert done.stdout == "False\n"


def test_the_sitecustomize_that_ours_hides_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    both = os.pathsep.join([str(dropin.SITE_FOLDER), str(tmp_path)])

    done = run("import ray; print(ray.__name__)", PYTHONPATH=both, RAYSHIM_DROPIN="1")

    assert done.stdout == "theirs\nrayshim\n"


def test_the_folder_alone_does_not_change_a_process() -> None:
    done = run("import ray", path=dropin.SITE_FOLDER, check=False)

    assert "rayshim" not in done.stdout
    assert done.returncode == 0 or "No module named 'ray'" in done.stderr


@pytest.fixture
def other_ray(tmp_path: Path) -> Path:
    """A folder with an importable package called ray."""
    package = tmp_path / "ray"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rllib.py").write_text("")
    return tmp_path


def test_an_installed_ray_loses_and_that_is_said_once(other_ray: Path) -> None:
    done = run(
        INSTALL
        + """
import ray, subprocess
dropin.install_as_ray()
assert ray is rayshim
child = "import ray; print(ray.__name__)"
subprocess.run([sys.executable, "-c", child], check=True)
""",
        path=other_ray,
    )

    assert done.stdout == "rayshim\n"
    assert done.stderr == (
        f"rayshim: `import ray` gives rayshim; the one at "
        f"{other_ray}/ray/__init__.py is not used\n"
    )


def test_a_module_that_only_the_installed_ray_has_is_missing(other_ray: Path) -> None:
    done = run(INSTALL + "import ray.rllib", path=other_ray, check=False)

    assert "ModuleNotFoundError: No module named 'ray.rllib'" in done.stderr


def test_an_imported_ray_cannot_be_replaced(other_ray: Path) -> None:
    done = run("import ray\n" + INSTALL, path=other_ray, check=False)

    assert "ImportError: `ray` is imported already, from" in done.stderr
