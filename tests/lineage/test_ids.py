from __future__ import annotations

import copy
import pickle

import pytest

from rayshim.lineage import ids
from rayshim.lineage.ids import (
    ActorID,
    BaseID,
    JobID,
    NodeID,
    ObjectID,
    PlacementGroupID,
    TaskID,
    UniqueID,
)

SIZES = {
    "UniqueID": 28,
    "NodeID": 28,
    "WorkerID": 28,
    "FunctionID": 28,
    "ActorClassID": 28,
    "ClusterID": 28,
    "LeaseID": 16,
    "JobID": 4,
    "ActorID": 16,
    "TaskID": 24,
    "ObjectID": 28,
    "PlacementGroupID": 18,
}
EACH_CLASS = pytest.mark.parametrize(
    "cls", [getattr(ids, name) for name in SIZES], ids=list(SIZES)
)
JOB = JobID.from_int(1)
DRIVER = TaskID.for_driver_task(JOB)


@EACH_CLASS
def test_sizes_are_those_users_see_in_hex(cls: type[BaseID]) -> None:
    assert cls.size() == SIZES[cls.__name__]
    assert len(cls.nil().hex()) == 2 * SIZES[cls.__name__]


@EACH_CLASS
def test_bytes_and_hex_round_trip(cls: type[BaseID]) -> None:
    raw = bytes(range(cls.size()))
    assert cls.from_binary(raw).binary() == raw
    assert cls.from_hex(raw.hex()) == cls(raw)
    assert cls.from_hex(raw.hex().encode()) == cls(raw)
    assert cls.from_hex(raw.hex()).hex() == raw.hex()


@EACH_CLASS
def test_pickle_and_copy_keep_class_equality_and_hash(cls: type[BaseID]) -> None:
    original = cls(b"a" * cls.size())
    for twin in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert type(twin) is cls
        assert twin == original
        assert {original: 1}[twin] == 1


@EACH_CLASS
def test_nil_is_all_bits_set(cls: type[BaseID]) -> None:
    assert cls.nil().binary() == b"\xff" * cls.size()
    assert cls.nil().is_nil()
    assert not cls(bytes(cls.size())).is_nil()


@EACH_CLASS
def test_wrong_length_raises_value_error(cls: type[BaseID]) -> None:
    for make in (cls, cls.from_binary):
        with pytest.raises(ValueError, match="ID string needs to have length"):
            make(b"x" * 40)
    for text in ("", "ab" * 40, "zz" * cls.size()):
        with pytest.raises(ValueError):
            cls.from_hex(text)


@EACH_CLASS
def test_wrong_type_raises_type_error(cls: type[BaseID]) -> None:
    for value in ("x" * cls.size(), None, bytearray(cls.size()), 3):
        with pytest.raises(TypeError):
            cls(value)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cls.from_hex(3)  # type: ignore[arg-type]


@EACH_CLASS
def test_ids_hold_nothing_but_their_bytes(cls: type[BaseID]) -> None:
    with pytest.raises(AttributeError):
        cls.nil().extra = 1  # type: ignore[attr-defined]


def test_repr_is_class_and_hex() -> None:
    assert repr(JOB) == "JobID(01000000)"
    assert str(ActorID.nil()) == "ActorID(" + "f" * 32 + ")"


def test_ids_of_two_classes_differ_even_with_equal_bytes() -> None:
    assert UniqueID.nil() != NodeID.nil()
    assert NodeID.nil() != NodeID.nil().binary()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (JobID(b"a" * 4), 17041092297641430680),
        (JobID.nil(), 6877762905250664532),
        (ActorID(b"a" * 16), 881115505176058736),
        (PlacementGroupID(b"a" * 18), 9910100001441215288),
        (TaskID(b"a" * 24), 5495773166970710377),
        (NodeID(b"a" * 28), 5121548673808443941),
    ],
)
def test_shard_hash_is_the_same_in_every_process(value: BaseID, expected: int) -> None:
    assert value.redis_shard_hash() == expected


def test_job_number_round_trips_little_endian() -> None:
    assert JobID.from_int(258).binary() == b"\x02\x01\0\0"
    assert JobID.from_int(258).int() == 258
    assert JobID.nil().int() == 2**32 - 1


def test_job_number_out_of_range_is_refused() -> None:
    with pytest.raises(AssertionError, match="Maximum JobID"):
        JobID.from_int(2**32)
    with pytest.raises(OverflowError):
        JobID.from_int(-1)


def test_driver_task_is_nil_but_for_the_job() -> None:
    assert DRIVER.hex() == "f" * 40 + "01000000"
    assert DRIVER.job_id() == JOB


def test_normal_task_has_no_actor_but_a_job() -> None:
    task = TaskID.for_normal_task(JOB, DRIVER, 1)
    assert task.actor_id().hex() == "f" * 24 + "01000000"
    assert task.job_id() == JOB


def test_actor_tasks_carry_the_actor() -> None:
    actor = ActorID.of(JOB, DRIVER, 1)
    call = TaskID.for_actor_task(JobID.from_int(2), DRIVER, 2, actor)
    creation = TaskID.for_actor_creation_task(actor)
    assert actor.job_id == JOB
    assert call.actor_id() == actor
    assert call.job_id() == JOB
    assert creation.hex() == "f" * 16 + actor.hex()


def test_derived_ids_depend_on_each_argument_and_nothing_else() -> None:
    other_job, other_task = JobID.from_int(2), TaskID.for_normal_task(JOB, DRIVER, 9)
    made = [
        TaskID.for_normal_task(JOB, DRIVER, 1),
        TaskID.for_normal_task(JOB, DRIVER, 2),
        TaskID.for_normal_task(JOB, other_task, 1),
        TaskID.for_normal_task(other_job, DRIVER, 1),
    ]
    assert len(set(made)) == 4
    assert made[0] == TaskID.for_normal_task(JOB, DRIVER, 1)
    assert ActorID.of(JOB, DRIVER, 1) != ActorID.of(JOB, DRIVER, 2)


def test_object_id_is_its_task_and_a_number() -> None:
    task = TaskID.for_normal_task(JOB, DRIVER, 1)
    made = ObjectID.of(task, 258)
    assert made.hex() == task.hex() + "02010000"
    assert (made.task_id(), made.job_id(), made.index()) == (task, JOB, 258)


def test_nil_ids_have_no_job() -> None:
    with pytest.raises(ValueError, match="TaskID is nil"):
        ObjectID.nil().job_id()
    with pytest.raises(ValueError, match="ActorID is nil"):
        _ = ActorID.nil().job_id
    assert ObjectID.nil().task_id() == TaskID.nil()


def test_random_ids_come_from_the_given_source() -> None:
    def draw(size_bytes: int) -> bytes:
        return b"\x07" * size_bytes

    assert NodeID.from_random(draw) == NodeID(b"\x07" * 28)
    assert ObjectID.from_random(draw).hex() == "07" * 24 + "00000000"
    assert PlacementGroupID.of(JOB, draw).hex() == "07" * 14 + "01000000"
    assert TaskID.for_fake_task(JOB, draw).hex() == "07" * 20 + "01000000"


def test_random_ids_differ() -> None:
    assert NodeID.from_random() != NodeID.from_random()


def test_wrong_kind_of_id_is_refused() -> None:
    with pytest.raises(AssertionError):
        ActorID.of(1, DRIVER, 1)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        PlacementGroupID.of(3)  # type: ignore[arg-type]
