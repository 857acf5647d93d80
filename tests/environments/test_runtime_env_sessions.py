"""Real sessions whose environments fail, hang, are killed, or need a fresh process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

import rayshim
import rayshim as ray
from rayshim import exceptions

pytestmark = pytest.mark.slow

CONDA = """#!/bin/sh
echo "conda was called with $*"
[ "$2" = list ] && echo '{"envs": ["{root}/base", "{root}/named"]}' && exit 0
touch {root}/started
while [ -e {root}/hang ]; do sleep 0.02; done
[ -e {root}/long ] && head -c 3000000 /dev/zero | tr '\\0' x && exit 3
[ -e {root}/broken ] && echo "solving failed" && exit 3
mkdir -p $4/bin
printf '#!/bin/sh\\nexec {python} "$@"\\n' > $4/bin/python
chmod +x $4/bin/python
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module", autouse=True)
def session(root: Path) -> Iterator[None]:
    ray.init(
        num_cpus=3,
        log_to_driver=False,
        logging_level="WARNING",
        _system_config={"dask": "off", "runtime_env_cache_dir": str(root / "cache")},
    )
    yield
    ray.shutdown()


@pytest.fixture
def conda(root: Path) -> Iterator[dict[str, str]]:
    """Variables by which builders find a conda of this test's own."""
    text = CONDA.replace("{root}", str(root)).replace("{python}", sys.executable)
    script = root / "conda"
    script.write_text(text)
    script.chmod(0o755)
    yield {"CONDA_EXE": str(script)}
    for name in ("hang", "broken", "long", "started"):
        (root / name).unlink(missing_ok=True)


@ray.remote
def evaluate(text: str) -> Any:
    return eval(text, {"os": os, "sys": sys})


@ray.remote
class Asker:
    def ask(self, text: str) -> Any:
        return eval(text, {"os": os, "sys": sys})


def ask(text: str, **env: Any) -> Any:
    return ray.get(evaluate.options(runtime_env=env).remote(text), timeout=50)


def ask_again(env: dict[str, Any]) -> Any:
    """As soon as a failure, which answers for a moment more, is forgotten."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return ask("1", **env)
        except exceptions.RuntimeEnvSetupError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def failure(call: Callable[[], Any]) -> str:
    with pytest.raises(exceptions.RuntimeEnvSetupError) as caught:
        call()
    return str(caught.value)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def builders() -> list[psutil.Process]:
    """The processes that build environments for this session's node."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "environments.build" in " ".join(one.cmdline()):
                found.append(one)
    return found


def test_conda_environments_are_made_once(conda: dict[str, str], root: Path) -> None:
    env = {"conda": {"dependencies": ["numpy"]}, "env_vars": conda}
    call = evaluate.options(runtime_env=env)
    calls = [call.remote("os.environ['CONDA_PREFIX']") for _ in range(3)]
    found = set(ray.get(calls, timeout=50))
    assert len(found) == 1
    assert str(root / "cache" / "conda-") in found.pop()
    assert len(list((root / "cache").glob("conda-*.ready"))) == 1


def test_conda_that_fails_has_the_last_word(conda: dict[str, str], root: Path) -> None:
    (root / "broken").touch()
    env = {"conda": {"dependencies": ["broken"]}, "env_vars": conda}
    text = failure(lambda: ask("1", **env))
    assert "failed with exit code 3" in text
    assert text.endswith("solving failed")
    (root / "broken").unlink()
    assert ask_again(env) == 1


def test_lines_go_to_files_that_are_asked_for(conda: dict[str, str]) -> None:
    from rayshim._core import session

    assert session.session is not None
    log = session.session.folder / "logs" / "setup.log"
    config = {"log_files": [log.name]}
    env = {"conda": {"dependencies": ["logged"]}, "env_vars": conda, "config": config}
    assert ask("1", **env) == 1
    assert "conda was called with env create" in log.read_text()


def test_conda_environments_that_are_not_there_are_told(conda: dict[str, str]) -> None:
    text = failure(lambda: ask("1", conda="missing", env_vars=conda))
    assert "conda cannot list its environments" in text or "known: base, named" in text


def test_lines_without_an_end_are_cut(root: Path, conda: dict[str, str]) -> None:
    (root / "long").touch()
    env = {"conda": {"dependencies": ["long"]}, "env_vars": conda}
    with pytest.raises(exceptions.RuntimeEnvSetupError, match="xxxx") as caught:
        ray.get(evaluate.options(runtime_env=env).remote("1"), timeout=30)
    assert len(str(caught.value)) < 200_000


def test_a_killed_build_is_told_and_done_again(
    conda: dict[str, str], root: Path
) -> None:
    (root / "hang").touch()
    env = {"conda": {"dependencies": ["killed"]}, "env_vars": conda}
    ref = evaluate.options(runtime_env=env).remote("1")
    wait_for(root / "started")
    (builder,) = builders()
    builder.kill()
    text = failure(lambda: ray.get(ref, timeout=50))
    assert "ended without an answer (exit code -9)" in text
    (root / "hang").unlink()
    assert ask_again(env) == 1


def test_other_work_goes_on_while_one_is_built(
    conda: dict[str, str], root: Path
) -> None:
    (root / "hang").touch()
    env = {"conda": {"dependencies": ["slow"]}, "env_vars": conda}
    ref = evaluate.options(runtime_env=env).remote("2")
    wait_for(root / "started")
    assert ray.get([evaluate.remote("1") for _ in range(20)], timeout=20) == [1] * 20
    assert "its runtime_env is being built" in str(rayshim.explain(ref))
    (root / "hang").unlink()
    assert ray.get(ref, timeout=50) == 2


def test_a_build_that_takes_too_long_is_ended(
    conda: dict[str, str], root: Path
) -> None:
    (root / "hang").touch()
    env = {
        "conda": {"dependencies": ["late"]},
        "env_vars": conda,
        "config": {"setup_timeout_seconds": 2},
    }
    text = failure(lambda: ask("1", **env))
    assert "not ready within 2 s" in text
    assert "conda was called with env create" in text
    assert builders() == []


def test_cancelled_calls_do_not_wait_for_it(conda: dict[str, str], root: Path) -> None:
    (root / "hang").touch()
    env = {"conda": {"dependencies": ["cancelled"]}, "env_vars": conda}
    ref = evaluate.options(runtime_env=env).remote("1")
    wait_for(root / "started")
    ray.cancel(ref)
    with pytest.raises(exceptions.TaskCancelledError):
        ray.get(ref, timeout=20)
    (root / "hang").unlink()
    assert ask("1", **env) == 1


def test_cancelled_calls_give_their_resources_back_while_it_is_built(
    conda: dict[str, str], root: Path
) -> None:
    (root / "hang").touch()
    env = {"conda": {"dependencies": ["given-back"]}, "env_vars": conda}
    all_of_it = evaluate.options(num_cpus=3)
    ref = evaluate.options(runtime_env=env, num_cpus=3).remote("1")
    wait_for(root / "started")
    ray.cancel(ref)
    with pytest.raises(exceptions.TaskCancelledError):
        ray.get(ref, timeout=20)
    assert ray.get(all_of_it.remote("2"), timeout=20) == 2
    (root / "hang").unlink()
    assert ask("1", **env) == 1


def test_a_hook_that_raises_fails_tasks_and_actors() -> None:
    def hook() -> None:
        raise ValueError("the hook says no")

    env = {"worker_process_setup_hook": hook}
    text = failure(lambda: ask("1", **env))
    assert "worker_process_setup_hook failed" in text
    assert "ValueError: the hook says no" in text
    actor = Asker.options(runtime_env=env).remote()
    text = failure(lambda: ray.get(actor.ask.remote("1"), timeout=30))
    assert "the hook says no" in text


def test_a_hook_that_kills_its_process_is_told() -> None:
    def hook() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    text = failure(lambda: ask("1", worker_process_setup_hook=hook))
    assert "was killed by SIGKILL before it had taken the environment up" in text


def test_a_hook_that_hangs_is_ended() -> None:
    def hook() -> None:
        signal.pause()

    config = {"setup_timeout_seconds": 2}
    text = failure(lambda: ask("1", worker_process_setup_hook=hook, config=config))
    assert "not taken it up within 2 s" in text


def test_a_hook_by_name() -> None:
    variables = {"PYTHONPATH": ""}
    env = {"worker_process_setup_hook": "os.getpid", "env_vars": variables}
    assert ask("1", **env) == 1
    text = failure(lambda: ask("1", worker_process_setup_hook="os.no_such_function"))
    assert "AttributeError" in text


def test_an_interpreter_of_another_version_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 3.9\n")
    python.chmod(0o755)
    text = failure(lambda: ask("1", py_executable=str(python)))
    assert "runs Python 3.9" in text


def test_an_interpreter_that_dies_later_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python.write_text(f'#!/bin/sh\ncase "$2" in *go_on*) exit 7;; esac\necho {version}')
    python.chmod(0o755)
    text = failure(lambda: ask("1", py_executable=str(python)))
    assert "exited with exit code 7 before it had taken the environment up" in text


def test_an_interpreter_serves_many_calls_and_actors() -> None:
    env = {"py_executable": f"{sys.executable} -X dev"}
    call = evaluate.options(runtime_env=env)
    text = "(sys.flags.dev_mode, os.getpid())"
    found = ray.get([call.remote(text) for _ in range(20)], timeout=50)
    assert {mode for mode, _ in found} == {True}
    assert len({pid for _, pid in found}) <= 3
    actor = Asker.options(runtime_env=env).remote()
    assert ray.get(actor.ask.remote("sys.flags.dev_mode"), timeout=50) is True


def test_packages_that_are_loaded_in_another_version_get_a_fresh_process(
    root: Path,
) -> None:
    wheel = root / "cloudpickle-99.0-py3-none-any.whl"
    info = "cloudpickle-99.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in Path(cloudpickle.__file__).parent.glob("*.py"):
            own = path.read_text()
            text = re.sub(r'__version__ = ".*"', '__version__ = "99.0"', own)
            archive.writestr(f"cloudpickle/{path.name}", text)
        about = "Metadata-Version: 2.1\nName: cloudpickle\nVersion: 99.0\n"
        archive.writestr(f"{info}/METADATA", about)
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", kind)
        archive.writestr(f"{info}/RECORD", "")
    spec = {"packages": [str(wheel)], "pip_install_options": ["--no-index"]}
    text = "__import__('cloudpickle').__version__"
    assert ask(text, pip=spec) == "99.0"
    assert ask(text) == cloudpickle.__version__


def test_archives_that_lead_out_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("../../../../../../../../../../../tmp/rayshim-evil", "x")
    text = failure(lambda: ask("1", working_dir=f"file://{tmp_path}/bad.zip"))
    assert "leads out of the archive's folder" in text
    assert not Path("/tmp/rayshim-evil").exists()


def test_tasks_may_have_folders_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "rs_own.py").write_text("VALUE = 5")
    assert ask("__import__('rs_own').VALUE", working_dir=str(tmp_path)) == 5
    assert ask("__import__('rs_own').VALUE", py_modules=[tmp_path / "rs_own.py"]) == 5


def test_a_changed_folder_is_another_environment(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "number.txt").write_text(f"{number}")
        found = ask("open('number.txt').read()", working_dir=str(tmp_path))
        assert found == f"{number}"


@pytest.mark.parametrize("field", ["nsight", "rocprof_sys", "java_jars"])
def test_fields_that_are_not_supported_are_named(field: str) -> None:
    with pytest.raises(NotImplementedError, match=field):
        ask("1", **{field: ["x"]})


def test_fields_that_cannot_be_written_are_named() -> None:
    with pytest.raises(TypeError, match="JSON"):
        ask("1", something=object())


def test_half_an_environment_is_never_used(conda: dict[str, str], root: Path) -> None:
    env = {"conda": {"dependencies": ["half"]}, "env_vars": conda}
    assert ask("1", **env) == 1
    known = max((root / "cache").glob("conda-*.ready"), key=os.path.getmtime)
    folder = known.with_suffix("")
    assert (folder / "bin" / "python").exists()
    assert shutil.which("python", path=str(folder / "bin"))


def test_what_is_not_wanted_any_more_gives_its_resources_back(
    conda: dict[str, str], root: Path
) -> None:
    (root / "hang").touch()
    env = {"conda": {"dependencies": ["unwanted"]}, "env_vars": conda}
    actor = Asker.options(num_cpus=2, runtime_env=env).remote()
    ref = actor.ask.remote("1")
    wait_for(root / "started")
    ray.kill(actor)
    with pytest.raises(exceptions.ActorDiedError):
        ray.get(ref, timeout=20)
    (root / "hang").unlink()
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU") != 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert ask("1", **env) == 1
