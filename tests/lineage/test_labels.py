"""Which labels satisfy which selectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim.lineage.labels import both, matches, rank


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("n", ["n"]),
        ("!n", ["s", "", None]),
        ("in(n,s)", ["n", "s"]),
        ("in(n, s)", ["n", "s"]),
        ("!in(n,s)", ["", None]),
        ("", [""]),
        ("*", ["n", "s", ""]),
        ("!*", [None]),
        ("!n&!s", ["", None]),
        ("!n&*", ["s", ""]),
        ("n&s", []),
    ],
)
def test_conditions(text: str, values: list[str | None]) -> None:
    for label in ("n", "s", "", None):
        labels = {} if label is None else {"zone": label}
        assert matches({"zone": text}, labels) is (label in values)


conditions = st.sampled_from(["n", "!n", "in(n,s)", "!in(s,x)", "*", "!*", ""])
selectors = st.dictionaries(st.sampled_from("ab"), conditions)
labels = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["n", "s", "x", ""]))


@given(selectors, selectors, selectors, labels)
def test_both_is_satisfied_where_each_is(
    one: dict[str, str],
    two: dict[str, str],
    three: dict[str, str],
    have: dict[str, str],
) -> None:
    expected = all(matches(each, have) for each in (one, two, three))
    assert matches(both(both(one, two), three), have) is expected


def test_the_first_selector_that_is_satisfied_counts() -> None:
    wanted = [{"zone": "n"}, {"zone": "s"}, {}]
    assert rank(wanted, {"zone": "n"}) == 0
    assert rank(wanted, {"zone": "s"}) == 1
    assert rank(wanted, {}) == 2
    assert rank(wanted[:2], {}) == -1
    assert rank([], {}) == 0
