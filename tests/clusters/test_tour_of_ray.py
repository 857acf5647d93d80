"""A program that knows nothing but Ray, on a cluster made by `rayshim start`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from started import a_host

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

TOUR = Path(__file__).with_name("programs") / "tour.py"


def test_a_program_for_ray_runs_unchanged_on_two_nodes() -> None:
    with a_host() as host:
        address = host.head()
        host.ok("start", "--address", address, "--num-cpus=2")
        done = subprocess.run(
            [sys.executable, "-m", "rayshim", str(TOUR)],
            env={**host.env, "RAY_ADDRESS": "auto"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.splitlines()[-1:] == ["OK"], done.stdout + done.stderr
