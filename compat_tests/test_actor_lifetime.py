"""When actors end: last handle gone, ``exit_actor``, termination, driver's end."""

from __future__ import annotations

import gc
import os
import sys

import pytest

import ray
from ray.exceptions import ActorDiedError, OwnerDiedError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Worker:
    def pid(self):
        return os.getpid()

    def ping(self):
        return "pong"

    def write(self, path, text):
        with open(path, "a") as file:
            file.write(text)

    def leave(self):
        ray.actor.exit_actor()

    def leave_in_try(self):
        try:
            ray.actor.exit_actor()
        except Exception:
            return "caught"

    def sys_exit(self, code):
        sys.exit(code)

    def context_id(self):
        return ray.get_runtime_context().get_actor_id()


def is_running(pid):
    """Tell whether a process is there and not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def name_is_free(name):
    """Tell whether no living actor has the name."""
    try:
        ray.get_actor(name)
    except ValueError:
        return True
    return False


def test_actor_ends_when_its_last_handle_goes(wait_until):
    worker = Worker.remote()
    pid = ray.get(worker.pid.remote())
    assert is_running(pid)
    del worker
    gc.collect()
    wait_until(lambda: not is_running(pid))


def test_actor_lives_while_a_copy_of_the_handle_does():
    worker = Worker.remote()
    pid = ray.get(worker.pid.remote())
    again = worker
    del worker
    gc.collect()
    assert ray.get(again.pid.remote()) == pid


def test_handle_inside_an_object_keeps_the_actor(wait_until):
    worker = Worker.remote()
    pid = ray.get(worker.pid.remote())
    ref = ray.put([worker])
    del worker
    gc.collect()
    again = ray.get(ref)[0]
    assert ray.get(again.pid.remote()) == pid


def test_handle_held_by_another_actor_keeps_the_actor(wait_until):
    @ray.remote
    class Keeper:
        def keep(self, handles):
            self.handles = handles

        def ask(self):
            return ray.get(self.handles[0].pid.remote())

        def drop(self):
            self.handles = None

    worker, keeper = Worker.remote(), Keeper.remote()
    pid = ray.get(worker.pid.remote())
    ray.get(keeper.keep.remote([worker]))
    del worker
    gc.collect()
    assert ray.get(keeper.ask.remote()) == pid
    ray.get(keeper.drop.remote())
    wait_until(lambda: not is_running(pid))


def test_calls_already_sent_still_run_after_the_last_handle_went(tmp_path):
    worker = Worker.remote()
    path = tmp_path / "out"
    refs = [worker.write.remote(str(path), str(i)) for i in range(5)]
    del worker
    gc.collect()
    ray.get(refs)
    assert path.read_text() == "01234"


def test_call_on_a_temporary_handle():
    assert ray.get(Worker.remote().ping.remote()) == "pong"


def test_actor_made_in_a_task_ends_with_it(wait_until):
    @ray.remote
    def use():
        worker = Worker.remote()
        return ray.get(worker.pid.remote())

    pid = ray.get(use.remote())
    wait_until(lambda: not is_running(pid))


def test_name_is_free_after_the_last_handle_went(wait_until):
    worker = Worker.options(name="short-lived").remote()
    ray.get(worker.ping.remote())
    del worker
    gc.collect()
    wait_until(lambda: name_is_free("short-lived"))


def test_exit_actor_ends_the_actor(wait_until):
    worker = Worker.remote()
    pid = ray.get(worker.pid.remote())
    with pytest.raises(ActorDiedError, match="INTENDED_USER_EXIT"):
        ray.get(worker.leave.remote())
    wait_until(lambda: not is_running(pid))
    with pytest.raises(ActorDiedError):
        ray.get(worker.ping.remote())


def test_exit_actor_is_not_caught_by_except_exception():
    worker = Worker.remote()
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(worker.leave_in_try.remote())


def test_exit_actor_is_final_with_restarts_left(wait_until):
    worker = Worker.options(max_restarts=-1).remote()
    pid = ray.get(worker.pid.remote())
    with pytest.raises(ActorDiedError):
        ray.get(worker.leave.remote())
    wait_until(lambda: not is_running(pid))
    with pytest.raises(ActorDiedError):
        ray.get(worker.ping.remote())


def test_exit_actor_outside_an_actor_is_a_type_error():
    with pytest.raises(TypeError, match="exit_actor"):
        ray.actor.exit_actor()

    @ray.remote
    def leave():
        ray.actor.exit_actor()

    with pytest.raises(TypeError, match="exit_actor"):
        ray.get(leave.remote())


def test_exit_actor_in_a_nested_function():
    @ray.remote
    class Deep:
        def leave(self):
            def inner():
                ray.actor.exit_actor()

            inner()

    with pytest.raises(ActorDiedError, match="INTENDED_USER_EXIT"):
        ray.get(Deep.remote().leave.remote())


def test_ray_terminate_runs_the_calls_before_it(tmp_path):
    worker = Worker.remote()
    path = tmp_path / "out"
    before = worker.write.remote(str(path), "before")
    end = worker.__ray_terminate__.remote()
    ray.get(before)
    with pytest.raises(ActorDiedError):
        ray.get(end)
    assert path.read_text() == "before"
    with pytest.raises(ActorDiedError):
        ray.get(worker.ping.remote())


@pytest.mark.parametrize(
    ("code", "fragment"), [(0, "INTENDED_USER_EXIT"), (3, "exit code 3")]
)
def test_sys_exit_in_a_method_ends_the_actor(code, fragment):
    worker = Worker.remote()
    with pytest.raises(ActorDiedError, match=fragment):
        ray.get(worker.sys_exit.remote(code))


def test_atexit_runs_when_the_actor_exits_itself(tmp_path, wait_until):
    @ray.remote
    class Tidy:
        def __init__(self, path):
            import atexit

            atexit.register(lambda: open(path, "w").write("bye"))

        def leave(self):
            ray.actor.exit_actor()

    path = tmp_path / "bye"
    with pytest.raises(ActorDiedError):
        ray.get(Tidy.remote(str(path)).leave.remote())
    wait_until(lambda: path.exists() and path.read_text() == "bye")


def test_results_outlive_the_actor(wait_until):
    @ray.remote
    class Maker:
        def small(self):
            return 1

        def large(self):
            return b"x" * 1_000_000

        def pid(self):
            return os.getpid()

    maker = Maker.remote()
    pid = ray.get(maker.pid.remote())
    small, large = maker.small.remote(), maker.large.remote()
    ray.wait([small, large], num_returns=2)
    ray.kill(maker)
    wait_until(lambda: not is_running(pid))
    assert ray.get(small) == 1
    assert len(ray.get(large)) == 1_000_000


def test_object_put_by_a_dead_actor_raises_owner_died(wait_until):
    @ray.remote
    class Owner:
        def put(self):
            return [ray.put(b"x" * 1_000_000)]

        def pid(self):
            return os.getpid()

    owner = Owner.remote()
    pid = ray.get(owner.pid.remote())
    [ref] = ray.get(owner.put.remote())
    ray.kill(owner)
    wait_until(lambda: not is_running(pid))

    def owner_is_missed():
        try:
            ray.get(ref)
        except OwnerDiedError:
            return True
        return False

    wait_until(owner_is_missed)


def test_child_of_a_dead_actor_dies_with_it(wait_until):
    @ray.remote
    class Parent:
        def __init__(self):
            self.child = Worker.remote()

        def child_pid(self):
            return ray.get(self.child.pid.remote())

    parent = Parent.remote()
    pid = ray.get(parent.child_pid.remote())
    ray.kill(parent)
    wait_until(lambda: not is_running(pid))


def test_actor_of_an_ended_driver_is_gone(run_driver, wait_until):
    result = run_driver(
        """
        import os
        import ray

        ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")

        @ray.remote
        class Worker:
            def pid(self):
                return os.getpid()

        worker = Worker.remote()
        print("PID", ray.get(worker.pid.remote()))
        """
    )
    pid = int(result.stdout.split("PID")[1].split()[0])
    wait_until(lambda: not is_running(pid))
