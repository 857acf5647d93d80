"""Sessions come up in odd surroundings: no streams, no folder, long paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rayshim as ray

PROGRAM = """
import os
{before}
import rayshim as ray
ray.init(num_cpus=1, log_to_driver=False, _system_config={{"dask": "off"}})
f = ray.remote(lambda: 42)
assert ray.get(f.remote(), timeout=20) == 42
ray.shutdown()
open({mark!r}, "w").close()
"""


def run(mark: Path, before: str = "", **variables: str) -> None:
    """Run a program that leaves a mark when all went well."""
    outcome = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, mark=str(mark))],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert mark.exists(), outcome.stderr


@pytest.mark.parametrize("closed", [(0,), (1, 2), (0, 1, 2)])
def test_closed_standard_streams(tmp_path: Path, closed: tuple[int, ...]) -> None:
    before = "".join(f"os.close({number});" for number in closed)
    run(tmp_path / "mark", before)


def test_a_current_folder_that_was_removed(tmp_path: Path) -> None:
    folder = str(tmp_path / "x")
    before = f"os.mkdir({folder!r}); os.chdir({folder!r}); os.rmdir({folder!r})"
    run(tmp_path / "mark", before)


def test_a_long_default_folder_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    run(tmp_path / "mark", TMPDIR=str(folder))


def test_a_long_folder_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"_temp_dir .* is too long"):
        ray.init(num_cpus=1, _temp_dir=str(tmp_path / ("d" * 100)))
    assert not ray.is_initialized()
