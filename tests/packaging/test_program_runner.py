"""`python -m rayshim PROGRAM` gives a program what `python PROGRAM` gives it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FACTS = """
import sys
d = sys.modules["__main__"].__dict__
assert d is globals()
print(sys.argv, sys.path[:2], __name__, __package__, __spec__ and __spec__.name)
print(d.get("__file__"), d.get("__cached__"), type(__loader__).__name__)
print(sorted(name for name in d if name.startswith("__")))
"""
FAILURES = """
import json, sys
def fail():
    json.loads("{")
def quit(): sys.exit(3)
def say(): sys.exit("the reason")
def interrupt(): raise KeyboardInterrupt
def syntax(): import broken
def chain():
    try: fail()
    except ValueError as e: raise RuntimeError("above") from e
globals()[sys.argv[1]]()
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the programs, in all the shapes that python can run."""
    for name in ("facts.py", "folder/__main__.py", "pkg/__main__.py", "pkg/mod.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FACTS)
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link.py").symlink_to(tmp_path / "pkg" / "mod.py")
    (tmp_path / "failures.py").write_text(FAILURES)
    (tmp_path / "broken.py").write_text("def f(:\n")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", FACTS)
    return tmp_path


def outcome(
    folder: Path, arguments: list[str], stdin: str = ""
) -> tuple[str, str, int]:
    """Output, error output and exit code of an interpreter."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        env={key: v for key, v in os.environ.items() if key != "PYTHONPATH"},
    )
    return done.stdout, done.stderr.replace(" -m rayshim:", ":"), done.returncode


@pytest.mark.parametrize(
    "command",
    [
        "facts.py a -b --help",
        "pkg/mod.py",
        "./pkg/../facts.py",
        "link.py x",
        "folder 1",
        "archive.zip 2",
        "-m pkg 3",
        "-m pkg.mod -m x",
        "nosuch.py",
        "empty",
        "-m nosuch",
        "-m nosuch.x",
        "-m empty",
        "broken.py",
        "failures.py fail",
        "failures.py chain",
        "failures.py quit",
        "failures.py say",
        "failures.py interrupt",
        "failures.py syntax",
    ],
)
def test_outcome_is_that_of_python(programs: Path, command: str) -> None:
    expected = outcome(programs, command.split())

    assert outcome(programs, ["-m", "rayshim", *command.split()]) == expected


def test_code_and_standard_input_run(programs: Path) -> None:
    code = "import sys, ray; print(ray.__name__, sys.argv, repr(sys.path[0]), __name__)"

    as_argument = outcome(programs, ["-m", "rayshim", "-c", code, "1"])
    as_input = outcome(programs, ["-m", "rayshim", "-", "1"], stdin=code)

    assert as_argument == ("rayshim ['-c', '1'] '' __main__\n", "", 0)
    assert as_input == ("rayshim ['-', '1'] '' __main__\n", "", 0)


def test_definitions_of_the_program_pickle_by_value(programs: Path) -> None:
    (programs / "pickling.py").write_text(
        "import cloudpickle, subprocess, sys\n"
        "class Value:\n"
        "    def double(self, x): return twice(x)\n"
        "def twice(x): return 2 * x\n"
        "code = 'import sys, pickle; '"
        "'print(pickle.load(sys.stdin.buffer).double(21))'\n"
        "subprocess.run([sys.executable, '-c', code],"
        " input=cloudpickle.dumps(Value()), check=True)\n"
    )

    assert outcome(programs, ["-m", "rayshim", "pickling.py"]) == ("42\n", "", 0)


def test_exit_handlers_and_late_threads_see_the_program_as_main(
    programs: Path,
) -> None:
    (programs / "late.py").write_text(
        "import atexit, sys\n"
        "name = 'late'\n"
        "atexit.register(lambda: print(sys.modules['__main__'].name))\n"
    )

    assert outcome(programs, ["-m", "rayshim", "late.py"]) == ("late\n", "", 0)


def test_spawned_processes_import_the_program(programs: Path) -> None:
    (programs / "spawning.py").write_text(
        "import multiprocessing, ray\n"
        "def work(queue): queue.put(ray.__name__)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=work, args=(queue,))\n"
        "    process.start()\n"
        "    print(queue.get())\n"
        "    process.join()\n"
    )

    assert outcome(programs, ["-m", "rayshim", "spawning.py"]) == ("rayshim\n", "", 0)


def test_wrong_command_line_is_refused_with_the_usage(programs: Path) -> None:
    _, error, code = outcome(programs, ["-m", "rayshim", "--nonsense"])

    assert code == 2
    assert "unknown option --nonsense" in error
    assert "usage: python -m rayshim" in error


def test_the_run_command_does_the_same(programs: Path) -> None:
    through_cli = "from rayshim.cli.main import main; main()"

    done = outcome(programs, ["-c", through_cli, "run", "facts.py", "--help"])

    assert done == outcome(programs, ["facts.py", "--help"])
