"""modin's engine for Ray runs on rayshim, unchanged."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        importlib.util.find_spec("modin") is None,
        reason="modin is not installed (`pip install modin`; it needs pandas 2)",
    ),
]

PROGRAM = """
    import numpy as np
    import pandas

    import modin.pandas as pd

    columns = {"key": np.arange(9000) % 7, "value": np.arange(9000.0), "name": "ab"}
    plain = pandas.DataFrame(columns)
    frame = pd.DataFrame(columns)

    def same(ours, theirs):
        ours = ours._to_pandas() if hasattr(ours, "_to_pandas") else ours
        assert ours.equals(theirs), (ours, theirs)

    same(frame.groupby("key").value.sum(), plain.groupby("key").value.sum())
    same(frame.value.apply(lambda v: 2 * v), plain.value.apply(lambda v: 2 * v))
    same(frame.sort_values("value", ascending=False), plain[::-1])
    means = plain.groupby("key", as_index=False).value.mean()
    same(frame.merge(pd.DataFrame(means), on="key"), plain.merge(means, on="key"))
    frame.to_parquet("frame.parquet")
    same(pd.read_parquet("frame.parquet"), plain)
    frame.to_csv("frame.csv", index=False)
    same(pd.read_csv("frame.csv"), plain)

    import ray

    partition = frame._query_compiler._modin_frame._partitions[0][0]
    print(type(partition).__name__, ray.is_initialized(), ray.__version__)
"""


def run(program: str, folder: Path) -> str:
    """Run a program as ``python -m rayshim`` does; what it printed."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    environment = {
        **os.environ,
        "MODIN_ENGINE": "ray",
        "MODIN_CPUS": "2",
        "MODIN_MEMORY": str(200_000_000),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "rayshim", str(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_frames_are_those_of_pandas(tmp_path: Path) -> None:
    output = run(PROGRAM, tmp_path)
    assert "PandasOnRayDataframePartition True" in output
    assert "rayshim" in output


def test_a_session_of_the_program_is_used(tmp_path: Path) -> None:
    program = """
        import ray

        ray.init(num_cpus=2, log_to_driver=False)
        import modin.pandas as pd

        frame = pd.DataFrame({"a": range(1000)})
        print(int((frame.a * 2).sum()), int(ray.cluster_resources()["CPU"]))
    """
    assert "999000 2" in run(program, tmp_path)
