"""The segment store in one process."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayshim.adapters.shm import give
from rayshim.adapters.shm import store as store_module
from rayshim.adapters.shm.store import SegmentStore
from rayshim.adapters.wire.messages import Segment

MIB = 1 << 20


def names_in(folder):
    return sorted(p.name for p in Path(folder).iterdir() if p.name != ".views")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    return str(path)


@pytest.fixture
def store(folder):
    made = SegmentStore(folder, node="ab" * 8, address="unix:/w")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_leaked_descriptors():
    before = len(names_in("/proc/self/fd"))
    yield
    gc.collect()
    assert len(names_in("/proc/self/fd")) <= before


def mappings_of(folder):
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(folder in line and "/.views/" not in line for line in lines)


def other(folder):
    """A second store on the folder, as another process would have it."""
    return SegmentStore(folder, node="ab" * 8, address="unix:/other")


def write(store, content, stream=b"stream"):
    return store.write(stream, [memoryview(content)])


def test_what_is_written_is_read(store):
    content = os.urandom(3 * MIB)

    segment = store.write(
        b"abc", [memoryview(content), memoryview(b""), memoryview(b"x")]
    )
    stream, views = store.read(segment, lambda: None)

    assert segment.node == "ab" * 8 and segment.creator == "unix:/w"
    assert segment.layout == [64, 3, 128, 3 * MIB, 128 + 3 * MIB, 0, 128 + 3 * MIB, 1]
    assert bytes(stream) == b"abc"
    assert views[0] == content and bytes(views[1]) == b"" and bytes(views[2]) == b"x"


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=200), st.lists(st.binary(max_size=70_000), max_size=5)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_values_survive_reuse_of_segments(store, values):
    for stream, buffers in values:
        segment = store.write(stream, [memoryview(part) for part in buffers])
        own, own_views = store.read(segment, lambda: None)
        assert bytes(own) == stream
        assert [bytes(view) for view in own_views] == buffers
        del own, own_views
        store.recycle(segment.name)


def test_views_are_read_only_in_creator_and_reader(store, folder):
    segment = write(store, b"x" * MIB)
    reader = other(folder)

    for side in (store, reader):
        stream, views = side.read(segment, lambda: None)
        assert stream.readonly and views[0].readonly
        with pytest.raises(TypeError):
            views[0][0] = 1


def test_files_are_private(store, folder):
    segment = write(store, b"x" * MIB)

    assert stat.S_IMODE(Path(folder, segment.name).stat().st_mode) == 0o600


def test_release_comes_once_after_the_last_view(store):
    released = []
    segment = write(store, b"x" * MIB)

    stream, views = store.read(segment, lambda: released.append(1))
    piece = views[0][10:20]
    del stream, views
    gc.collect()
    assert released == []
    del piece
    assert released == [1]


def test_release_comes_when_the_stream_of_a_bufferless_value_is_dropped(store):
    released = []
    segment = store.write(pickle.dumps("y" * 200_000, 5), [])

    stream, views = store.read(segment, lambda: released.append(1))
    value = pickle.loads(stream)
    del stream

    assert views == [] and value == "y" * 200_000
    assert released == [1]


def test_numpy_arrays_keep_the_view(store):
    np = pytest.importorskip("numpy")
    released = []
    array = np.arange(200_000)
    buffers = []
    stream = pickle.dumps(array, 5, buffer_callback=buffers.append)
    segment = store.write(stream, [part.raw() for part in buffers])

    view, views = store.read(segment, lambda: released.append(1))
    back = pickle.loads(view, buffers=views)
    del view, views
    part = back[5:10].reshape(5, 1)
    assert not back.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        back.flags.writeable = True
    del back
    gc.collect()
    assert released == [] and part[0, 0] == 5
    del part
    assert released == [1]


def test_arrow_buffers_keep_the_view(store):
    pa = pytest.importorskip("pyarrow")
    released = []
    table = pa.table({"a": list(range(50_000)), "s": ["x"] * 50_000})
    buffers = []
    stream = pickle.dumps(table, 5, buffer_callback=buffers.append)
    segment = store.write(stream, [part.raw() for part in buffers])

    view, views = store.read(segment, lambda: released.append(1))
    back = pickle.loads(view, buffers=views)
    del view, views
    column = back["a"].chunk(0)
    del back
    gc.collect()
    assert released == [] and column[7].as_py() == 7
    del column
    gc.collect()
    assert released == [1]


def test_a_cycle_with_a_finalizer_reads_its_view_before_the_release(store):
    released, seen = [], []
    segment = write(store, b"x" * MIB)

    class Node:
        def __del__(self):
            seen.append((list(released), bytes(self.view[:2])))

    node = Node()
    node.view = store.read(segment, lambda: released.append(1))[1][0]
    node.me = node
    del node
    gc.collect()

    assert seen == [([], b"xx")]
    assert released == [1]


def test_recycled_memory_is_used_again_with_its_name(store):
    first = write(store, b"a" * MIB)
    store.recycle(first.name)

    second = write(store, b"b" * (MIB - 5000))

    assert (second.name, second.capacity) == (first.name, first.capacity)
    assert bytes(store.read(second, lambda: None)[1][0]) == b"b" * (MIB - 5000)
    assert store.statistics().recycled_writes == 1


def test_a_live_segment_is_never_used_again(store):
    first = write(store, b"a" * MIB)

    second = write(store, b"b" * MIB)

    assert second.name != first.name
    assert store.read(first, lambda: None)[1][0] == b"a" * MIB


def test_a_larger_value_fills_the_rest_of_a_recycled_file(store, folder):
    first = write(store, b"a" * (MIB - 60_000))
    store.recycle(first.name)

    second = write(store, b"b" * (MIB - 1000))

    assert second.name == first.name
    assert store.read(second, lambda: None)[1][0] == b"b" * (MIB - 1000)


def test_a_reader_sees_the_new_value_through_its_old_mapping(store, folder):
    reader = other(folder)
    first = write(store, b"a" * MIB)
    reader.read(first, lambda: None)
    store.recycle(first.name)

    second = write(store, b"b" * MIB)

    assert reader.read(second, lambda: None)[1][0] == b"b" * MIB
    assert reader.statistics().mappings == 1


def test_recycling_twice_or_a_strange_name_is_ignored(store):
    segment = write(store, b"a" * MIB)

    store.recycle(segment.name)
    store.recycle(segment.name)
    store.recycle("ff-1")

    statistics = store.statistics()
    assert (statistics.live_segments, statistics.free_segments) == (0, 1)
    assert write(store, b"a" * MIB).name != write(store, b"a" * MIB).name


def test_free_segments_are_bounded_and_the_oldest_goes(store, folder, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_FREE_BYTES", 5 * MIB)
    segments = [write(store, b"a" * (2 * MIB)) for _ in range(4)]

    for segment in segments:
        store.recycle(segment.name)

    assert names_in(folder) == sorted(s.name + give.FREE for s in segments[2:])


def test_scarce_memory_is_given_back_at_once(store, folder, monkeypatch):
    segment = write(store, b"a" * MIB)
    monkeypatch.setattr(store._usage, "total_and_available", lambda: (100, 10))

    store.recycle(segment.name)

    assert names_in(folder) == []


def test_discard_removes_a_dead_creators_segment(store, folder):
    reader = other(folder)
    segment = write(store, b"a" * MIB)
    view = reader.read(segment, lambda: None)[1][0]

    reader.discard(segment)
    reader.discard(segment)

    assert names_in(folder) == []
    assert view == b"a" * MIB
    with pytest.raises(FileNotFoundError):
        other(folder).read(segment, lambda: None)


def test_sweep_unmaps_what_its_creator_removed(store, folder):
    reader = other(folder)
    segment = write(store, b"a" * MIB)
    kept = write(store, b"b" * MIB)
    reader.read(segment, lambda: None)
    reader.read(kept, lambda: None)
    assert mappings_of(folder) == 2
    Path(folder, segment.name).unlink()

    assert reader.sweep() == 1
    assert mappings_of(folder) == 1


def test_dropped_mapping_lives_as_long_as_its_views(store, folder):
    reader = other(folder)
    segment = write(store, b"a" * MIB)
    view = reader.read(segment, lambda: None)[1][0]

    reader.drop_mapping(segment.name)
    reader.drop_mapping(segment.name)

    assert mappings_of(folder) == 1 and view[0] == ord("a")
    del view
    assert mappings_of(folder) == 0


def test_mappings_are_bounded(store, folder, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_MAPPINGS", 3)
    reader = other(folder)

    for _ in range(5):
        reader.read(write(store, b"a" * MIB), lambda: None)

    assert reader.statistics().mappings == 3
    assert mappings_of(folder) == 3


def test_foreign_memory_is_bounded(store, folder, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_FOREIGN_BYTES", 5 * MIB)
    reader = other(folder)

    for _ in range(4):
        reader.read(write(store, b"a" * (2 * MIB)), lambda: None)

    assert reader.statistics().mappings == 2


def test_close_keeps_values_and_removes_the_rest(folder):
    store = other(folder)
    kept, freed = write(store, b"a" * MIB), write(store, b"b" * MIB)
    store.recycle(freed.name)

    store.close()

    assert names_in(folder) == [kept.name]
    with pytest.raises(ValueError, match="closed"):
        write(store, b"c" * MIB)
    store.recycle(kept.name)
    assert names_in(folder) == []


@pytest.mark.parametrize("name", ["../x-1", "a/b-1", "", "token"])
def test_names_from_peers_cannot_leave_the_folder(store, name):
    segment = Segment(name, 100, "ab", "unix:/w", [0, 1])

    with pytest.raises(ValueError, match="not a segment"):
        store.read(segment, lambda: None)
    with pytest.raises(ValueError, match="not a segment"):
        store.discard(segment)


def test_a_description_beyond_the_file_is_refused(store):
    segment = write(store, b"a" * MIB)

    with pytest.raises(ValueError, match="not a segment"):
        store.read(
            Segment(
                segment.name, segment.capacity, "ab", "w", [0, segment.capacity + 1]
            ),
            lambda: None,
        )
    with pytest.raises(ValueError, match="announced"):
        store.read(
            Segment(segment.name, 1 << 30, "ab", "w", [0, 1 << 30]), lambda: None
        )


def full_error():
    from rayshim.exceptions import ObjectStoreFullError

    return ObjectStoreFullError


def test_limit_raises_and_leaves_nothing(folder):
    store = SegmentStore(folder, node="ab", address="unix:/w", limit_bytes=5 * MIB)
    kept = write(store, b"a" * (3 * MIB))

    with pytest.raises(full_error(), match=r"2\.5 MiB.*of 5\.0 MiB are free"):
        write(store, b"b" * (2 * MIB + MIB // 2))

    assert names_in(folder) == [kept.name]
    assert store.read(kept, lambda: None)[1][0] == b"a" * (3 * MIB)


def test_limit_counts_other_processes(folder):
    write(other(folder), b"a" * (3 * MIB))
    store = SegmentStore(folder, node="ab", address="unix:/w", limit_bytes=5 * MIB)

    with pytest.raises(full_error()):
        write(store, b"b" * (3 * MIB))


def test_free_segments_make_room_at_the_limit(folder):
    store = SegmentStore(folder, node="ab", address="unix:/w", limit_bytes=5 * MIB)
    first = write(store, b"a" * (3 * MIB))
    store.recycle(first.name)

    second = write(store, b"b" * (4 * MIB + MIB // 2))

    assert names_in(folder) == [second.name]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_file_system_raises_and_leaves_nothing(store, folder, monkeypatch, code):
    real, calls = os.pwrite, []

    def pwrite(fd, data, offset):
        calls.append(offset)
        if len(calls) == 1:
            return real(fd, data[:2], offset)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(full_error(), match=r"cannot store a value of 1\.0 MiB"):
        write(store, b"b" * MIB)

    assert names_in(folder) == []
    assert store.statistics().live_segments == 0


def test_full_file_system_while_growing_a_recycled_file(store, folder, monkeypatch):
    first = write(store, b"a" * (MIB - 60_000))
    store.recycle(first.name)

    def fallocate(fd, offset, size_bytes):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    second = write(store, b"b" * (MIB - 1000))

    assert names_in(folder) == [second.name]
    assert second.name != first.name


def test_an_interrupted_write_leaves_nothing(store, folder, monkeypatch):
    def pwrite(fd, data, offset):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(KeyboardInterrupt):
        write(store, b"b" * MIB)

    assert names_in(folder) == []


def test_threads_never_share_a_segment(store):
    failures = []

    def work(letter):
        content = letter * (MIB // 4)
        for _ in range(60):
            segment = write(store, content)
            view = store.read(segment, lambda: None)[1][0]
            if view != content:
                failures.append(letter)
            del view
            store.recycle(segment.name)

    threads = [threading.Thread(target=work, args=(bytes([65 + i]),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert failures == []
    assert store.statistics().live_segments == 0
    assert store.statistics().fresh_writes <= 4


def test_large_values_are_copied_whole_by_several_threads(store):
    content = os.urandom(MIB) * 33 + b"tail"
    for _ in range(2):
        segment = write(store, content)
        stream, views = store.read(segment, lambda: None)
        assert bytes(stream) == b"stream" and views[0] == content
        del stream, views
        store.recycle(segment.name)

    assert store.statistics().recycled_writes == 1


def test_an_unmapped_segment_is_rewritten_then_mapped(store, folder):
    seen = []
    for letter in b"abcd":
        segment = write(store, bytes([letter]) * MIB)
        seen.append(mappings_of(folder))
        assert other(folder).read(segment, lambda: None)[1][0][-1] == letter
        store.recycle(segment.name)

    assert seen == [0, 0, 1, 1]


def test_a_full_store_takes_the_free_segments_of_other_processes(folder):
    options = {"node": "00", "limit_bytes": 10 * MIB}
    first = SegmentStore(str(folder), address="a", **options)
    second = SegmentStore(str(folder), address="b", **options)
    try:
        first.recycle(write(first, b"a" * (6 * MIB)).name)
        assert write(second, b"b" * (8 * MIB))
        # The first one finds its segment gone and makes another.
        assert write(first, b"c" * MIB)
    finally:
        first.close()
        second.close()


def test_trimming_gives_free_segments_back_by_halves(store, folder):
    for segment in [write(store, b"a" * MIB) for _ in range(4)]:
        store.recycle(segment.name)
    left = []
    while store.has_free():
        store.trim()
        left.append(len(names_in(folder)))
    assert left == [2, 1, 0]
