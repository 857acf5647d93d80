from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import traceback

import cloudpickle
import pytest

from rayshim import exceptions
from rayshim.exceptions import (
    ActorDeath,
    ActorDiedError,
    GetTimeoutError,
    ObjectReconstructionFailedError,
    OwnerDiedError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
)

OBJECT = "ab" * 28

# An instance of every public error, for what holds for all of them.
SAMPLES: list[BaseException] = [
    exceptions.ActorAlreadyExistsError("taken"),
    ActorDiedError(),
    ActorDiedError(ActorDeath(reason="killed", pid=3, actor_id="aa")),
    exceptions.ActorHandleNotFoundError("gone"),
    exceptions.ActorPlacementGroupRemoved(),
    exceptions.ActorUnavailableError("away", b"a" * 16),
    exceptions.ActorUnavailableError("away", None),
    exceptions.ActorUnschedulableError("none"),
    exceptions.AsyncioActorExit(),
    exceptions.AuthenticationError("bad token"),
    exceptions.CrossLanguageError(None),
    exceptions.DeadlockError("waits for itself"),
    GetTimeoutError("late"),
    exceptions.InternalError("odd state", "event 1"),
    exceptions.LocalRayletDiedError(),
    exceptions.NodeDiedError("node"),
    exceptions.ObjectFetchTimedOutError(OBJECT, "addr", "site"),
    exceptions.ObjectFreedError(OBJECT, None, ""),
    exceptions.ObjectLostError(OBJECT, None, "site"),
    ObjectReconstructionFailedError(OBJECT, reason=27, call_site="site"),
    exceptions.ObjectRefStreamEndOfStreamError(),
    exceptions.ObjectStoreFullError("0 of 4 bytes"),
    exceptions.OufOfBandObjectRefSerializationException("x"),
    exceptions.OutOfDiskError("full"),
    exceptions.OutOfMemoryError("numbers"),
    OwnerDiedError(OBJECT, "addr", "site"),
    exceptions.PendingCallsLimitExceeded("3 of 3"),
    exceptions.PlasmaObjectNotAvailable(),
    RayActorError(actor_id="a", error_msg="text", preempted=True),
    exceptions.RayCgraphCapacityExceeded("x"),
    exceptions.RayChannelError("x"),
    exceptions.RayChannelTimeoutError("x", "tb"),
    exceptions.RayDirectTransportError("x"),
    RayError("x"),
    exceptions.RaySystemError("x", "tb"),
    RayTaskError("f", "tb", ValueError("x"), pid=3, ip="1.2.3.4", actor_id="aa"),
    exceptions.ReferenceCountingAssertionError(OBJECT, "addr", ""),
    exceptions.RpcError("lost", rpc_code=4),
    exceptions.RuntimeEnvSetupError("pip"),
    exceptions.StreamingGeneratorReplayInconsistentError("x"),
    TaskCancelledError("TaskID(aa)", "why"),
    exceptions.TaskPlacementGroupRemoved(),
    exceptions.TaskUnschedulableError("none"),
    exceptions.UnserializableException("tb"),
    exceptions.UserCodeException("x"),
    exceptions.WorkerCrashedError("signal 9"),
]


class Custom(ValueError):
    kind = "class attribute"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 5
        self.pid = "mine"

    def double(self) -> int:
        return self.code * 2

    def __str__(self) -> str:
        return "custom text"


class OddInit(Exception):
    def __init__(self, first: int, *, second: int) -> None:
        super().__init__("odd")
        self.sum = first + second

    def __reduce__(self) -> tuple[object, ...]:
        return make_odd_init, ()


def make_odd_init() -> OddInit:
    return OddInit(1, second=2)


class OddNew(Exception):
    def __new__(cls, first: int, second: int) -> OddNew:
        return super().__new__(cls, first, second)


class Final(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses")


class Slotted(Exception):
    __slots__ = ("slot",)


def failed(error: BaseException, **kwargs: object) -> RayTaskError:
    try:
        raise error
    except BaseException as caught:
        text = "".join(traceback.format_exception(caught))
    return RayTaskError("f", text, error, pid=7, ip="1.2.3.4", **kwargs)  # type: ignore[arg-type]


def test_samples_cover_every_public_error() -> None:
    assert {type(sample).__name__ for sample in SAMPLES} | {"ActorDeath"} == set(
        exceptions.__all__
    )


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_pickling_keeps_class_text_args_and_attributes(error: RayError) -> None:
    copies = (
        pickle.loads(pickle.dumps(error)),
        cloudpickle.loads(cloudpickle.dumps(error)),
        copy.copy(error),
    )
    for twin in copies:
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert repr(twin.args) == repr(error.args)
        assert repr(twin.__dict__) == repr(error.__dict__)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_every_error_is_a_ray_error_of_one_module(error: RayError) -> None:
    assert isinstance(error, RayError)
    assert type(error).__module__ == "rayshim.exceptions"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("GetTimeoutError", TimeoutError),
        ("RayChannelTimeoutError", TimeoutError),
        ("ActorAlreadyExistsError", ValueError),
        ("ActorHandleNotFoundError", ValueError),
        ("ReferenceCountingAssertionError", AssertionError),
        ("DeadlockError", GetTimeoutError),
        ("InternalError", exceptions.RaySystemError),
        ("OwnerDiedError", exceptions.ObjectLostError),
    ],
)
def test_errors_are_also_what_callers_catch(name: str, base: type) -> None:
    assert issubclass(getattr(exceptions, name), base)


def test_subclass_with_another_init_survives_pickling() -> None:
    class Mine(RayError):
        def __init__(self, a: int, b: int) -> None:
            super().__init__("mine")
            self.total = a + b

    twin = cloudpickle.loads(cloudpickle.dumps(Mine(1, 2)))
    assert (str(twin), twin.total) == ("mine", 3)


def test_bytes_round_trip() -> None:
    assert RayError.from_bytes(GetTimeoutError("late").to_bytes()).args == ("late",)


def test_import_loads_the_standard_library_only() -> None:
    program = (
        "import sys; before = set(sys.modules); import rayshim.exceptions; "
        "print(sorted(name.split('.')[0] for name in set(sys.modules) - before "
        "if name.split('.')[0] not in sys.stdlib_module_names | {'rayshim'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# -- texts -----------------------------------------------------------------------


def test_cancelled_task_without_facts_has_an_empty_text() -> None:
    assert str(TaskCancelledError()) == ""
    assert str(TaskCancelledError("T")) == "Task: T was cancelled."
    assert str(TaskCancelledError("T", "why")) == "Task: T was cancelled. why"


def test_texts_given_replace_default_ones() -> None:
    assert "unexpectedly while executing" in str(exceptions.WorkerCrashedError())
    assert str(exceptions.WorkerCrashedError("mine")) == "mine"


def test_lost_object_names_object_site_and_reason() -> None:
    text = str(OwnerDiedError(OBJECT, "addr", "train.py:4"))
    assert OBJECT in text
    assert "train.py:4" in text
    assert "owner has exited" in text


def test_reconstruction_error_explains_its_reason() -> None:
    error = ObjectReconstructionFailedError(OBJECT, reason=27)
    assert "ray.put()" in error.reason_message
    assert "[OBJECT_UNRECONSTRUCTABLE_PUT]" in str(error)
    assert "[UNKNOWN] why" in str(
        ObjectReconstructionFailedError(OBJECT, reason_message="why")
    )
    with pytest.raises(ValueError, match="99"):
        ObjectReconstructionFailedError(OBJECT, reason=99)


def test_death_of_an_actor_lists_what_is_known() -> None:
    death = ActorDeath(reason="It was killed by `ray.kill`.", class_name="A", pid=3)
    error = ActorDiedError(death)
    assert str(error) == (
        "The actor died unexpectedly before finishing this task.\n"
        "\tclass_name: A\n\tpid: 3\nIt was killed by `ray.kill`."
    )
    assert error.actor_id is None
    assert not error.actor_init_failed


def test_failed_constructor_is_told_but_not_of_the_users_type() -> None:
    cause = failed(ValueError("bad"), actor_id="aa")
    error = ActorDiedError.from_task_error(cause)
    assert "error raised in its creation task" in str(error)
    assert "ValueError: bad" in str(error)
    assert error.actor_init_failed
    assert error.actor_id == "aa"
    assert not isinstance(error, ValueError)


# -- errors of calls ---------------------------------------------------------------


def test_class_is_made_of_both() -> None:
    error = failed(ValueError("x")).as_instanceof_cause()
    assert type(error).__name__ == "RayTaskError(ValueError)"
    assert [base.__name__ for base in type(error).__mro__[1:4]] == [
        "RayTaskError",
        "RayError",
        "ValueError",
    ]
    assert error.cause.args == ("x",)
    assert error.args == (error.cause,)
    assert repr(error) == "RayTaskError(ValueError)(ValueError('x'))"


def test_class_is_made_once() -> None:
    first = failed(ValueError("x")).as_instanceof_cause()
    second = failed(ValueError("y")).as_instanceof_cause()
    assert type(first) is type(second)


def test_text_begins_with_the_call_and_ends_with_the_error() -> None:
    text = str(failed(ValueError("x")).as_instanceof_cause())
    assert text.startswith("ray::f() (pid=7, ip=1.2.3.4)\n  File ")
    assert text.endswith("\nValueError: x")


def test_text_of_an_actor_call_names_the_actor() -> None:
    error = failed(ValueError("x"), actor_id="aa", actor_repr="Mine")
    assert str(error).startswith(
        "ray::f() (pid=7, ip=1.2.3.4, actor_id=aa, repr=Mine)\n"
    )


def test_text_without_a_traceback_still_begins_with_the_call() -> None:
    error = RayTaskError("f", "ValueError: x", ValueError("x"), pid=7, ip="1.2.3.4")
    assert str(error) == "ray::f() (pid=7, ip=1.2.3.4)\nValueError: x"


@pytest.mark.parametrize("explicit", [True, False])
def test_text_tells_chained_causes(explicit: bool) -> None:
    try:
        try:
            raise ZeroDivisionError("first")
        except ZeroDivisionError as first:
            if explicit:
                raise KeyError("second") from first
            raise KeyError("second")  # noqa: B904
    except KeyError as second:
        text = str(failed(second))
    assert text.index("ZeroDivisionError: first") < text.index("KeyError: 'second'")
    assert ("direct cause" in text) is explicit
    assert text.count("ray::f() (pid=7") == 2


def test_frames_of_the_runtime_are_left_out() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/rayshim/_core/executor.py", line 3, in run\n'
        "    call()\n    ^^^^^^\n"
        '  File "job.py", line 9, in f\n    boom()\n'
        "ValueError: x\n"
    )
    error = RayTaskError("f", text, ValueError("x"), pid=7, ip="1.2.3.4")
    assert str(error) == (
        "ray::f() (pid=7, ip=1.2.3.4)\n"
        '  File "job.py", line 9, in f\n    boom()\n'
        "ValueError: x"
    )


def test_attributes_and_methods_of_the_cause_are_there() -> None:
    error = failed(Custom("m")).as_instanceof_cause()
    assert isinstance(error, Custom)
    assert (error.code, error.double(), error.kind) == (5, 10, "class attribute")
    assert error.pid == "mine"
    assert error.function_name == "f"
    assert str(error).endswith("Custom: custom text")
    with pytest.raises(AttributeError, match="missing"):
        _ = error.missing


@pytest.mark.parametrize(
    ("cause", "attribute", "expected"),
    [
        (FileNotFoundError(2, "nope", "/x"), "errno", 2),
        (FileNotFoundError(2, "nope", "/x"), "filename", "/x"),
        (UnicodeDecodeError("utf8", b"x", 0, 1, "why"), "reason", "why"),
        (StopIteration(4), "value", 4),
        (ImportError("m", name="mod"), "name", "mod"),
        (ExceptionGroup("g", [ValueError(1)]), "message", "g"),
        (make_odd_init(), "sum", 3),
    ],
)
def test_attributes_kept_outside_of_dict_are_there(
    cause: BaseException, attribute: str, expected: object
) -> None:
    error = failed(cause).as_instanceof_cause()
    assert isinstance(error, type(cause))
    assert getattr(error, attribute) == expected


def test_slots_of_the_cause_are_there() -> None:
    cause = Slotted("x")
    cause.slot = 9
    error = failed(cause).as_instanceof_cause()
    assert isinstance(error, Slotted)
    assert error.slot == 9


@pytest.mark.parametrize(
    "cause",
    [
        ValueError("x"),
        Custom("m"),
        make_odd_init(),
        OddNew(1, 2),
        KeyError("k"),
        FileNotFoundError(2, "nope"),
        ExceptionGroup("g", [ValueError(1)]),
        GetTimeoutError("late"),
        ActorDiedError(),
        TaskCancelledError("T"),
        subprocess.CalledProcessError(3, "cmd"),
        GeneratorExit(),
    ],
    ids=repr,
)
def test_instances_of_both_survive_pickling(cause: BaseException) -> None:
    error = failed(cause).as_instanceof_cause()
    assert isinstance(error, type(cause))
    for dumps in (pickle.dumps, cloudpickle.dumps):
        twin = pickle.loads(dumps(error))
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert repr(twin.cause) == repr(error.cause)


def test_class_that_cannot_be_subclassed_stays_a_task_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    original = failed(Final("x"))
    with pytest.raises(TypeError, match="no subclasses"):
        original.make_dual_exception_instance()
    error = original.as_instanceof_cause()
    assert type(error) is RayTaskError
    assert isinstance(error.cause, Final)
    assert "no subclasses" in caplog.text


@pytest.mark.parametrize("cause", [None, ValueError, "text", Exception("e")])
def test_causes_without_a_class_of_their_own_stay_task_errors(cause: object) -> None:
    error = RayTaskError("f", "tb", cause)
    assert error.as_instanceof_cause() is error


def test_error_through_two_calls_has_the_type_of_the_first() -> None:
    inner = failed(ZeroDivisionError("x")).as_instanceof_cause()
    outer = RayTaskError("g", "Traceback (most recent call last):\nx", inner)
    error = outer.as_instanceof_cause()
    assert type(error).__name__ == "RayTaskError(ZeroDivisionError)"
    assert error.function_name == "g"
    assert type(error.cause) is ZeroDivisionError


def test_instance_of_both_is_not_wrapped_again() -> None:
    error = failed(ValueError("x")).as_instanceof_cause()
    assert error.as_instanceof_cause() is error


def test_failed_constructor_of_either_form_is_told() -> None:
    error = failed(ValueError("bad"), actor_id="aa").as_instanceof_cause()
    assert ActorDiedError(error).actor_id == "aa"
