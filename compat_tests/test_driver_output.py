"""What a user sees: printed lines, tracebacks, Ctrl-C."""

from __future__ import annotations

import re
import signal
import time

import pytest

SETUP = """
import os, sys, time
import ray

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
"""


def plain(text):
    """Return the text without colour codes."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture(scope="module")
def lines():
    """Wait in a driver long enough for lines of workers to arrive."""
    return "\ntime.sleep(1.5)\n"


def test_print_of_a_task_reaches_the_driver(run_driver, lines):
    done = run_driver(
        SETUP
        + """
@ray.remote
def talk():
    print("hello from the task")
    print("to stderr", file=sys.stderr)
    return os.getpid()

print("pid", ray.get(talk.remote()))
"""
        + lines
    )
    text = plain(done.stdout + done.stderr)
    pid = re.search(r"pid (\d+)", text).group(1)
    assert f"(talk pid={pid}) hello from the task" in text
    assert f"(talk pid={pid}) to stderr" in text


def test_print_of_an_actor_has_its_class_name(run_driver, lines):
    done = run_driver(
        SETUP
        + """
@ray.remote
class Talker:
    def __init__(self):
        print("from the constructor")

    def talk(self):
        print("from the method")

a = Talker.remote()
ray.get(a.talk.remote())
"""
        + lines
    )
    text = plain(done.stdout + done.stderr)
    assert re.search(r"\(Talker pid=\d+\) from the constructor", text)
    assert re.search(r"\(Talker pid=\d+\) from the method", text)


def test_name_option_is_the_prefix(run_driver, lines):
    done = run_driver(
        SETUP
        + """
@ray.remote
def talk():
    print("hello")

ray.get(talk.options(name="renamed").remote())
"""
        + lines
    )
    text = plain(done.stdout + done.stderr)
    assert re.search(r"\(renamed pid=\d+\) hello", text)


def test_lines_are_not_shown_with_log_to_driver_false(run_driver, lines):
    done = run_driver(
        """
import time
import ray

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote
def talk():
    print("hidden line")

ray.get(talk.remote())
"""
        + lines
    )
    assert "hidden line" not in done.stdout + done.stderr


def test_repeated_lines_of_several_workers_are_folded(run_driver):
    done = run_driver(
        SETUP
        + """
@ray.remote
class Talker:
    def talk(self):
        print("the same line")

talkers = [Talker.remote() for _ in range(4)]
ray.get([t.talk.remote() for t in talkers])
time.sleep(7)
"""
    )
    text = plain(done.stdout + done.stderr)
    assert text.count("the same line") <= 3
    assert re.search(r"the same line \[repeated 3x across cluster\]", text)


def test_lines_before_a_crash_are_shown(run_driver, lines):
    done = run_driver(
        SETUP
        + """
@ray.remote(max_retries=0)
def crash():
    print("last words", flush=True)
    os._exit(1)

try:
    ray.get(crash.remote())
except ray.exceptions.WorkerCrashedError:
    print("crashed")
"""
        + lines
    )
    text = plain(done.stdout + done.stderr)
    assert "crashed" in text
    assert re.search(r"\(crash pid=\d+\) last words", text)


def test_error_that_nobody_gets_is_printed(run_driver, lines):
    done = run_driver(
        SETUP
        + """
@ray.remote
def fails():
    raise ValueError("nobody looks at this")

ref = fails.remote()
time.sleep(1)
del ref
"""
        + lines
    )
    assert "nobody looks at this" in done.stderr


def test_traceback_of_the_task_is_shown(run_driver):
    done = run_driver(
        SETUP
        + """
@ray.remote
def inner():
    raise KeyError("deep inside")

@ray.remote
def outer():
    return ray.get(inner.remote())

ray.get(outer.remote())
""",
        check=False,
    )
    text = plain(done.stderr)
    assert done.returncode == 1
    assert "ray::outer()" in text
    assert "ray::inner()" in text
    assert "KeyError: 'deep inside'" in text


INTERRUPTED = (
    SETUP
    + """
@ray.remote
def slow():
    time.sleep(30)

@ray.remote
def quick():
    return "session works"

ref = slow.remote()
print("waiting", flush=True)
try:
    WAIT
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(ray.get(quick.remote(), timeout=30), flush=True)
"""
)


@pytest.mark.parametrize(
    "wait", ["ray.get(ref)", "ray.wait([ref])", "ray.get([ref], timeout=100)"]
)
def test_ctrl_c_interrupts_and_the_session_goes_on(start_driver, wait):
    process = start_driver(INTERRUPTED.replace("WAIT", wait))
    for line in process.stdout:
        if "waiting" in line:
            break
    # The driver needs a moment to get from its print into the wait.
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=50)
    assert "interrupted" in out, err
    assert "session works" in out, err
    assert process.returncode == 0


def test_unhandled_ctrl_c_ends_the_driver(start_driver):
    process = start_driver(
        SETUP
        + """
print("waiting", flush=True)
ray.get(ray.remote(lambda: time.sleep(30)).remote())
"""
    )
    for line in process.stdout:
        if "waiting" in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err


def test_sigterm_ends_the_driver(start_driver):
    process = start_driver(
        SETUP
        + """
print("waiting", flush=True)
ray.get(ray.remote(lambda: time.sleep(60)).remote())
"""
    )
    for line in process.stdout:
        if "waiting" in line:
            break
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode != 0
