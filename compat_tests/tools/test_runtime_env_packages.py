"""Jobs and tasks with installed packages: ``pip``, ``uv``, wheels; bad paths."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

import ray
from tools.runtime_env_parts import make_files, make_wheel, make_zip


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Wheels of two versions of a package, and of another one."""
    root = tmp_path_factory.mktemp("wheels")
    first = make_wheel(root, "rs_tiny", "1.0", "VERSION = 'one'")
    make_wheel(root, "rs_tiny", "2.0", "VERSION = 'two'")
    other = make_wheel(root, "rs_other", "1.0", "VALUE = 'other'")
    module = make_files(root / "rs_in_driver", {"__init__.py": "VALUE = 'driver'"})
    zipped = make_zip(root / "home.zip", {"data.txt": "flat", "rs_top.py": "VALUE = 1"})
    return SimpleNamespace(
        root=root, first=first, other=other, module=module, zipped=zipped
    )


def start(**runtime_env):
    if ray.is_initialized():
        ray.shutdown()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        **({"runtime_env": runtime_env} if runtime_env else {}),
    )


@pytest.fixture(scope="module")
def session(parts):
    """A session whose job has a module object, a wheel, and an archive to work in."""
    sys.path.insert(0, str(parts.root))
    try:
        import rs_in_driver

        start(
            py_modules=[rs_in_driver, str(parts.other)],
            working_dir=str(parts.zipped),
        )
        yield
    finally:
        sys.path.remove(str(parts.root))
        ray.shutdown()


@ray.remote
def evaluate(text):
    return eval(text, {"os": os, "sys": sys})


def ask(text, **runtime_env):
    call = evaluate.options(**({"runtime_env": runtime_env} if runtime_env else {}))
    return ray.get(call.remote(text), timeout=280)


def local(parts, requirement):
    options = ["--no-index", "--find-links", str(parts.root)]
    return {"packages": [requirement], "pip_install_options": options}


def test_module_objects_travel(session):
    assert ask("__import__('rs_in_driver').VALUE") == "driver"


def test_wheels_are_installed(session):
    assert ask("__import__('rs_other').VALUE") == "other"


def test_a_local_archive_is_the_folder(session):
    assert ask("open('data.txt').read()") == "flat"
    assert ask("__import__('rs_top').VALUE") == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pip_installs_for_a_task(session, parts):
    call = {"pip": local(parts, "rs_tiny==1.0")}
    assert ask("__import__('rs_tiny').VERSION", **call) == "one"
    assert ask("open('data.txt').read()", **call) == "flat"
    with pytest.raises(ModuleNotFoundError):
        ask("__import__('rs_tiny')")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_another_version_is_another_environment(session, parts):
    call = {"pip": local(parts, "rs_tiny==2.0")}
    assert ask("__import__('rs_tiny').VERSION", **call) == "two"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pip_that_finds_nothing_fails_the_task(session, parts):
    with pytest.raises(ray.exceptions.RuntimeEnvSetupError) as caught:
        ask("1", pip=local(parts, "rs_that_nobody_has"))
    assert "rs_that_nobody_has" in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_uv_installs_for_a_task(session, parts):
    spec = {
        "packages": ["rs_tiny==1.0"],
        "uv_pip_install_options": ["--no-index", "--find-links", str(parts.root)],
    }
    assert ask("__import__('rs_tiny').VERSION", uv=spec) == "one"


def test_a_folder_that_does_not_exist_fails_init():
    ray.shutdown()
    with pytest.raises(ValueError):
        start(working_dir="/no/such/folder")
    ray.shutdown()


def test_a_file_that_is_no_archive_fails_init(parts):
    ray.shutdown()
    with pytest.raises(ValueError):
        start(working_dir=str(parts.first.with_name("home.zip").parent / "x.txt"))
    ray.shutdown()
