"""``ray.kill``, crashes, restarts and retried calls.

Retries are counted generously here: real Ray may spend more than one of them on
a single crash, as a retry sent while the actor restarts counts too.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayActorError,
    RayError,
)

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Worker:
    def __init__(self, path=None):
        self.value = 0
        if path is not None:
            with open(path, "a") as file:
                file.write("s")

    def inc(self):
        self.value += 1
        return self.value

    def pid(self):
        return os.getpid()

    def crash(self):
        os._exit(1)

    def crash_once(self, path):
        if not os.path.exists(path):
            with open(path, "w") as file:
                file.write("crashed")
            os._exit(1)
        return "second run"

    def segfault(self):
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(30)

    def note(self, path):
        with open(path, "a") as file:
            file.write("n")
        time.sleep(30)

    def was_restarted(self):
        return ray.get_runtime_context().was_current_actor_reconstructed


def is_dead(actor):
    """Tell whether calls on the actor fail for good."""
    try:
        ray.get(actor.pid.remote())
    except ActorDiedError:
        return True
    except ActorUnavailableError:
        return False
    return False


def new_pid(actor, old):
    """Return the pid of a later incarnation, or None as long as there is none."""
    try:
        pid = ray.get(actor.pid.remote())
    except ActorUnavailableError:
        return None
    return pid if pid != old else None


def text_of(path):
    """Return what a file holds; nothing if it is not there."""
    return path.read_text() if path.exists() else ""


def test_killed_actor_refuses_calls(wait_until):
    worker = Worker.remote()
    ray.get(worker.pid.remote())
    assert ray.kill(worker) is None
    wait_until(lambda: is_dead(worker))
    with pytest.raises(ActorDiedError, match=r"ray\.kill"):
        ray.get(worker.inc.remote())


def test_kill_fails_running_and_queued_calls(tmp_path, wait_until):
    worker = Worker.remote()
    path = tmp_path / "note"
    refs = [worker.note.remote(str(path)), worker.inc.remote(), worker.inc.remote()]
    wait_until(lambda: text_of(path) == "n")
    ray.kill(worker)
    for ref in refs:
        with pytest.raises(ActorDiedError):
            ray.get(ref)


def test_kill_ends_the_process(wait_until):
    worker = Worker.remote()
    pid = ray.get(worker.pid.remote())
    ray.kill(worker)

    def gone():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(gone)


def test_kill_is_final_with_restarts_left(wait_until):
    worker = Worker.options(max_restarts=-1).remote()
    ray.get(worker.pid.remote())
    ray.kill(worker)
    wait_until(lambda: is_dead(worker))


def test_kill_twice_is_harmless(wait_until):
    worker = Worker.remote()
    ray.get(worker.pid.remote())
    ray.kill(worker)
    wait_until(lambda: is_dead(worker))
    ray.kill(worker)


def test_kill_before_the_constructor_ended(wait_until):
    @ray.remote
    class Slow:
        def __init__(self):
            time.sleep(30)

        def pid(self):
            return 1

    slow = Slow.remote()
    ref = slow.pid.remote()
    ray.kill(slow)
    with pytest.raises(ActorDiedError):
        ray.get(ref)


def test_kill_from_a_task_and_from_another_actor(wait_until):
    @ray.remote
    def kill(handle):
        ray.kill(handle)

    @ray.remote
    class Killer:
        def kill(self, handle):
            ray.kill(handle)

    first, second = Worker.remote(), Worker.remote()
    ray.get([first.pid.remote(), second.pid.remote()])
    ray.get([kill.remote(first), Killer.remote().kill.remote(second)])
    wait_until(lambda: is_dead(first) and is_dead(second))


def test_kill_without_no_restart_uses_a_restart(wait_until):
    worker = Worker.options(max_restarts=1).remote()
    ray.get(worker.inc.remote())
    old = ray.get(worker.pid.remote())
    ray.kill(worker, no_restart=False)
    wait_until(lambda: new_pid(worker, old))
    assert ray.get(worker.inc.remote()) == 1
    ray.kill(worker, no_restart=False)
    wait_until(lambda: is_dead(worker))


@pytest.mark.parametrize("what", [3, None, "actor", Worker], ids=repr)
def test_kill_of_something_else_is_a_value_error(what):
    with pytest.raises(ValueError, match="only supported for actors"):
        ray.kill(what)


def test_kill_of_a_ref_is_a_value_error():
    with pytest.raises(ValueError, match="only supported for actors"):
        ray.kill(ray.put(1))


@pytest.mark.parametrize("method", ["crash", "segfault"])
def test_crash_in_a_method_ends_the_actor(method):
    worker = Worker.remote()
    with pytest.raises(ActorDiedError, match="died unexpectedly"):
        ray.get(getattr(worker, method).remote())
    with pytest.raises(ActorDiedError):
        ray.get(worker.inc.remote())


def test_actor_died_error_names_the_actor():
    worker = Worker.remote()
    with pytest.raises(ActorDiedError) as caught:
        ray.get(worker.crash.remote())
    assert caught.value.actor_id == worker._actor_id.hex()
    assert worker._actor_id.hex() in str(caught.value)
    assert "Worker" in str(caught.value)


def test_actor_errors_have_one_family():
    assert issubclass(ActorDiedError, RayActorError)
    assert issubclass(ActorUnavailableError, RayActorError)
    assert issubclass(RayActorError, RayError)


def test_outside_kill_of_the_process_ends_the_actor(wait_until):
    worker = Worker.remote()
    os.kill(ray.get(worker.pid.remote()), signal.SIGKILL)
    wait_until(lambda: is_dead(worker))


def test_other_actors_survive_a_crash():
    crashing, other = Worker.remote(), Worker.remote()
    ray.get(other.inc.remote())
    with pytest.raises(ActorDiedError):
        ray.get(crashing.crash.remote())
    assert ray.get(other.inc.remote()) == 2


def test_restart_builds_the_state_from_the_constructor_again(tmp_path, wait_until):
    path = tmp_path / "starts"
    worker = Worker.options(max_restarts=1).remote(str(path))
    assert ray.get([worker.inc.remote(), worker.inc.remote()]) == [1, 2]
    old = ray.get(worker.pid.remote())
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: new_pid(worker, old))
    assert ray.get(worker.inc.remote()) == 1
    assert path.read_text() == "ss"


def test_crash_of_a_restartable_actor_is_an_unavailable_error(wait_until):
    worker = Worker.options(max_restarts=1).remote()
    old = ray.get(worker.pid.remote())
    with pytest.raises(ActorUnavailableError, match="unavailable"):
        ray.get(worker.crash.remote())
    wait_until(lambda: new_pid(worker, old))
    with pytest.raises(ActorDiedError):
        ray.get(worker.crash.remote())


def test_restarts_run_out(wait_until):
    worker = Worker.options(max_restarts=1).remote()
    first = ray.get(worker.pid.remote())
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: new_pid(worker, first))
    os.kill(ray.get(worker.pid.remote()), signal.SIGKILL)
    wait_until(lambda: is_dead(worker))


def test_context_tells_a_restarted_actor(wait_until):
    worker = Worker.options(max_restarts=1).remote()
    assert ray.get(worker.was_restarted.remote()) is False
    old = ray.get(worker.pid.remote())
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: new_pid(worker, old))
    assert ray.get(worker.was_restarted.remote()) is True


def test_call_is_retried_on_the_restarted_actor(tmp_path):
    worker = Worker.options(max_restarts=1, max_task_retries=5).remote()
    ref = worker.crash_once.remote(str(tmp_path / "flag"))
    assert ray.get(ref) == "second run"


def test_method_option_max_task_retries(tmp_path):
    worker = Worker.options(max_restarts=1).remote()
    method = worker.crash_once.options(max_task_retries=5)
    assert ray.get(method.remote(str(tmp_path / "flag"))) == "second run"


def test_retries_without_restarts_do_not_help(tmp_path):
    worker = Worker.options(max_task_retries=3).remote()
    with pytest.raises(ActorDiedError):
        ray.get(worker.crash_once.remote(str(tmp_path / "flag")))


def test_call_after_an_outside_kill_waits_for_the_restart():
    worker = Worker.options(max_restarts=-1, max_task_retries=-1).remote()
    old = ray.get(worker.pid.remote())
    os.kill(old, signal.SIGKILL)
    assert ray.get(worker.inc.remote()) >= 1


def test_retried_calls_run_once_more_and_all_arrive(tmp_path):
    @ray.remote(max_restarts=1, max_task_retries=5)
    class Log:
        def __init__(self):
            self.items = []

        def add(self, item, path):
            if item == 3 and not os.path.exists(path):
                open(path, "w").close()
                os._exit(1)
            self.items.append(item)
            return item

        def get(self):
            return self.items

    log = Log.remote()
    path = str(tmp_path / "flag")
    refs = [log.add.remote(i, path) for i in range(8)]
    assert ray.get(refs) == list(range(8))
    # Real Ray does not keep the order among retried calls.
    assert {3, 4, 5, 6, 7} <= set(ray.get(log.get.remote()))


def test_constructor_arguments_are_kept_for_the_restart(wait_until):
    @ray.remote(max_restarts=1)
    class Keeps:
        def __init__(self, data, ref):
            self.size = len(data) + ref

        def get(self):
            return self.size

        def pid(self):
            return os.getpid()

    keeps = Keeps.remote(b"x" * 500_000, ray.put(1))
    old = ray.get(keeps.pid.remote())
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: new_pid(keeps, old))
    assert ray.get(keeps.get.remote()) == 500_001


def test_restarted_actor_keeps_its_name_and_handle(wait_until):
    worker = Worker.options(name="phoenix", max_restarts=1).remote()
    old = ray.get(worker.pid.remote())
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: new_pid(worker, old))
    assert ray.get_actor("phoenix") == worker
    assert ray.get(ray.get_actor("phoenix").pid.remote()) != old


def test_error_in_the_constructor_of_a_restart_ends_the_actor(tmp_path, wait_until):
    @ray.remote(max_restarts=-1)
    class SecondFails:
        def __init__(self, path):
            if os.path.exists(path):
                raise RuntimeError("second start")
            open(path, "w").close()

        def pid(self):
            return os.getpid()

    actor = SecondFails.remote(str(tmp_path / "flag"))
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
    wait_until(lambda: is_dead(actor))
    with pytest.raises(ActorDiedError, match="second start"):
        ray.get(actor.pid.remote())


def test_crash_of_a_thread_of_the_actor_is_a_crash(wait_until):
    @ray.remote
    class Threaded:
        def start(self):
            threading.Timer(0.05, os._exit, (1,)).start()

        def pid(self):
            return os.getpid()

    actor = Threaded.remote()
    actor.start.remote()
    wait_until(lambda: is_dead(actor))
