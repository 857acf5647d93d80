"""Tasks in tasks, blocked parents, and processes made by user code."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


@ray.remote
def fibonacci(n):
    if n < 2:
        return n
    return sum(ray.get([fibonacci.remote(n - 1), fibonacci.remote(n - 2)]))


@ray.remote
def descend(depth):
    return 0 if depth == 0 else 1 + ray.get(descend.remote(depth - 1))


def test_parent_blocked_in_get_lends_its_cpus():
    @ray.remote(num_cpus=4)
    def parent():
        return ray.get(echo.options(num_cpus=4).remote("child ran"))

    assert ray.get(parent.remote(), timeout=30) == "child ran"


def test_parent_blocked_in_wait_lends_its_cpus():
    @ray.remote(num_cpus=4)
    def parent():
        ready, _ = ray.wait([echo.options(num_cpus=4).remote(1)])
        return len(ready)

    assert ray.get(parent.remote(), timeout=30) == 1


def test_more_blocked_parents_than_cpus():
    @ray.remote
    def parent(i):
        return ray.get(echo.remote(i))

    refs = [parent.remote(i) for i in range(12)]
    assert ray.get(refs, timeout=50) == list(range(12))


def test_deep_nesting_beyond_the_cpus():
    assert ray.get(descend.remote(7), timeout=50) == 7


def test_recursive_fan_out():
    assert ray.get(fibonacci.remote(5), timeout=50) == 5


def test_child_outlives_its_parent():
    @ray.remote
    def parent():
        return [echo.remote("from child")]

    (child,) = ray.get(parent.remote())
    assert ray.get(child) == "from child"


def test_get_in_threads_of_a_task():
    @ray.remote
    def threaded():
        got = []
        threads = [
            threading.Thread(target=lambda i=i: got.append(ray.get(echo.remote(i))))
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(got)

    assert ray.get(threaded.remote(), timeout=50) == [0, 1, 2, 3]


def test_remote_calls_from_threads_of_the_driver():
    got = {}

    def work(i):
        got[i] = ray.get([echo.remote((i, j)) for j in range(10)])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {i: [(i, j) for j in range(10)] for i in range(4)}


def test_wait_in_a_task_on_refs_of_the_driver():
    @ray.remote
    def first(refs):
        ready, _ = ray.wait(refs)
        return ray.get(ready[0])

    slow = ray.remote(lambda: time.sleep(5)).remote()
    assert ray.get(first.remote([slow, echo.remote("fast")]), timeout=30) == "fast"
    ray.cancel(slow, force=True)


def test_generator_consumed_inside_a_task():
    @ray.remote
    def stream(n):
        for i in range(n):
            yield i

    @ray.remote
    def consume():
        return [ray.get(ref) for ref in stream.remote(3)]

    assert ray.get(consume.remote(), timeout=30) == [0, 1, 2]


def test_task_starts_a_subprocess():
    @ray.remote
    def runs():
        done = subprocess.run(
            [sys.executable, "-c", "print(6 * 7)"],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert ray.get(runs.remote(), timeout=30) == "42"


def test_task_sees_the_exit_code_of_its_child():
    @ray.remote
    def runs():
        return subprocess.run([sys.executable, "-c", "raise SystemExit(5)"]).returncode

    assert ray.get(runs.remote(), timeout=30) == 5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_task_forks():
    @ray.remote
    def forks():
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, b"child")
            os._exit(7)
        _, status = os.waitpid(pid, 0)
        return os.read(read, 100), os.waitstatus_to_exitcode(status)

    assert ray.get(forks.remote(), timeout=30) == (b"child", 7)


def square(x):
    return x * x


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_task_uses_multiprocessing(method):
    @ray.remote
    def pool(method):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as workers:
            return workers.map(abs, [-1, -2, -3])

    assert ray.get(pool.remote(method), timeout=50) == [1, 2, 3]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_driver_uses_multiprocessing(method):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as workers:
        assert workers.map(square, [1, 2]) == [1, 4]
    assert ray.get(echo.remote("still works")) == "still works"


def test_task_uses_a_process_pool_executor():
    @ray.remote
    def pool():
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(2) as workers:
            return list(workers.map(abs, [-1, -2]))

    assert ray.get(pool.remote(), timeout=50) == [1, 2]


def test_task_uses_signals():
    @ray.remote
    def alarm():
        import signal

        rang = []
        signal.signal(signal.SIGALRM, lambda *args: rang.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        deadline = time.monotonic() + 10
        while not rang and time.monotonic() < deadline:
            time.sleep(0.01)
        return rang

    assert ray.get(alarm.remote(), timeout=30) == [1]


def test_task_runs_on_the_main_thread():
    @ray.remote
    def is_main():
        return threading.current_thread() is threading.main_thread()

    assert ray.get(is_main.remote())


def test_task_is_not_daemonic_for_multiprocessing():
    @ray.remote
    def daemon():
        return multiprocessing.current_process().daemon

    assert ray.get(daemon.remote()) is False


def test_task_reads_and_writes_files_of_the_driver(tmp_path):
    @ray.remote
    def write(path):
        path.write_text("written")

    ray.get(write.remote(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "written"


def test_task_runs_in_the_drivers_working_directory():
    cwd = ray.remote(lambda: os.getcwd())
    assert ray.get(cwd.remote()) == os.getcwd()


def test_task_changing_its_directory_or_environment_spares_the_driver(tmp_path):
    @ray.remote(max_calls=1)
    def change():
        os.chdir(tmp_path)
        os.environ["COMPAT_CHANGED"] = "1"

    before = os.getcwd()
    ray.get(change.remote())
    assert os.getcwd() == before
    assert "COMPAT_CHANGED" not in os.environ


def test_worker_inherits_the_environment(run_driver):
    done = run_driver(
        """
        import os
        import ray

        ray.init(num_cpus=1, include_dashboard=False)
        print("got", ray.get(ray.remote(lambda: os.environ["COMPAT_X"]).remote()))
        """,
        env={"COMPAT_X": "inherited"},
    )
    assert "got inherited" in done.stdout


def test_uncaught_error_in_a_thread_of_a_task_is_harmless():
    @ray.remote
    def threaded():
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        return "ok"

    assert ray.get(threaded.remote()) == "ok"


def test_module_state_lives_as_long_as_the_process():
    @ray.remote
    def remember(value):
        import json

        old = getattr(json, "_compat_memory", None)
        json._compat_memory = value
        return old, os.getpid()

    seen = {}
    for i in range(6):
        old, pid = ray.get(remember.remote(i))
        assert old == seen.get(pid)
        seen[pid] = i
