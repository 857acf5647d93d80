"""The lines of executors in a driver: folded, left out, or as they are."""

from __future__ import annotations

import re

import pytest

PROGRAM = """
import ray, sys, time

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")

@ray.remote
class Talker:
    def say(self, lines):
        for line in lines:
            print(line)

talkers = [Talker.remote() for _ in range(2)]
ray.get([one.say.remote(["warm up"]) for one in talkers])
ray.get([one.say.remote(["alike", "secret 1", "always"]) for one in talkers])
time.sleep(7)
"""


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def lines_of(done, word):
    return [line for line in plain(done.stdout).splitlines() if word in line]


def test_lines_that_processes_print_alike_are_folded(run_driver):
    done = run_driver(PROGRAM)
    assert len([x for x in lines_of(done, "alike") if "repeated" not in x]) <= 2
    assert re.search(r"\(Talker pid=\d+\) alike", plain(done.stdout))


def test_folding_can_be_turned_off(run_driver):
    done = run_driver(PROGRAM, env={"RAY_DEDUP_LOGS": "0"})
    assert len(lines_of(done, "alike")) == 2
    assert "repeated" not in done.stdout


def test_some_lines_are_never_folded(run_driver):
    done = run_driver(PROGRAM, env={"RAY_DEDUP_LOGS_ALLOW_REGEX": "always"})
    found = lines_of(done, "always")
    assert len(found) == 2
    assert not any("repeated" in line for line in found)


def test_some_lines_are_left_out(run_driver):
    done = run_driver(PROGRAM, env={"RAY_DEDUP_LOGS_SKIP_REGEX": "secret"})
    assert not lines_of(done, "secret")
    assert lines_of(done, "alike")


def test_prefix_has_no_colours_where_they_are_turned_off(run_driver):
    done = run_driver(PROGRAM, env={"RAY_COLOR_PREFIX": "0", "RAY_DEDUP_LOGS": "0"})
    assert len(re.findall(r"^\(Talker pid=\d+\) alike$", done.stdout, re.M)) == 2


@pytest.mark.parametrize("flag", ["0", "1"])
def test_output_without_line_ends_arrives(run_driver, flag):
    done = run_driver(
        """
        import ray, sys, time
        ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")

        @ray.remote
        def talk():
            print("first"); print("second", flush=True)
            time.sleep(3)

        ref = talk.remote()
        time.sleep(2.2)
        print("driver")
        ray.get(ref)
        """,
        env={"PYTHONUNBUFFERED": flag} if flag == "1" else {"PYTHONUNBUFFERED": ""},
    )
    text = plain(done.stdout)
    assert "first" in text and "second" in text
