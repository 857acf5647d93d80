"""Who keeps an actor alive, and when the last handle is gone."""

from __future__ import annotations

import gc
import os
import signal

import pytest

import ray
from failures.witness import (
    DEADLINE_S,
    is_running,
    note_pid,
    note_run,
    noted_pid,
    runs_in,
    wait_for_file,
)
from ray.exceptions import ActorDiedError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Worker:
    def pid(self):
        return os.getpid()

    def block(self, path, gate):
        note_run(path)
        wait_for_file(gate)
        return "done"


@ray.remote
class Keeper:
    def __init__(self, box=None):
        self.box = box

    def keep(self, box):
        self.box = box

    def give(self):
        return self.box

    def drop(self):
        self.box = None
        gc.collect()

    def ask(self):
        return ray.get(self.box[0].pid.remote(), timeout=DEADLINE_S)

    def make(self):
        self.box = [Worker.remote()]
        return ray.get(self.box[0].pid.remote(), timeout=DEADLINE_S)

    def pid(self):
        return os.getpid()


@pytest.fixture
def ended(wait_until):
    """Return a function that waits for the end of a process."""

    def wait(pid):
        gc.collect()
        wait_until(lambda: not is_running(pid))

    return wait


def start():
    worker = Worker.remote()
    return worker, ray.get(worker.pid.remote(), timeout=DEADLINE_S)


def test_handle_in_a_list_of_the_driver(ended):
    workers, pids = zip(*[start() for _ in range(3)], strict=True)
    kept = workers[1]
    del workers
    ended(pids[0])
    ended(pids[2])
    assert ray.get(kept.pid.remote(), timeout=DEADLINE_S) == pids[1]


def test_handle_in_an_object_goes_with_the_object(ended):
    worker, pid = start()
    ref = ray.put({"handle": worker})
    del worker
    gc.collect()
    assert ray.get(ray.get(ref)["handle"].pid.remote(), timeout=DEADLINE_S) == pid


def test_handle_kept_by_an_actor_that_dies(ended):
    keeper = Keeper.remote()
    worker, pid = start()
    ray.get(keeper.keep.remote([worker]))
    del worker
    assert ray.get(keeper.ask.remote(), timeout=DEADLINE_S) == pid
    os.kill(ray.get(keeper.pid.remote()), signal.SIGKILL)
    ended(pid)


def test_handle_kept_by_an_actor_that_goes_out_of_scope(ended):
    keeper = Keeper.remote()
    worker, pid = start()
    ray.get(keeper.keep.remote([worker]))
    del worker
    assert ray.get(keeper.ask.remote(), timeout=DEADLINE_S) == pid
    del keeper
    ended(pid)


def test_handle_passed_from_actor_to_actor(ended):
    first, second = Keeper.remote(), Keeper.remote()
    worker, pid = start()
    ray.get(first.keep.remote([worker]))
    del worker
    ray.get(second.keep.remote(first.give.remote()))
    ray.get(first.drop.remote())
    assert ray.get(second.ask.remote(), timeout=DEADLINE_S) == pid
    ray.get(second.drop.remote())
    ended(pid)


def test_handle_in_a_constructor_argument(ended):
    worker, pid = start()
    keeper = Keeper.remote([worker])
    del worker
    assert ray.get(keeper.ask.remote(), timeout=DEADLINE_S) == pid
    ray.get(keeper.drop.remote())


def test_handle_in_a_running_task(tmp_path, ended):
    @ray.remote
    def hold(box, gate):
        wait_for_file(gate)
        return ray.get(box[0].pid.remote())

    worker, pid = start()
    result = hold.remote([worker], tmp_path / "go")
    del worker
    gc.collect()
    (tmp_path / "go").touch()
    assert ray.get(result, timeout=DEADLINE_S) == pid
    ended(pid)


def test_handle_in_a_task_that_waits_for_its_argument(tmp_path, ended):
    @ray.remote
    def late(gate):
        wait_for_file(gate)

    @ray.remote
    def ask(worker, _):
        return ray.get(worker.pid.remote())

    worker, pid = start()
    result = ask.remote(worker, late.remote(tmp_path / "go"))
    del worker
    gc.collect()
    (tmp_path / "go").touch()
    assert ray.get(result, timeout=DEADLINE_S) == pid
    ended(pid)


def test_handle_in_a_retried_task(tmp_path):
    @ray.remote(max_retries=1)
    def ask(box):
        if note_run(tmp_path / "runs") == 1:
            os._exit(1)
        return ray.get(box[0].pid.remote())

    worker, pid = start()
    result = ask.remote([worker])
    del worker
    assert ray.get(result, timeout=DEADLINE_S) == pid


def test_handle_returned_by_an_actor_keeps_the_child(ended):
    keeper = Keeper.remote()
    pid = ray.get(keeper.make.remote(), timeout=DEADLINE_S)
    (child,) = ray.get(keeper.give.remote())
    ray.get(keeper.drop.remote())
    assert ray.get(child.pid.remote(), timeout=DEADLINE_S) == pid
    del child
    ended(pid)


def test_call_in_flight_outlives_every_handle(tmp_path, wait_until, ended):
    worker, pid = start()
    ref = worker.block.remote(tmp_path / "runs", tmp_path / "go")
    wait_until(lambda: runs_in(tmp_path / "runs") == 1)
    del worker
    gc.collect()
    assert ray.wait([ref], timeout=0.3) == ([], [ref])
    (tmp_path / "go").touch()
    assert ray.get(ref, timeout=DEADLINE_S) == "done"
    ended(pid)


def test_handle_dropped_while_the_actor_starts(tmp_path, ended, wait_until):
    @ray.remote
    class Slow:
        def __init__(self, path, gate):
            note_pid(path)
            wait_for_file(gate)

    slow = Slow.remote(tmp_path / "pid", tmp_path / "go")
    wait_until(lambda: noted_pid(tmp_path / "pid"))
    del slow
    (tmp_path / "go").touch()
    ended(noted_pid(tmp_path / "pid"))


def test_restartable_actor_ends_for_good_without_handles(ended, tmp_path):
    @ray.remote(max_restarts=-1)
    class Restartable:
        def __init__(self, path):
            note_run(path)

        def pid(self):
            return os.getpid()

    actor = Restartable.remote(tmp_path / "runs")
    pid = ray.get(actor.pid.remote(), timeout=DEADLINE_S)
    del actor
    ended(pid)
    assert runs_in(tmp_path / "runs") == 1


def test_restarted_actor_ends_without_handles(ended):
    worker = Worker.options(max_restarts=1, max_task_retries=5).remote()
    first = ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    os.kill(first, signal.SIGKILL)
    ended(first)
    second = ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    assert second != first
    del worker
    ended(second)


def test_detached_actor_lives_without_handles(ended):
    worker = Worker.options(name="detached1", lifetime="detached").remote()
    pid = ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    other, others_pid = start()
    del worker, other
    ended(others_pid)
    again = ray.get_actor("detached1")
    assert ray.get(again.pid.remote(), timeout=DEADLINE_S) == pid
    ray.kill(again)
    ended(pid)


def test_detached_actor_that_crashed_is_gone(ended, wait_until):
    worker = Worker.options(name="detached2", lifetime="detached").remote()
    pid = ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    with pytest.raises(ActorDiedError):
        ray.get([worker.pid.remote() for _ in range(2)], timeout=DEADLINE_S)
    del worker
    gc.collect()

    def unknown():
        try:
            ray.get_actor("detached2")
        except ValueError:
            return True
        return False

    wait_until(unknown)


def test_named_actor_ends_with_its_owners_last_handle(ended):
    worker = Worker.options(name="counted").remote()
    pid = ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    del worker
    ended(pid)
    with pytest.raises(ValueError):
        ray.get_actor("counted")


def test_two_actors_that_know_each_other_can_be_killed(ended):
    first, second = Keeper.remote(), Keeper.remote()
    ray.get([first.keep.remote([second]), second.keep.remote([first])])
    pids = ray.get([first.pid.remote(), second.pid.remote()])
    assert ray.get(first.ask.remote(), timeout=DEADLINE_S) == pids[1]
    ray.kill(first)
    ended(pids[0])
    del first, second


def test_resources_are_free_after_the_last_handle():
    for _ in range(2):
        worker = Worker.options(num_cpus=4).remote()
        ray.get(worker.pid.remote(), timeout=DEADLINE_S)
        del worker
    task = ray.remote(num_cpus=4)(lambda: "ran")
    assert ray.get(task.remote(), timeout=DEADLINE_S) == "ran"


def test_many_handles_dropped_in_odd_orders(ended):
    started = [start() for _ in range(2)]
    pids = [pid for _, pid in started]
    copies = [[worker] * 3 for worker, _ in started]
    boxes = [ray.put([worker]) for worker, _ in started]
    del started
    copies[0].clear()
    gc.collect()
    assert ray.get(ray.get(boxes[0])[0].pid.remote(), timeout=DEADLINE_S) == pids[0]
    del boxes
    gc.collect()
    assert ray.get(copies[1][0].pid.remote(), timeout=DEADLINE_S) == pids[1]
    copies.clear()
    ended(pids[1])
