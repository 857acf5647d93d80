"""A real session: its files, its executors' deaths, its words, its order."""

from __future__ import annotations

import gc
import logging
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rayshim as ray
from live_session import (
    DEADLINE_S,
    LARGE,
    Keeper,
    echo,
    is_running,
    large,
    make_large,
    pid,
    start_ready,
    wait_until,
    work,
)
from rayshim import exceptions
from rayshim._core import session as sessions


@pytest.fixture(scope="module")
def shared() -> Iterator[sessions.Session]:
    """One session of 3 CPUs for the tests that leave it as it was."""
    yield start_ready(3, pending_warn_s=0.1)
    ray.shutdown()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Files.


@pytest.mark.slow
def test_the_files_of_a_session_are_for_its_user_alone(
    shared: sessions.Session,
) -> None:
    ref = ray.put(large())
    made_there = make_large.remote()
    ray.get(made_there)
    folder, store = shared.folder, shared.store_dir
    assert mode_of(folder / "token") == 0o600
    for one in (folder, folder / "sockets", folder / "logs", store):
        assert mode_of(one) == 0o700, one
    sockets = list((folder / "sockets").iterdir())
    assert len(sockets) >= 3, "a driver, a node and an executor"
    for one in sockets:
        assert mode_of(one) == 0o600 and stat.S_ISSOCK(one.stat().st_mode), one
    segments = [one for one in store.rglob("*") if one.is_file()]
    assert len(segments) >= 2
    for one in segments:
        assert mode_of(one) == 0o600, one
    del ref


def test_the_token_does_not_show(shared: sessions.Session) -> None:
    """Not in a command line, which everybody can read, and not in the logs."""
    token = (shared.folder / "token").read_text().strip()
    assert len(token) == 64
    executor = ray.get(pid.remote())
    assert shared._process is not None
    for one in (shared._process.pid, executor):
        command = Path(f"/proc/{one}/cmdline").read_bytes()
        environment = Path(f"/proc/{one}/environ").read_bytes()
        assert token.encode() not in command + environment
    for log in (shared.folder / "logs").iterdir():
        assert token not in log.read_text(errors="replace")


# Deaths.


@ray.remote(max_retries=0)
def die_once(marker: str, number: int = signal.SIGKILL) -> str:
    if not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), number)
    return "survived"


@pytest.mark.slow
def test_the_death_of_an_executor_fails_its_call(
    shared: sessions.Session, tmp_path: Path
) -> None:
    ref = die_once.remote(str(tmp_path / "dead"))
    with pytest.raises(exceptions.WorkerCrashedError, match="SIGKILL"):
        ray.get(ref, timeout=DEADLINE_S)
    assert ray.get(echo.remote(1), timeout=DEADLINE_S) == 1


@pytest.mark.slow
def test_a_call_is_retried_after_the_death_of_its_executor(
    shared: sessions.Session, tmp_path: Path
) -> None:
    ref = die_once.options(max_retries=1).remote(str(tmp_path / "dead"))
    assert ray.get(ref, timeout=DEADLINE_S) == "survived"


def in_child(action: Callable[[], Any]) -> str:
    """Run an action in a forked child and return the name and text of its error."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            text = f"returned {action()!r}"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text


@pytest.mark.slow
def test_a_forked_child_cannot_use_the_session(shared: sessions.Session) -> None:
    ref = ray.put(1)
    for action in (
        lambda: ray.get(ref),
        lambda: ray.put(1),
        lambda: echo.remote(),
        lambda: ray.wait([ref]),
    ):
        text = in_child(action)
        assert text.startswith("RuntimeError: this process was forked"), text
    assert in_child(ray.is_initialized) == "returned False"
    assert in_child(ray.shutdown) == "returned None"
    assert ray.get(ref) == 1
    assert ray.get(echo.remote(2)) == 2
    assert shared.folder.exists()


# Words.


def explanation(ref: Any, part: str) -> str:
    """The explanation, once it has a part that depends on others' messages."""

    def look() -> str:
        text = str(ray.explain(ref))
        return text if part in text else ""

    return str(wait_until(look))


@pytest.mark.slow
def test_explain_tells_where_a_running_call_is(shared: sessions.Session) -> None:
    ref = work.remote(0.4)
    text = explanation(ref, "task work runs on")
    assert "task work runs on executor pid " in text
    assert ref.hex()[:16] in text
    ray.get(ref)
    assert str(ray.explain(ref)) == f"ObjectRef({ref.hex()}) is ready."


@pytest.mark.slow
def test_explain_counts_what_a_queued_call_waits_for(shared: sessions.Session) -> None:
    holders = [work.options(name="holder").remote(0.6) for _ in range(3)]
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 0)
    ref = echo.options(num_cpus=2).remote()
    text = explanation(ref, "free")
    assert "needs {CPU: 2}" in text
    assert "free {CPU: 0} of {CPU: 3}" in text
    assert "in use by work" in text
    ray.get([ref, *holders])


def test_explain_tells_that_a_call_can_never_run(shared: sessions.Session) -> None:
    ref = echo.options(num_cpus=64).remote()
    text = explanation(ref, "needs")
    assert "needs {CPU: 64}" in text
    assert "the cluster has at most {CPU: 3}" in text
    ray.cancel(ref)


def test_explain_tells_what_argument_is_missing(shared: sessions.Session) -> None:
    first = echo.options(num_cpus=64).remote()
    second = echo.remote(first)
    text = str(ray.explain(second))
    assert "waits for 1 of its arguments" in text
    assert first.hex()[:16] in text
    ray.cancel(first)


def test_explain_tells_of_a_pending_actor(shared: sessions.Session) -> None:
    actor = Keeper.options(num_cpus=64).remote()
    ref = actor.read.remote()
    text = explanation(ref, "needs")
    assert "waits for actor Keeper" in text and "PENDING" in text
    assert "CPU: 64" in text
    assert "PENDING" in str(ray.explain(actor))
    ray.kill(actor)


def test_explain_repeats_a_failure(shared: sessions.Session) -> None:
    ref = fail.remote()
    ray.wait([ref])
    assert "no luck" in str(ray.explain(ref))


@ray.remote
def fail() -> None:
    raise ValueError("no luck")


@pytest.mark.slow
def test_a_long_wait_explains_itself_once(
    shared: sessions.Session, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("rayshim")
    logger.addHandler(caplog.handler)
    try:
        ray.get(work.remote(0.5))
        notices = [r.getMessage() for r in caplog.records if "waiting for" in r.msg]
        assert len(notices) == 1
        assert "waiting for 1 of 1 objects" in notices[0]
        assert "task work" in notices[0]
        caplog.clear()
        ray.get(echo.remote(1))
        assert not caplog.records, "a short wait has nothing to say"
    finally:
        logger.removeHandler(caplog.handler)


@pytest.mark.slow
def test_a_timeout_names_what_it_waited_for(shared: sessions.Session) -> None:
    ref = work.remote(0.4)
    with pytest.raises(exceptions.GetTimeoutError, match="task work"):
        ray.get(ref, timeout=0.05)
    ray.get(ref)


# Serializers and handles.


class Handle:
    """Cannot be pickled by itself."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        raise TypeError("not this way")


@pytest.mark.slow
def test_a_custom_serializer_works_both_ways(shared: sessions.Session) -> None:
    from rayshim.util import deregister_serializer, register_serializer

    register_serializer(
        Handle,
        serializer=lambda handle: handle.number,
        deserializer=lambda number: Handle(number + 1),
    )
    try:
        assert ray.get(ray.put(Handle(1))).number == 2
        assert ray.get(number_of.remote(Handle(1))) == 2
        assert ray.get(number_of.remote([Handle(1)])) == 2
        assert ray.get(ray.put({"in": [Handle(5)]}))["in"][0].number == 6
    finally:
        deregister_serializer(Handle)
    with pytest.raises(TypeError, match="not this way"):
        ray.put(Handle(1))


@ray.remote
def number_of(value: Any) -> int:
    return int((value[0] if isinstance(value, list) else value).number)


@pytest.mark.slow
def test_a_handle_works_wherever_it_goes(
    shared: sessions.Session,
) -> None:
    first, second = Keeper.remote(), Keeper.remote()
    ref = ray.put(large())
    ray.get(second.keep.remote([ref]))
    assert ray.get(first.ask.remote(second)) == LARGE
    assert ray.get(ask_nested.remote({"who": [second]})) == LARGE
    assert ray.get(ray.get(ray.put([second]))[0].read.remote()) == LARGE
    for actor in (first, second):
        ray.kill(actor)


@ray.remote
def ask_nested(box: dict[str, list[Any]]) -> Any:
    return ray.get(box["who"][0].read.remote())


@pytest.mark.slow
def test_an_actor_lives_as_long_as_any_handle(shared: sessions.Session) -> None:
    actor = Pid.remote()
    number = ray.get(actor.pid.remote())
    holder = Keeper.remote()
    ray.get(holder.keep.remote([actor]))
    del actor
    gc.collect()
    time.sleep(0.3)  # long enough for a wrong count to show
    assert is_running(number)
    (again,) = ray.get(holder.give.remote())
    assert ray.get(again.pid.remote()) == number
    del again
    ray.get(holder.keep.remote(None))
    gc.collect()
    wait_until(lambda: not is_running(number), deadline_s=5.0)
    ray.kill(holder)


@ray.remote(num_cpus=0)
class Pid:
    def pid(self) -> int:
        return os.getpid()
