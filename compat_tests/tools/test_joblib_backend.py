"""joblib's parallel loops run on the cluster."""

from __future__ import annotations

import os
import time

import pytest

import ray

joblib = pytest.importorskip("joblib", reason="the back end is joblib's")

pytestmark = [
    pytest.mark.usefixtures("ray_start"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def registered():
    from ray.util.joblib import register_ray

    register_ray()


def square(value):
    return value * value


def squares(count):
    return [joblib.delayed(square)(n) for n in range(count)]


def fail(value):
    raise KeyError(value)


def process_id(seconds=0.0):
    time.sleep(seconds)
    return os.getpid()


def test_results_keep_their_order():
    with joblib.parallel_backend("ray"):
        results = joblib.Parallel(n_jobs=2)(squares(50))
    assert results == [n * n for n in range(50)]


def test_parallel_config_names_the_backend():
    with joblib.parallel_config(backend="ray", n_jobs=2):
        assert joblib.Parallel()(squares(3)) == [
            0,
            1,
            4,
        ]


def test_calls_run_in_other_processes():
    with joblib.parallel_backend("ray", n_jobs=2):
        pids = joblib.Parallel()(joblib.delayed(process_id)(0.05) for _ in range(8))
    assert os.getpid() not in pids
    assert len(set(pids)) >= 2


def test_all_cpus_are_counted():
    with joblib.parallel_backend("ray", n_jobs=-1):
        assert joblib.effective_n_jobs() == 4
        assert joblib.effective_n_jobs(3) == 3


def test_errors_come_through():
    with joblib.parallel_backend("ray", n_jobs=2), pytest.raises(KeyError):
        joblib.Parallel()(joblib.delayed(fail)(n) for n in range(4))
    with joblib.parallel_backend("ray", n_jobs=2):
        assert joblib.Parallel()(squares(3)) == [
            0,
            1,
            4,
        ]


def test_large_arguments_are_shared():
    numpy = pytest.importorskip("numpy")
    array = numpy.ones(1_000_000)

    with joblib.parallel_backend("ray", n_jobs=2):
        sums = joblib.Parallel()(
            joblib.delayed(lambda data, n: float(data.sum()) + n)(array, n)
            for n in range(8)
        )
    assert sums == [1_000_000.0 + n for n in range(8)]


def test_options_of_the_workers():
    with joblib.parallel_backend("ray", n_jobs=2, ray_remote_args={"num_cpus": 1}):
        free = joblib.Parallel()(
            joblib.delayed(lambda _: ray.available_resources().get("CPU", 0))(n)
            for n in range(4)
        )
    assert all(cpus <= 3 for cpus in free)


def test_a_pool_of_jobs_may_be_used_again():
    with joblib.parallel_backend("ray", n_jobs=2), joblib.Parallel() as parallel:
        for start in (0, 5):
            numbers = range(start, start + 5)
            assert parallel(joblib.delayed(square)(n) for n in numbers) == [
                n * n for n in numbers
            ]


def test_loops_nest():
    def outer(value):
        return sum(joblib.Parallel(n_jobs=2)(squares(value)))

    with joblib.parallel_backend("ray", n_jobs=2):
        sums = joblib.Parallel()(joblib.delayed(outer)(n) for n in (2, 3))
    assert sums == [1, 5]
