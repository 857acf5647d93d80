"""``ray.exceptions``: names, bases and construction. Needs no cluster."""

from __future__ import annotations

import importlib
import pickle

import pytest

import ray
import ray.exceptions as exceptions

BASES = {
    "ActorAlreadyExistsError": ["ValueError", "RayError"],
    "ActorDiedError": ["RayActorError"],
    "ActorPlacementGroupRemoved": ["RayError"],
    "ActorUnavailableError": ["RayActorError"],
    "ActorUnschedulableError": ["RayError"],
    "AsyncioActorExit": ["RayError"],
    "CrossLanguageError": ["RayError"],
    "GetTimeoutError": ["RayError", "TimeoutError"],
    "LocalRayletDiedError": ["RayError"],
    "NodeDiedError": ["RayError"],
    "ObjectFetchTimedOutError": ["ObjectLostError"],
    "ObjectFreedError": ["ObjectLostError"],
    "ObjectLostError": ["RayError"],
    "ObjectReconstructionFailedError": ["ObjectLostError"],
    "ObjectRefStreamEndOfStreamError": ["RayError"],
    "ObjectStoreFullError": ["RayError"],
    "OutOfDiskError": ["RayError"],
    "OutOfMemoryError": ["RayError"],
    "OwnerDiedError": ["ObjectLostError"],
    "PendingCallsLimitExceeded": ["RayError"],
    "PlasmaObjectNotAvailable": ["RayError"],
    "RayActorError": ["RayError"],
    "RayChannelError": ["RaySystemError"],
    "RayChannelTimeoutError": ["RayChannelError", "TimeoutError"],
    "RayError": ["Exception"],
    "RaySystemError": ["RayError"],
    "RayTaskError": ["RayError"],
    "ReferenceCountingAssertionError": ["ObjectLostError", "AssertionError"],
    "RpcError": ["RayError"],
    "RuntimeEnvSetupError": ["RayError"],
    "TaskCancelledError": ["RayError"],
    "TaskPlacementGroupRemoved": ["RayError"],
    "TaskUnschedulableError": ["RayError"],
    "UnserializableException": ["RayError"],
    "UserCodeException": ["RayError"],
    "WorkerCrashedError": ["RayError"],
}


@pytest.mark.parametrize("name", BASES)
def test_bases(name):
    error_type = getattr(exceptions, name)
    mro = [base.__name__ for base in error_type.__mro__]
    assert set(BASES[name]) <= set(mro)
    assert error_type.__name__ == name
    assert error_type.__module__.endswith(".exceptions")


def test_actor_class_inheritance_error_is_a_type_error():
    # Its home differs between releases, so it is found through the error.
    @ray.remote
    class Base:
        pass

    with pytest.raises(TypeError):

        class Derived(Base):
            pass


@pytest.mark.parametrize(
    "name",
    [
        "RayError",
        "GetTimeoutError",
        "WorkerCrashedError",
        "ObjectStoreFullError",
        "PendingCallsLimitExceeded",
        "RuntimeEnvSetupError",
    ],
)
def test_simple_errors_can_be_built_and_pickled(name):
    error = getattr(exceptions, name)("the text")
    assert "the text" in str(error) or name in ("WorkerCrashedError",)
    assert type(pickle.loads(pickle.dumps(error))) is type(error)


def test_actor_died_error_without_a_cause():
    error = exceptions.ActorDiedError()
    assert isinstance(error, exceptions.RayActorError)
    assert "died" in str(error)


def test_task_cancelled_error_without_arguments():
    assert isinstance(exceptions.TaskCancelledError(), exceptions.RayError)


def test_task_error_can_be_built_by_hand():
    error = exceptions.RayTaskError("f", "the traceback", ValueError("x"))
    dual = error.as_instanceof_cause()
    assert isinstance(dual, ValueError)
    assert isinstance(dual, exceptions.RayTaskError)
    assert "the traceback" in str(dual)
    assert dual.cause.args == ("x",)


def test_importable_as_a_module():
    assert importlib.import_module("ray.exceptions") is ray.exceptions
    from ray.exceptions import RayError

    assert RayError is ray.exceptions.RayError
