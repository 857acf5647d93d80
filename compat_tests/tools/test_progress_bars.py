"""Progress bars of tasks are drawn by the driver."""

from __future__ import annotations

import pytest

tqdm = pytest.importorskip("tqdm", reason="Ray draws its bars with tqdm")

PROGRAM = """
    import ray
    from ray.experimental import tqdm_ray

    ray.init(num_cpus=2, include_dashboard=False)

    @ray.remote
    def work(number):
        bar = tqdm_ray.tqdm(total=30, desc=f"part-{number}", flush_interval_s=0.05)
        for _ in range(30):
            bar.update(1)
        bar.close()
        return bar.n if hasattr(bar, "n") else 30

    print(ray.get([work.remote(number) for number in range(2)]))
    import time
    time.sleep(2)
"""


def test_bars_of_tasks_reach_the_driver(run_driver):
    done = run_driver(PROGRAM)
    shown = done.stdout + done.stderr
    assert "[30, 30]" in done.stdout
    for number in range(2):
        assert f"part-{number}" in shown
    assert shown.count("30/30") + shown.count("30.0/30.0") >= 2


def test_bars_of_the_driver(run_driver):
    done = run_driver(
        """
        from ray.experimental import tqdm_ray

        print(list(tqdm_ray.tqdm(range(3), desc="items")))
        bar = tqdm_ray.tqdm(total=5)
        bar.update(2)
        bar.update()
        bar.set_description("named")
        print(bar.n, bar.total)
        bar.refresh()
        bar.close()
        bar.close()
        tqdm_ray.safe_print("one", "two", sep="-")
        tqdm_ray.instance().hide_bars()
        tqdm_ray.instance().unhide_bars()
        print(tqdm_ray.tqdm.DEFAULT_FLUSH_INTERVAL_SECONDS)
        """
    )
    assert "[0, 1, 2]" in done.stdout
    assert "3 5" in done.stdout
    assert "one-two" in done.stdout
    assert "1.0" in done.stdout
    assert "items" in done.stderr
    assert "named" in done.stderr


def test_a_bar_without_an_iterable_cannot_be_iterated(run_driver):
    done = run_driver(
        """
        from ray.experimental import tqdm_ray

        try:
            list(tqdm_ray.tqdm(desc="nothing"))
        except ValueError as error:
            print("refused", error)
        """
    )
    assert "refused" in done.stdout
