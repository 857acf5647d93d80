from __future__ import annotations

from rayshim._core.logfold import LogFolder


def test_first_line_is_printed_at_once() -> None:
    assert LogFolder().add("(f pid=1)", "hello", "out", 0) == ["(f pid=1) hello"]


def test_repeats_of_other_processes_become_one_line() -> None:
    folder = LogFolder()
    folder.add("(f pid=1)", "hello", "out", 0)
    for pid in (2, 3, 4):
        assert folder.add(f"(f pid={pid})", "hello", "out", 1) == []
    assert folder.has_pending()
    assert folder.flush(4.9) == []
    (line,) = folder.flush(5)
    assert line.startswith("(f pid=4) hello [repeated 3x across cluster]")
    assert "RAY_DEDUP_LOGS=0" in line
    assert not folder.has_pending()


def test_hint_is_given_once() -> None:
    folder = LogFolder()
    for text in ("a", "b"):
        for pid in (1, 2, 3):
            folder.add(f"(f pid={pid})", text, "out", 0)
    first, second = folder.flush(9)
    assert "RAY_DEDUP_LOGS=0" in first
    assert second == "(f pid=3) b [repeated 2x across cluster]"


def test_one_process_alone_is_not_folded() -> None:
    folder = LogFolder()
    for _ in range(3):
        assert folder.add("(f pid=1)", "hello", "out", 0) == ["(f pid=1) hello"]


def test_first_process_is_folded_too_once_others_join() -> None:
    folder = LogFolder()
    folder.add("(f pid=1)", "hello", "out", 0)
    folder.add("(f pid=2)", "hello", "out", 0)
    assert folder.add("(f pid=1)", "hello", "out", 0) == []


def test_lines_that_differ_in_numbers_are_alike() -> None:
    folder = LogFolder()
    folder.add("(f pid=1)", "step 0 at 0x7f00", "out", 0)
    assert folder.add("(f pid=2)", "step 31 at 0xabcd", "out", 0) == []
    assert folder.flush(5) == ["(f pid=2) step 31 at 0xabcd"]


def test_single_repeat_is_printed_as_it_is() -> None:
    folder = LogFolder()
    folder.add("(f pid=1)", "hello", "out", 0)
    folder.add("(f pid=2)", "hello", "out", 0)
    assert folder.flush(5) == ["(f pid=2) hello"]


def test_streams_and_texts_are_kept_apart() -> None:
    folder = LogFolder()
    folder.add("(f pid=1)", "hello", "out", 0)
    assert folder.add("(f pid=2)", "hello", "err", 0) == ["(f pid=2) hello"]
    assert folder.add("(f pid=2)", "other", "out", 0) == ["(f pid=2) other"]


def test_empty_lines_are_never_folded() -> None:
    folder = LogFolder()
    for pid in (1, 2):
        name = f"(f pid={pid})"
        assert folder.add(name, "", "out", 0) == [f"{name} "]


def test_busy_kind_gives_one_line_for_each_window() -> None:
    folder = LogFolder()
    printed = []
    for second in range(12):
        for pid in (1, 2, 3):
            printed += folder.add(f"(f pid={pid})", "beat", "out", second)
    printed += folder.flush(float("inf"))
    assert [line.partition(" (lines")[0] for line in printed] == [
        "(f pid=1) beat",
        "(f pid=3) beat [repeated 14x across cluster]",
        "(f pid=3) beat [repeated 15x across cluster]",
        "(f pid=3) beat [repeated 6x across cluster]",
    ]


def test_kind_that_pauses_for_a_window_begins_anew() -> None:
    folder = LogFolder()
    folder.add("(f pid=1)", "hello", "out", 0)
    assert folder.add("(f pid=2)", "hello", "out", 5) == ["(f pid=2) hello"]


def test_nothing_is_kept_of_kinds_whose_window_is_over() -> None:
    folder = LogFolder()
    for letter in "abcdef":
        folder.add("(f pid=1)", letter, "out", 0)
    folder.flush(5)
    assert folder._kinds == {}


def test_end_prints_what_is_held_back_and_keeps_nothing() -> None:
    folder = LogFolder()
    folder.add("(f pid=1)", "hello", "out", 0)
    folder.add("(f pid=2)", "hello", "out", 0)
    assert folder.flush(float("inf")) == ["(f pid=2) hello"]
    assert folder._kinds == {}


def test_folding_can_be_turned_off() -> None:
    folder = LogFolder(enabled=False)
    for pid in (1, 2):
        name = f"(f pid={pid})"
        assert folder.add(name, "hello", "out", 0) == [f"{name} hello"]
    assert not folder.has_pending()
