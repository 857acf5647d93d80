"""The Dask client of a session: workers in actors, values in the shared store."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rayshim as ray

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    # Dask's own, at the end of clients and workers.
    pytest.mark.filterwarnings("ignore"),
]

COUNT = 200_000


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    ray.init(num_cpus=4, log_to_driver=False)
    with ray.get_dask_client(2) as client:
        yield client
    ray.shutdown()


def make(count: int) -> Any:
    return np.arange(count)


def double(values: Any) -> Any:
    return values * 2


def total(values: Any) -> int:
    return int(values.sum())


@ray.remote
def describe(values: Any) -> tuple[int, bool]:
    return int(values.sum()), bool(values.flags.writeable)


SUM = COUNT * (COUNT - 1) // 2


def test_workers_hold_cpus(client: Any) -> None:
    assert len(client.scheduler_info()["workers"]) == 2
    assert ray.available_resources()["CPU"] <= 2


def test_large_results_are_in_the_shared_store(client: Any) -> None:
    future = client.submit(make, COUNT)
    values = future.result(30)
    assert int(values.sum()) == SUM
    assert not values.flags.writeable
    assert client.submit(total, client.submit(double, future)).result(30) == 2 * SUM


def test_references_are_arguments_of_dask_tasks(client: Any) -> None:
    ref = ray.put(np.arange(COUNT))
    assert client.submit(total, ref).result(30) == SUM
    assert client.submit(lambda values: total(values[0]), [ref]).result(30) == SUM


def test_futures_are_arguments_of_tasks(client: Any) -> None:
    future = client.submit(make, COUNT)
    assert ray.get(describe.remote(future)) == (SUM, False)


def test_futures_in_containers_are_values(client: Any) -> None:
    futures = [client.submit(make, COUNT), client.submit(make, 10)]

    @ray.remote
    def sums(values: list[Any]) -> list[int]:
        return [int(value.sum()) for value in values]

    assert ray.get(sums.remote(futures)) == [SUM, 45]


def test_futures_as_references(client: Any) -> None:
    ref = client.reference(client.submit(make, COUNT))
    assert int(ray.get(ref).sum()) == SUM


def test_errors_of_futures_come_out(client: Any) -> None:
    future = client.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ray.get(describe.remote(future))
    with pytest.raises(ZeroDivisionError):
        client.reference(future)


def test_collections_on_the_workers(client: Any) -> None:
    import dask.array as da

    values = da.arange(COUNT, chunks=COUNT // 4)
    assert int(values.sum().compute()) == SUM
    kept = (values + 1).persist()
    assert int(kept.sum().compute()) == SUM + COUNT


def test_dask_tasks_may_call_tasks(client: Any) -> None:
    def outer() -> int:
        result: int = ray.get(describe.remote(np.ones(3)))[0]
        return result

    assert client.submit(outer).result(30) == 3


def test_tasks_run_beside_the_workers(client: Any) -> None:
    slow = [client.submit(time.sleep, 0.5, pure=False) for _ in range(2)]
    assert ray.get(describe.remote(np.ones(2)), timeout=30)[0] == 2
    for future in slow:
        future.result(30)


def test_workers_that_are_killed_are_replaced(client: Any) -> None:
    kept = client.submit(make, COUNT, key="kept")
    assert client.submit(total, kept).result() == SUM
    for pid in client.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)
    assert client.submit(total, kept, key="again").result(timeout=60) == SUM
    client.wait_for_workers(2, timeout=60)
    assert len(client.run(os.getpid)) == 2
    assert ray.get(describe.remote(client.reference(kept)), timeout=30)[0] == SUM


def test_closing_the_client_frees_the_cpus(client: Any) -> None:
    with ray.get_dask_client(1, set_as_default=False) as other:
        assert other.submit(total, np.ones(2)).result(30) == 2
        assert len(other.scheduler_info()["workers"]) == 3
    deadline = time.monotonic() + 20
    while len(client.scheduler_info()["workers"]) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_numbers_of_workers_are_checked(client: Any) -> None:
    with pytest.raises(ValueError, match="num_workers=0"):
        ray.get_dask_client(0)


def test_dask_is_set_to_tasks_without_a_warning_and_back() -> None:
    import dask

    from rayshim.util.dask import disable_dask_on_ray, enable_dask_on_ray

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with enable_dask_on_ray():
            assert dask.config.get("dataframe.shuffle.method") == "tasks"
            with disable_dask_on_ray():
                assert dask.config.get("scheduler") is None
    assert dask.config.get("dataframe.shuffle.method", None) != "tasks"
