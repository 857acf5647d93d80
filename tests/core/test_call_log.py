"""What processes note of calls that end, and what reaches the raylet of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rayshim import exceptions
from rayshim._core import event_log, failures
from rayshim._core.event_log import CallLog
from rayshim._core.running import Runner
from rayshim.adapters.wire import event_messages as ev
from rayshim.adapters.wire import messages as m

LEASE = m.BindLease(b"l" * 16, b"j" * 4, "", {"CPU": 1.0}, [], {})
EPOCH_S = 1_600_000_000.0


class Raylet:
    """Keeps what it is told."""

    closed = False

    def __init__(self) -> None:
        self.told: list[ev.TaskEvents] = []

    def send(self, message: ev.TaskEvents) -> None:
        self.told.append(message)

    @property
    def batches(self) -> list[ev.EventBatch]:
        return [
            msgspec.msgpack.decode(one.batch, type=ev.EventBatch) for one in self.told
        ]

    @property
    def calls(self) -> list[ev.CallEvent]:
        return [call for batch in self.batches for call in ev.events_of(batch)]


def peer_of(executor: Any = None) -> Any:
    """A process, as far as the log looks at it."""
    return SimpleNamespace(
        ended=False,
        raylet=Raylet(),
        executor=executor,
        node_id="n",
        node_ip="10.0.0.1",
        worker_id=b"w",
        pid=7,
        reactor=SimpleNamespace(call_later=lambda delay_s, callback: None),
    )


def executor_of(create: Any = None) -> Any:
    names = {b"key": "function"}
    return SimpleNamespace(
        actor=create,
        any_lease=lambda: LEASE,
        runner=SimpleNamespace(function_name=lambda key: names[key]),
    )


def noted(number: int, name: str, function: bytes | str) -> ev.Noted:
    return (number.to_bytes(24, "big"), name, 0, 1.0, 2.0, b"", function)


def record_of(number: int) -> Any:
    function = SimpleNamespace(name="function")
    return SimpleNamespace(
        task_id=number.to_bytes(24, "big"),
        name="call",
        attempt=0,
        parent=b"",
        actor_id=b"",
        actor=None,
        function=function,
    )


def spec_of(number: int) -> Any:
    return SimpleNamespace(task_id=number.to_bytes(24, "big"), attempt=0)


def test_calls_are_told_with_their_functions_and_times() -> None:
    peer = peer_of(executor_of())
    log = CallLog(peer)
    log.noted.append(noted(1, "function", b"key"))
    log.noted.append(noted(2, "its name", b"key"))
    log.send()
    first, second = peer.raylet.calls
    assert (first.state, first.kind, first.function) == ("FINISHED", ev.TASK, "")
    assert (second.name, second.function) == ("its name", "function")
    assert first.start_s > EPOCH_S and first.end_s - first.start_s == pytest.approx(1.0)
    assert peer.raylet.batches[0].resources == {"CPU": 1.0}


def test_calls_that_failed_are_told_so_and_those_given_back_are_not() -> None:
    peer = peer_of(executor_of())
    log = CallLog(peer)
    log.failed(spec_of(1), "OUT_OF_MEMORY", "why")
    log.failed(spec_of(2), event_log.GIVEN_BACK, "")
    for number in (1, 2, 3):
        log.noted.append(noted(number, "function", b"key"))
    log.send()
    assert [(call.state, call.error_type) for call in peer.raylet.calls] == [
        ("FAILED", "OUT_OF_MEMORY"),
        ("FINISHED", ""),
    ]
    assert peer.raylet.told[0].count == 2
    assert not log._errors


def test_methods_and_constructors_are_told_apart() -> None:
    create = SimpleNamespace(
        actor_id=b"a" * 16,
        class_name="Thing",
        name="named",
        lease=LEASE,
        spec=spec_of(1),
    )
    peer = peer_of(executor_of(create))
    log = CallLog(peer)
    log.noted.append(noted(1, "", ""))
    log.noted.append(noted(2, "Thing.run", "run"))
    log.send()
    constructor, method = peer.raylet.calls
    assert (constructor.kind, constructor.name) == (ev.CREATION, "named:Thing.__init__")
    assert (method.kind, method.name, method.function) == (ev.METHOD, "Thing.run", "")
    assert method.actor_id == b"a" * 16


def test_many_failures_travel_in_messages_of_bounded_size() -> None:
    peer = peer_of()
    log = CallLog(peer)
    payload = failures.error_payload(exceptions.ActorDiedError("x" * 10_000))
    count = 2 * event_log.MAX_BATCH + 1
    for number in range(count):
        log.never_ran(record_of(number), payload)
    log.send()
    assert sum(one.count for one in peer.raylet.told) == count
    assert max(one.count for one in peer.raylet.told) <= event_log.MAX_BATCH
    assert {call.error_type for call in peer.raylet.calls} == {"ACTOR_DIED"}


def test_errors_of_calls_that_fail_alike_are_loaded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = []
    load = failures.load_error

    def load_error(payload: m.Payload) -> BaseException:
        loaded.append(payload)
        return load(payload)

    monkeypatch.setattr(failures, "load_error", load_error)
    log = CallLog(peer_of())
    for number in range(100):
        payload = failures.error_payload(exceptions.ActorDiedError("gone"))
        log.never_ran(record_of(number), payload)
    assert len(loaded) == 1


class Wordless(exceptions.RayError):
    """An error of a user whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_error_without_a_text_is_told_by_its_name() -> None:
    peer = peer_of()
    log = CallLog(peer)
    log.never_ran(record_of(1), failures.error_payload(Wordless()))
    log.send()
    assert [call.error_message for call in peer.raylet.calls] == ["Wordless"]


def test_texts_that_are_no_utf_8_are_told_as_escapes() -> None:
    peer = peer_of(executor_of())
    log = CallLog(peer)
    log.failed(spec_of(1), "TASK_EXECUTION_EXCEPTION", "no file \udcff")
    log.noted.append(noted(1, "function", b"key"))
    error = exceptions.ActorDiedError("no file \udcfe")
    log.never_ran(record_of(2), failures.error_payload(error))
    log.send()
    texts = [call.error_message for call in peer.raylet.calls]
    assert "\\udcff" in texts[0] and "\\udcfe" in texts[1]


class Unwritable:
    """An actor whose name no message can have as it is."""

    def __repr__(self) -> str:
        return "no name \udcff"


def test_reprs_of_actors_are_told_as_text() -> None:
    shown: list[str] = []
    runner = object.__new__(Runner)
    runner.show_name = shown.append  # type: ignore[method-assign]
    assert runner.repr_name(Unwritable()) == "no name \\udcff"
    assert shown == ["no name \\udcff"]
