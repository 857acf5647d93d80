"""scikit-learn's ``n_jobs`` on a cluster, by joblib."""

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
        importlib.util.find_spec("sklearn") is None,
        reason="scikit-learn is not installed (`pip install scikit-learn`)",
    ),
]

PROGRAM = """
    import joblib
    import numpy as np
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, cross_val_score

    import ray
    from ray.util.joblib import register_ray

    register_ray()
    X, y = make_classification(n_samples=400, random_state=0)

    def fit():
        forest = RandomForestClassifier(n_estimators=20, n_jobs=2, random_state=0)
        search = GridSearchCV(
            LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, cv=3, n_jobs=2
        )
        scores = cross_val_score(LogisticRegression(), X, y, cv=4, n_jobs=2)
        return forest.fit(X, y).predict(X), search.fit(X, y).best_params_, scores

    alone = fit()
    assert not ray.is_initialized()
    ray.init(num_cpus=2)
    with joblib.parallel_config("ray"):
        together = fit()
    assert np.array_equal(alone[0], together[0])
    assert alone[1] == together[1]
    assert np.allclose(alone[2], together[2])

    @ray.remote
    def nested():
        register_ray()
        with joblib.parallel_config("ray"):
            return fit()[1]

    assert ray.get(nested.remote()) == alone[1]
    print("the same")
"""


def test_fits_are_the_same_as_alone(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "rayshim", str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same" in done.stdout
