"""Why no node takes a request or a placement group: kinds, numbers, what would help."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim.lineage.bundle_placement import Needs
from rayshim.lineage.explain_nodes import (
    NodeView,
    Wanted,
    group_reasons,
    lacks,
    request_reasons,
)
from rayshim.lineage.placement import fits
from rayshim.lineage.reasons import KINDS, Explanation, Reason, merged
from rayshim.lineage.resources import to_units

SMALL = NodeView(
    "a" * 56, "10.0.0.1", "ALIVE", to_units({"CPU": 2}), {}, {"zone": "east"}
)
LARGE = NodeView(
    "b" * 56,
    "10.0.0.2",
    "ALIVE",
    to_units({"CPU": 8, "GPU": 1}),
    to_units({"CPU": 3}),
    {"zone": "west"},
)


def wanted(need: dict[str, float], **options: object) -> Wanted:
    return Wanted("f", to_units(need), 2.0, **options)  # type: ignore[arg-type]  # fields by name


def only(reasons: list[Reason]) -> Reason:
    (reason,) = reasons
    assert reason.kind in KINDS
    return reason


def test_busy_nodes_are_named_with_what_is_free() -> None:
    reason = only(request_reasons(wanted({"CPU": 4}), [SMALL, LARGE]))
    assert reason.kind == "resources"
    assert "node bbbbbbbb (10.0.0.2) has free {CPU: 3} of {CPU: 8}" in reason.text
    assert reason.numbers["needed"] == {"CPU": 4}


def test_infeasible_names_the_nearest_node_and_what_it_lacks() -> None:
    reason = only(request_reasons(wanted({"CPU": 4, "GPU": 2}), [SMALL, LARGE]))
    assert reason.kind == "infeasible"
    assert reason.numbers["nearest"] == LARGE.node_id
    assert reason.numbers["lacking"] == {"GPU": 1}
    assert "ask for {GPU: 1} less" in reason.remedy
    none = only(request_reasons(wanted({"CPU": 1, "GPU": 1}), [SMALL]))
    assert none.remedy == "start a node with {CPU: 1, GPU: 1}"


def test_labels_that_no_node_has_are_told_with_those_there_are() -> None:
    selector = {"zone": "north"}
    reason = only(
        request_reasons(wanted({"CPU": 1}, selectors=[selector]), [SMALL, LARGE])
    )
    assert reason.kind == "labels"
    assert "zone is east or west" in reason.text
    selector = {"disk": "fast"}
    reason = only(request_reasons(wanted({"CPU": 1}, selectors=[selector]), [SMALL]))
    assert "no node has disk" in reason.text


def test_labels_leave_only_some_nodes_to_look_at() -> None:
    asked = wanted({"GPU": 1}, selectors=[{"zone": "east"}])
    assert only(request_reasons(asked, [SMALL, LARGE])).kind == "infeasible"


def test_dead_node_that_must_be_taken() -> None:
    asked = wanted({"CPU": 1}, nodes=["c" * 56], is_soft=False)
    reason = only(request_reasons(asked, [SMALL, LARGE]))
    assert reason.kind == "affinity"
    assert "soft=True" in reason.remedy


@pytest.mark.parametrize("state", ["SUSPECT", "LEAVING"])
def test_node_that_gets_no_new_work(state: str) -> None:
    reason = only(request_reasons(wanted({"GPU": 1}), [LARGE._replace(state=state)]))
    assert reason.kind == "node"
    assert reason.numbers["states"] == {LARGE.node_id: state}


def test_cluster_without_nodes() -> None:
    assert only(request_reasons(wanted({"CPU": 1}), [])).kind == "infeasible"


def group(
    strategy: str,
    *bundles: dict[str, float],
    selectors: dict[int, dict[str, str]] | None = None,
    topology: str = "",
) -> list[Reason]:
    missing = {index: to_units(bundle) for index, bundle in enumerate(bundles)}
    return group_reasons(
        Needs(missing, strategy, selectors or {}, topology),
        [SMALL, LARGE],
        count=len(bundles),
        places={},
        waited_s=1.0,
    )


def test_bundle_that_fits_nowhere_is_named() -> None:
    reason = only(group("PACK", {"CPU": 1}, {"GPU": 3}))
    assert reason.kind == "infeasible"
    assert "bundle 1 needs {GPU: 3}" in reason.text


def test_strict_spread_over_too_few_nodes() -> None:
    reason = only(group("STRICT_SPREAD", *[{"CPU": 1}] * 3))
    assert reason.kind == "infeasible"
    assert "2 nodes are there" in reason.text


def test_strict_pack_of_more_than_a_node_has() -> None:
    reason = only(group("STRICT_PACK", {"CPU": 5}, {"CPU": 5}))
    assert reason.kind == "infeasible"
    assert "one node with room for all" in reason.text


def test_bundle_whose_labels_no_node_has() -> None:
    reason = only(group("PACK", {"CPU": 1}, selectors={0: {"zone": "moon"}}))
    assert reason.kind == "labels"
    assert "{'zone': 'moon'}" in reason.text


def test_bundles_whose_topology_no_node_has() -> None:
    reason = only(group("SPREAD", {"CPU": 1}, topology="rack"))
    assert reason.kind == "infeasible"
    assert "one value of the label rack" in reason.text


def test_bundle_that_others_hold_up() -> None:
    reason = only(group("PACK", {"CPU": 1}, {"CPU": 4}))
    assert reason.kind == "resources"
    assert reason.numbers["bundle"] == 1


def test_bundles_that_fit_one_by_one_and_not_together() -> None:
    reason = only(group("PACK", {"CPU": 3}, {"CPU": 3}))
    assert reason.kind == "resources"
    assert "do not fit together now" in reason.text


amounts = st.dictionaries(
    st.sampled_from(["CPU", "GPU", "x"]), st.integers(1, 9), max_size=3
)


@given(st.lists(st.tuples(amounts, amounts), max_size=4), amounts)
def test_infeasible_exactly_when_no_node_could_take_it(
    nodes: list[tuple[dict[str, int], dict[str, int]]], need: dict[str, int]
) -> None:
    views = [
        NodeView(f"{n:056d}", "ip", "ALIVE", total, free)
        for n, (total, free) in enumerate(nodes)
    ]
    reason = only(request_reasons(Wanted("f", need, 0.0), views))
    is_able = any(fits(need, view.total) for view in views)
    assert (reason.kind == "infeasible") == (not is_able)
    if reason.kind == "infeasible" and views:
        nearest = next(v for v in views if v.node_id == reason.numbers["nearest"])
        short = lacks(need, nearest.total)
        assert len(short) == min(len(lacks(need, view.total)) for view in views)


def test_explanation_reads_as_a_sentence_or_a_list() -> None:
    first = Reason("queued", "2 are ahead", {"ahead": 2})
    second = Reason("infeasible", "needs {CPU: 9}", {}, "ask for less")
    assert str(Explanation("task f", "ready")) == "task f is ready."
    assert str(Explanation("task f", "waiting", (first,))) == (
        "task f is waiting: 2 are ahead."
    )
    whole = Explanation("task f", "waiting", (first, second))
    assert str(whole).splitlines() == [
        "task f is waiting:",
        "  1. 2 are ahead",
        "  2. needs {CPU: 9} (ask for less)",
    ]
    assert whole.sentence(1) == "task f: 2 are ahead."
    assert whole.is_infeasible
    assert whole.kinds == ("queued", "infeasible")


def test_explanation_survives_its_way_over_a_channel() -> None:
    reason = Reason("resources", "text", {"free": {"CPU": 1.5}, "waited_s": 2.0})
    whole = Explanation("task f", "waiting", (reason,))
    data = msgspec.msgpack.encode([whole])
    assert msgspec.msgpack.decode(data, type=list[Explanation]) == [whole]
    assert merged([reason, reason]) == (reason,)
