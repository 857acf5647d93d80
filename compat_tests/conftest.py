"""Runs one suite of plain Ray programs on real Ray and on rayshim.

``pytest compat_tests --backend=rayshim`` (the default) makes ``import ray`` mean
rayshim before any test module is imported; ``--backend=ray`` leaves the name to
the installed Ray. A test therefore only says ``import ray``.

Fixtures:
    backend: ``"ray"`` or ``"rayshim"``.
    ray_start: a cluster with 4 CPUs, shared by all tests that ask for it.
    ray_fresh: no cluster at the start; call it with ``ray.init`` arguments.
    run_driver: runs a script as a driver of its own and returns its output.
    start_driver: the same, but returns the running process.
    wait_until: waits for a condition with a deadline.

A deliberate difference is marked ``@pytest.mark.differs("id")`` and explained
under that id in ``ledger.toml``; such a test must fail on the back end that the
ledger names.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BACKENDS = ("ray", "rayshim")
LEDGER_PATH = Path(__file__).with_name("ledger.toml")
TEST_TIMEOUT_S = 60

#: Options of every cluster that the fixtures start, unless a test overrides them.
QUIET_INIT = {
    "include_dashboard": False,
    "logging_level": "ERROR",
    "log_to_driver": False,
}

#: Variables that would change what either back end does.
FOREIGN_VARIABLES = (
    "RAY_ADDRESS",
    "RAY_NAMESPACE",
    "RAY_JOB_ID",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    "RAY_IGNORE_UNHANDLED_ERRORS",
    "RAY_DEDUP_LOGS",
    "CUDA_VISIBLE_DEVICES",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--backend``."""
    parser.addoption(
        "--backend",
        choices=BACKENDS,
        default="rayshim",
        help="what `import ray` gives in the tests (default: rayshim)",
    )


def backend_of(config: pytest.Config) -> str:
    """Return the chosen back end; the default when the option is not loaded."""
    return str(config.getoption("--backend", default="rayshim"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment and put ``ray`` in place before collection."""
    config.addinivalue_line(
        "markers", "differs(id): a deliberate difference, listed in ledger.toml"
    )
    for variable in FOREIGN_VARIABLES:
        os.environ.pop(variable, None)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAYSHIM_HISTORY_SESSIONS", "0")
    # Workers look for the test modules too: a cluster hands on the folder of the
    # script and the current one, not the whole sys.path of the driver.
    python_path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
    if backend_of(config) == "rayshim":
        import rayshim

        rayshim.install_as_ray()
    else:
        # Real Ray warns about its own internals, and its environment may hold
        # plugins that warn about their settings; neither is what is tested.
        config.addinivalue_line("filterwarnings", "default")
        warnings.filterwarnings("ignore", message=".*asyncio_default_fixture")


def load_ledger() -> dict[str, dict[str, str]]:
    """Return the known differences, id -> entry."""
    with LEDGER_PATH.open("rb") as file:
        entries = tomllib.load(file).get("difference", [])
    return {entry["id"]: entry for entry in entries}


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Apply the ledger, the timeout, and run tests of the shared cluster first."""
    ledger = load_ledger()
    backend = backend_of(config)
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    for item in mine:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
        marker = item.get_closest_marker("differs")
        if marker is None:
            continue
        entry = ledger.get(marker.args[0])
        if entry is None:
            raise pytest.UsageError(
                f"{item.nodeid}: difference {marker.args[0]!r} is not in ledger.toml"
            )
        if entry["fails_on"] == backend:
            item.add_marker(pytest.mark.xfail(reason=entry["reason"], strict=True))
    # Each switch between the shared and a fresh cluster costs an init.
    fresh = [item for item in mine if "ray_fresh" in getattr(item, "fixturenames", ())]
    chosen = {id(item) for item in fresh}
    items[:] = [item for item in items if id(item) not in chosen] + fresh


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """Name of the back end under test."""
    return backend_of(request.config)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_at_the_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the run if rayshim leaves processes, segments or folders behind."""
    if backend_of(request.config) != "rayshim":
        yield
        return
    from rayshim.testing import leaks

    leaks.adopt_orphans()
    before = leaks.Snapshot.take()
    yield
    report_leaks(before)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same for each test that runs outside of the shared cluster."""
    if backend_of(request.config) != "rayshim":
        yield
        return
    import rayshim
    from rayshim.testing import leaks

    if rayshim.is_initialized():
        yield
        return
    before = leaks.Snapshot.take()
    yield
    if not rayshim.is_initialized():
        report_leaks(before)


def report_leaks(before: Any) -> None:
    """Fail with what is left, after ending the processes among it."""
    from rayshim.testing import leaks

    left = leaks.wait_until_clean(before)
    if left:
        leaks.end_processes(before)
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


class SharedCluster:
    """The cluster that tests share; started on demand, stopped for fresh ones."""

    def __init__(self) -> None:
        self.context: Any = None

    def start(self) -> Any:
        """Return the context of a running 4-CPU cluster."""
        import ray

        if self.context is None or not ray.is_initialized():
            ray.shutdown()
            self.context = ray.init(num_cpus=4, **QUIET_INIT)
        return self.context

    def stop(self) -> None:
        """End the cluster, or whatever session a test left behind."""
        import ray

        self.context = None
        ray.shutdown()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[SharedCluster]:
    """One cluster for the whole run."""
    cluster = SharedCluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def ray_start(shared_cluster: SharedCluster) -> Any:
    """A running cluster with 4 CPUs; returns what ``ray.init`` returned."""
    return shared_cluster.start()


@pytest.fixture
def ray_fresh(shared_cluster: SharedCluster) -> Iterator[Callable[..., Any]]:
    """No cluster yet; calling it with ``ray.init`` arguments starts one."""
    import ray

    shared_cluster.stop()

    def start(**options: Any) -> Any:
        return ray.init(**{**QUIET_INIT, **options})

    yield start
    shared_cluster.stop()


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Return a function that polls a condition until it holds."""

    def wait(condition: Callable[[], object], *, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"condition did not hold within {timeout_s} s")
            time.sleep(0.01)

    return wait


@pytest.fixture
def start_driver(
    backend: str, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a script as a driver in its own process."""
    started: list[subprocess.Popen[str]] = []

    def start(
        script: str, *args: str, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        path = tmp_path / f"driver_{len(started)}.py"
        path.write_text(textwrap.dedent(script))
        interpreter = [sys.executable]
        if backend == "rayshim":
            interpreter += ["-m", "rayshim"]
        process = subprocess.Popen(
            [*interpreter, str(path), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def run_driver(
    start_driver: Callable[..., subprocess.Popen[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a script as a driver until it ends.

    The script says ``import ray`` and calls ``ray.init`` itself. Options:
    ``timeout_s`` (default 50), ``env`` (added to the environment), ``check``
    (default True: fail the test when the exit code is not 0).
    """

    def run(
        script: str,
        *args: str,
        timeout_s: float = 50.0,
        env: dict[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        process = start_driver(script, *args, env=env)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"driver still ran after {timeout_s} s\n{out}\n{err}")
        if check and process.returncode != 0:
            pytest.fail(f"driver exit code {process.returncode}\n{out}\n{err}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run
