"""Every error that this package raises on its own account.

::

    RayError
    |
    |   A failure of the user's code
    +-- RayTaskError                    a call raised; see ``cause``
    +-- UserCodeException               the same, seen by a library on top
    +-- UnserializableException         a call raised what cannot be loaded here
    +-- CrossLanguageError              a call in another language raised
    +-- TaskCancelledError              a call was cancelled
    +-- RayActorError                   a call on an actor cannot be answered
    |   +-- ActorDiedError              ... now or later
    |   +-- ActorUnavailableError       ... at the moment
    +-- AsyncioActorExit                an async actor ends itself (internal)
    +-- ObjectRefStreamEndOfStreamError a generator is exhausted (internal)
    |
    |   The caller's mistake
    +-- GetTimeoutError                 (TimeoutError) not there in time
    |   +-- DeadlockError               not there ever
    +-- ActorAlreadyExistsError         (ValueError) a name is taken
    +-- ActorHandleNotFoundError        (ValueError) a handle of another cluster
    +-- PendingCallsLimitExceeded       max_pending_calls is reached
    +-- AuthenticationError             token missing or wrong
    +-- RuntimeEnvSetupError            a runtime_env cannot be made
    +-- TaskUnschedulableError          no node may ever run the task
    +-- ActorUnschedulableError         no node may ever run the actor
    +-- TaskPlacementGroupRemoved       its placement group is gone
    +-- ActorPlacementGroupRemoved      its placement group is gone
    +-- OufOfBandObjectRefSerializationException
    |                                   a reference was pickled by other means
    |
    |   A failure of the system
    +-- WorkerCrashedError              the process died during the task
    +-- OutOfMemoryError                ... killed, since memory ran out
    +-- NodeDiedError                   its node went away
    +-- LocalRayletDiedError            the raylet of its node died
    +-- ObjectStoreFullError            no room in the node store
    +-- OutOfDiskError                  nor on the spill disk
    +-- PlasmaObjectNotAvailable        not in the node store yet (internal)
    +-- ObjectLostError                 every copy of an object is gone
    |   +-- ObjectFetchTimedOutError    no copy was found in time
    |   +-- OwnerDiedError              with the process that knew it
    |   +-- ObjectFreedError            it was freed by hand
    |   +-- ObjectReconstructionFailedError
    |   |                               and cannot be made again
    |   +-- ReferenceCountingAssertionError
    |                                   (AssertionError) and nobody should ask
    +-- RpcError                        a message could not be delivered
    +-- RaySystemError                  anything else
        +-- InternalError               a bug of this package: please report
        +-- StreamingGeneratorReplayInconsistentError
        +-- RayDirectTransportError
        +-- RayCgraphCapacityExceeded
        +-- RayChannelError
            +-- RayChannelTimeoutError  (TimeoutError)

Names, bases, parameters and attributes are Ray's, but for ``DeadlockError`` and
``InternalError``. All survive pickling, with their attributes: rebuilding one does
not run its ``__init__``. Only the standard library is imported, since this module
loads with the package.
"""

from __future__ import annotations

from .actors import (
    ActorAlreadyExistsError,
    ActorDeath,
    ActorDiedError,
    ActorHandleNotFoundError,
    ActorUnavailableError,
    AsyncioActorExit,
    PendingCallsLimitExceeded,
    RayActorError,
)
from .base import (
    RayError,
)
from .calls import (
    CrossLanguageError,
    RayTaskError,
    TaskCancelledError,
    UnserializableException,
    UserCodeException,
)
from .objects import (
    DeadlockError,
    GetTimeoutError,
    ObjectFetchTimedOutError,
    ObjectFreedError,
    ObjectLostError,
    ObjectReconstructionFailedError,
    ObjectRefStreamEndOfStreamError,
    ObjectStoreFullError,
    OufOfBandObjectRefSerializationException,
    OutOfDiskError,
    OwnerDiedError,
    PlasmaObjectNotAvailable,
    ReferenceCountingAssertionError,
)
from .system import (
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    AuthenticationError,
    InternalError,
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayCgraphCapacityExceeded,
    RayChannelError,
    RayChannelTimeoutError,
    RayDirectTransportError,
    RaySystemError,
    RpcError,
    RuntimeEnvSetupError,
    StreamingGeneratorReplayInconsistentError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
    WorkerCrashedError,
)

__all__ = [
    "ActorAlreadyExistsError",
    "ActorDeath",
    "ActorDiedError",
    "ActorHandleNotFoundError",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "AsyncioActorExit",
    "AuthenticationError",
    "CrossLanguageError",
    "DeadlockError",
    "GetTimeoutError",
    "InternalError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectRefStreamEndOfStreamError",
    "ObjectStoreFullError",
    "OufOfBandObjectRefSerializationException",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "PlasmaObjectNotAvailable",
    "RayActorError",
    "RayCgraphCapacityExceeded",
    "RayChannelError",
    "RayChannelTimeoutError",
    "RayDirectTransportError",
    "RayError",
    "RaySystemError",
    "RayTaskError",
    "ReferenceCountingAssertionError",
    "RpcError",
    "RuntimeEnvSetupError",
    "StreamingGeneratorReplayInconsistentError",
    "TaskCancelledError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
    "UnserializableException",
    "UserCodeException",
    "WorkerCrashedError",
]

# Users see one module, in tracebacks and in pickles; its parts may move.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
