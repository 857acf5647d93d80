"""The command line where the extra `k8s` is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

_PROGRAM = """
import sys

sys.modules["kubernetes"] = None
from rayshim.cli.main import main

main(prog_name="rayshim")
"""


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_help_lists_the_command() -> None:
    done = _run("--help")
    assert done.returncode == 0, done.stderr
    assert "needs the extra k8s" in done.stdout


@pytest.mark.parametrize("words", ["", "--help", "plan --offline -f platform.yaml"])
def test_the_command_says_what_to_install(words: str) -> None:
    done = _run("k8s", *words.split())
    assert done.returncode == 2
    assert "kubernetes is not installed" in done.stderr
    assert "pip install 'rayshim[k8s]'" in done.stderr
    assert "Traceback" not in done.stderr
