"""`rayshim compat` and the commands that are refused."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rayshim.cli import compat_notes, refused
from rayshim.cli.compat_scan import _resolve, scan
from rayshim.cli.main import main

PROGRAM = """
import ray
import ray as r
import ray.util
from ray import wait as w
from ray.exceptions import RayTaskError as Error
from ray import tune
ray.init(local_mode=True)
r.get(1)
w([], num_returns=1)
ray.nothing.at_all()
ray.get_actor("a", wrong=1)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_names_are_found_through_every_kind_of_import(program: Path) -> None:
    states = {use.name: use.state for use in scan([program])}
    assert states == {
        "ray.nothing.at_all": "missing",
        "ray.init": "refused",
        "ray.tune": "refused",
        "ray.get_actor": "refused",
        "ray.wait": "different",
        "ray.exceptions.RayTaskError": "supported",
        "ray.get": "supported",
        "ray.util": "supported",
    }


def test_a_refused_parameter_is_named(program: Path) -> None:
    notes = {use.name: use.note for use in scan([program])}
    assert notes["ray.get_actor"] == "without the parameter wrong"
    assert notes["ray.init"].startswith("local_mode:")


def test_a_local_name_that_is_like_one_of_rays_is_none(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text("from .ray import get\nray = 1\nray.get\nget()\n")
    assert scan([path]) == []


def test_the_exit_code_and_the_rows_say_what_is_missing(program: Path) -> None:
    done = CliRunner().invoke(main, ["compat", str(program), "--format", "json"])
    assert done.exit_code == 1
    rows = json.loads(done.output)
    assert rows[0]["name"] == "ray.nothing.at_all"
    assert rows[0]["where"] == "program.py:11"


def test_what_is_no_python_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text("def (")
    done = CliRunner().invoke(main, ["compat", str(path)])
    assert done.exit_code == 1
    assert "cannot be read as Python" in done.output


@pytest.mark.parametrize("name", compat_notes.DIFFERENT)
def test_what_is_different_exists(name: str) -> None:
    assert _resolve(name.split("."))[0]


@pytest.mark.parametrize("name", [*refused._TOP, "serve run", "tune ls"])
def test_a_refused_command_takes_rays_flags_and_says_what_to_do(name: str) -> None:
    done = CliRunner().invoke(main, name.split())
    assert done.exit_code == refused.REFUSED
    assert done.output.startswith(f"rayshim {name}: ")
    help_text = CliRunner().invoke(main, [*name.split(), "--help"])
    assert help_text.exit_code == 0
    assert "Refused: " in help_text.output


def test_every_command_of_the_table_can_be_loaded() -> None:
    module = importlib.import_module("rayshim.cli.main")
    for name in module._COMMANDS:
        done = CliRunner().invoke(main, [name, "--help"])
        if name != "run":
            assert done.exit_code == 0, (name, done.output)


def test_a_wrong_command_has_the_nearest_one_named() -> None:
    done = CliRunner().invoke(main, ["statsu"])
    assert done.exit_code == 2
    assert "Did you mean" in done.output and "'status'" in done.output
