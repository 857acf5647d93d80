"""Jobs, tasks and actors with files: ``working_dir``, ``py_modules``, and the hook."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import ray
from tools.runtime_env_parts import make_files, make_zip


def _hook():
    os.environ["HOOK_RAN"] = os.environ.get("LEVEL", "?") + os.getcwd()[-4:]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A session whose job has all of it, and where its parts came from."""
    root = tmp_path_factory.mktemp("env")
    home = make_files(
        root / "home",
        {
            "data.txt": "from the driver",
            "rs_local_module.py": "VALUE = 'local'",
            "deep/er/file.txt": "deep",
            "deep/.gitignore": "*.tmp",
            "deep/left.tmp": "no",
            "deep/er/left.tmp": "no",
            "left.log": "no",
            "kept.log": "yes",
            ".gitignore": "*.log\n!kept.log\n",
            "excluded/file.txt": "no",
            "some.secret": "no",
        },
    )
    (home / "run.sh").write_text("#!/bin/sh\necho ran")
    (home / "run.sh").chmod(0o755)
    make_files(
        root / "modules" / "rs_package",
        {"__init__.py": "VALUE = 'package'", "inner.py": "VALUE = 'inner'"},
    )
    make_zip(
        root / "other.zip",
        {"top/data.txt": "from the zip", "top/rs_zipped.py": "VALUE = 'zipped'"},
    )
    make_zip(root / "flat.zip", {"one.txt": "1", "two.txt": "2"})
    if ray.is_initialized():
        ray.shutdown()
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={
            "working_dir": str(home),
            "py_modules": [str(root / "modules" / "rs_package")],
            "excludes": ["excluded/", "*.secret"],
            "env_vars": {"LEVEL": "job", "ONLY_JOB": "1"},
            "worker_process_setup_hook": _hook,
        },
    )
    yield SimpleNamespace(root=root, home=home)
    ray.shutdown()


@ray.remote
def evaluate(text):
    """The value of an expression in a worker."""
    return eval(text, {"os": os, "sys": sys, "ray": ray, "subprocess": subprocess})


def ask(text, **runtime_env):
    options = {"runtime_env": runtime_env} if runtime_env else {}
    return ray.get(evaluate.options(**options).remote(text), timeout=60)


@ray.remote
class Asker:
    def __init__(self):
        self.born_in = os.getcwd()

    def ask(self, text):
        return eval(text, {"os": os, "sys": sys, "ray": ray, "self": self})


pytestmark = pytest.mark.usefixtures("job")


def test_files_are_read_by_relative_names():
    assert ask("open('data.txt').read()") == "from the driver"
    assert ask("open('deep/er/file.txt').read()") == "deep"


def test_work_is_done_in_a_copy(job):
    assert ask("os.getcwd()") != str(job.home)
    assert ask("os.path.isdir(os.getcwd())")


def test_modules_of_the_folder_can_be_imported():
    assert ask("__import__('rs_local_module').VALUE") == "local"


def test_the_folder_is_on_the_module_path():
    assert ask("os.getcwd() in sys.path")


def test_gitignore_leaves_files_out():
    assert "left.log" not in ask("os.listdir('.')")


def test_gitignore_may_keep_some():
    assert "kept.log" in ask("os.listdir('.')")


def test_gitignore_of_a_folder_holds_below_it():
    assert ask("os.path.exists('deep/left.tmp')") is False
    assert ask("os.path.exists('deep/er/left.tmp')") is False


def test_excludes_leave_folders_and_patterns_out():
    found = ask("os.listdir('.')")
    assert "excluded" not in found
    assert "some.secret" not in found


def test_files_stay_executable():
    assert ask("subprocess.check_output(['./run.sh'], text=True)") == "ran\n"


def test_packages_can_be_imported():
    assert ask("__import__('rs_package').VALUE") == "package"
    assert ask("__import__('rs_package.inner').inner.VALUE") == "inner"


def test_programs_that_tasks_start_find_the_modules():
    code = "import rs_local_module, rs_package; print(rs_local_module.VALUE)"
    text = f"subprocess.check_output([sys.executable, '-c', {code!r}], text=True)"
    assert ask(text) == "local\n"


def test_the_hook_ran_in_the_folder_with_the_variables():
    cwd = ask("os.getcwd()")
    assert ask("os.environ['HOOK_RAN']") == "job" + cwd[-4:]


def test_tasks_share_the_folder():
    assert len(set(ray.get([evaluate.remote("os.getcwd()") for _ in range(4)]))) == 1


def test_task_variables_are_laid_over_those_of_the_job():
    found = ask(
        "(os.environ['LEVEL'], os.environ['ONLY_JOB'], os.environ['MORE'])",
        env_vars={"LEVEL": "task", "MORE": "2"},
    )
    assert found == ("task", "1", "2")


def test_a_task_with_variables_keeps_the_folder():
    assert ask("open('data.txt').read()", env_vars={"MORE": "2"}) == "from the driver"


def test_an_empty_environment_changes_nothing():
    for value in ({}, None):
        call = evaluate.options(runtime_env=value)
        assert ray.get(call.remote("os.environ['LEVEL']")) == "job"


def test_an_archive_of_its_own_takes_the_place_of_the_folder(job):
    uri = f"file://{job.root}/other.zip"
    assert ask("open('data.txt').read()", working_dir=uri) == "from the zip"
    assert ask("__import__('rs_zipped').VALUE", working_dir=uri) == "zipped"
    assert ask("os.environ['LEVEL']", working_dir=uri) == "job"


def test_an_archive_without_a_folder_is_taken_as_it_is(job):
    uri = f"file://{job.root}/flat.zip"
    assert sorted(ask("os.listdir('.')", working_dir=uri)) == ["one.txt", "two.txt"]


def test_context_tells_the_environment():
    env = ask("dict(ray.get_runtime_context().runtime_env)")
    assert env["working_dir"].startswith("gcs://_ray_pkg_")
    assert env["working_dir"].endswith(".zip")
    assert len(env["py_modules"]) == 1
    assert env["env_vars"]["ONLY_JOB"] == "1"


def test_the_driver_knows_the_environment_of_its_job():
    env = ray.get_runtime_context().runtime_env
    assert env["working_dir"].startswith("gcs://_ray_pkg_")
    assert env["env_vars"]["LEVEL"] == "job"


def test_the_driver_stays_where_it_is(job):
    assert "rs_local_module" not in sys.modules
    assert os.getcwd() != str(job.home)


def test_nested_calls_inherit_from_their_caller():
    @ray.remote
    def outer():
        inner = evaluate.options(runtime_env={"env_vars": {"INNER": "3"}})
        text = (
            "(os.environ['LEVEL'], os.environ.get('INNER'), os.path.isfile('data.txt'))"
        )
        return ray.get([evaluate.remote(text), inner.remote(text)])

    call = outer.options(runtime_env={"env_vars": {"LEVEL": "outer"}})
    assert ray.get(call.remote(), timeout=60) == [
        ("outer", None, True),
        ("outer", "3", True),
    ]


def test_actors_are_made_in_the_folder():
    actor = Asker.remote()
    born, here, text = ray.get(
        [
            actor.ask.remote("self.born_in"),
            actor.ask.remote("os.getcwd()"),
            actor.ask.remote("open('data.txt').read()"),
        ]
    )
    assert born == here
    assert text == "from the driver"


def test_actors_have_environments_of_their_own(job):
    uri = f"file://{job.root}/other.zip"
    env = {"working_dir": uri, "env_vars": {"LEVEL": "actor"}}
    actor = Asker.options(runtime_env=env).remote()
    assert ray.get(actor.ask.remote("open('data.txt').read()")) == "from the zip"
    assert ray.get(actor.ask.remote("os.environ['LEVEL']")) == "actor"
    assert ray.get(actor.ask.remote("os.environ['ONLY_JOB']")) == "1"


def test_an_actor_that_restarts_is_in_its_environment_again(wait_until):
    actor = Asker.options(max_restarts=1, max_task_retries=-1).remote()
    pid = ray.get(actor.ask.remote("os.getpid()"))
    ray.kill(actor, no_restart=False)
    wait_until(lambda: ray.get(actor.ask.remote("os.getpid()")) != pid)
    assert ray.get(actor.ask.remote("open('data.txt').read()")) == "from the driver"


def test_a_missing_archive_fails_the_task(job):
    call = evaluate.options(runtime_env={"working_dir": f"file://{job.root}/no.zip"})
    with pytest.raises(ray.exceptions.RuntimeEnvSetupError) as caught:
        ray.get(call.remote("1"), timeout=60)
    assert "Failed to set up runtime environment" in str(caught.value)


def test_a_missing_archive_fails_the_actor(job):
    env = {"working_dir": f"file://{job.root}/no.zip"}
    actor = Asker.options(runtime_env=env).remote()
    with pytest.raises(ray.exceptions.RuntimeEnvSetupError):
        ray.get(actor.ask.remote("1"), timeout=60)


def test_other_work_goes_on_after_a_failure(job):
    call = evaluate.options(runtime_env={"working_dir": f"file://{job.root}/no.zip"})
    refs = [call.remote("1") for _ in range(3)]
    assert ask("1 + 1") == 2
    for ref in refs:
        with pytest.raises(ray.exceptions.RuntimeEnvSetupError):
            ray.get(ref, timeout=60)


@pytest.mark.parametrize(
    "env",
    [
        {"conda": "an-environment-that-nobody-has"},
        {"image_uri": "image/that:nobody-has"},
        {"container": {"image": "image/that:nobody-has"}},
    ],
    ids=["conda", "image_uri", "container"],
)
def test_what_is_not_installed_fails_the_task(job, env):
    # Images go with variables alone, so the job's own fields are not in the way here.
    call = evaluate.options(runtime_env=env)
    with pytest.raises(ray.exceptions.RuntimeEnvSetupError):
        ray.get(call.remote("1"), timeout=60)


def test_another_interpreter(job):
    env = {"py_executable": f"{sys.executable} -X utf8"}
    call = evaluate.options(runtime_env=env)
    text = "(sys.flags.utf8_mode, open('data.txt').read(), os.environ['LEVEL'])"
    assert ray.get(call.remote(text), timeout=60) == (1, "from the driver", "job")


def test_a_path_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="not a valid"):
        evaluate.options(runtime_env={"working_dir": "/no/such/folder"})
