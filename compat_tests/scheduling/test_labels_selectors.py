"""Label selectors and their fallbacks, over nodes with labels."""

from __future__ import annotations

import pytest
from failures.placed import where

import ray
from scheduling.labelled import LABELS, Member, is_pending

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)

SELECTORS = [
    ({"zone": "north"}, {"north"}),
    ({"zone": "in(north)"}, {"north"}),
    ({"zone": "in(north,south)"}, {"north", "south"}),
    ({"zone": "in(moon,south)"}, {"south"}),
    ({"zone": "!north"}, {"head", "south"}),
    ({"zone": "!in(north,south)"}, {"head"}),
    ({"zone": "!in(north, moon)"}, {"head", "south"}),
    ({"zone": "in(north,south)", "tier": "silver"}, {"south"}),
    ({"zone": "!south", "tier": "!gold"}, {"head"}),
    ({"empty": ""}, {"south"}),
    ({"missing": "!x"}, {"head", "north", "south"}),
    ({}, {"head", "north", "south"}),
]


@pytest.mark.parametrize(("selector", "names"), SELECTORS)
def test_tasks_run_on_nodes_that_match(labelled, selector, names):
    task = where.options(label_selector=selector)
    assert set(labelled.of(*[task.remote() for _ in range(3)])) <= names


@pytest.mark.parametrize(("selector", "names"), SELECTORS)
def test_actors_run_on_nodes_that_match(labelled, selector, names):
    member = Member.options(label_selector=selector).remote()
    assert set(labelled.of(member.node.remote())) <= names


@pytest.mark.parametrize("selector", [{"zone": "moon"}, {"zone": ""}, {"nolabel": "x"}])
def test_what_no_node_matches_waits(labelled, selector):
    ref = where.options(label_selector=selector).remote()
    member = Member.options(label_selector=selector).remote()
    assert is_pending(ref)
    assert is_pending(member.node.remote())
    ray.cancel(ref)
    ray.kill(member)


def test_the_id_of_a_node_is_a_label(labelled):
    selector = {"ray.io/node-id": labelled.ids["south"]}
    task = where.options(label_selector=selector)
    member = Member.options(label_selector=selector).remote()
    assert labelled.of(task.remote(), member.node.remote()) == ["south"] * 2
    others = where.options(
        label_selector={"ray.io/node-id": "!" + labelled.ids["south"]}
    )
    assert "south" not in labelled.of(*[others.remote() for _ in range(3)])


def test_a_full_node_that_matches_is_waited_for(labelled, wait_until):
    full = where.options(num_cpus=2, label_selector={"zone": "north"})
    holder = Member.options(num_cpus=2, label_selector={"zone": "north"}).remote()
    assert labelled.of(holder.node.remote()) == ["north"]
    ref = full.remote()
    assert is_pending(ref)
    ray.kill(holder)
    assert labelled.of(ref) == ["north"]


def test_selectors_and_resources_both_count(labelled):
    ref = where.options(
        label_selector={"zone": "north"}, resources={"south": 1}
    ).remote()
    assert is_pending(ref)
    ray.cancel(ref)


FALLBACKS = [
    ([{"label_selector": {"zone": "south"}}], "south"),
    (
        [{"label_selector": {"zone": "mars"}}, {"label_selector": {"zone": "north"}}],
        "north",
    ),
    ([{"label_selector": {"tier": "in(x,silver)"}}], "south"),
]


@pytest.mark.parametrize(("fallback", "name"), FALLBACKS)
def test_fallbacks_are_tried_in_order(labelled, fallback, name):
    options = {"label_selector": {"zone": "moon"}, "fallback_strategy": fallback}
    member = Member.options(**options).remote()
    ref = where.options(**options).remote()
    assert labelled.of(ref, member.node.remote()) == [name] * 2


def test_the_selector_comes_before_its_fallbacks(labelled):
    task = where.options(
        label_selector={"zone": "south"},
        fallback_strategy=[{"label_selector": {"zone": "north"}}],
    )
    assert labelled.of(*[task.remote() for _ in range(3)]) == ["south"] * 3


def test_fallbacks_that_nothing_matches_wait(labelled):
    ref = where.options(
        label_selector={"zone": "moon"},
        fallback_strategy=[{"label_selector": {"zone": "mars"}}],
    ).remote()
    assert is_pending(ref)
    ray.cancel(ref)


@pytest.mark.parametrize("anything", [{}, None])
def test_a_fallback_may_ask_for_nothing(labelled, anything):
    options = {
        "label_selector": {"zone": "moon"},
        "fallback_strategy": [{"label_selector": anything}],
    }
    member = Member.options(**options).remote()
    ref = where.options(**options).remote()
    assert len(labelled.of(ref, member.node.remote())) == 2


@pytest.mark.parametrize("fallback", [[], [{"label_selector": {"zone": "north"}}]])
def test_fallbacks_alone_restrict_nothing(labelled, fallback):
    task = where.options(resources={"south": 1}, fallback_strategy=fallback)
    assert labelled.of(task.remote()) == ["south"]


def test_spread_stays_among_nodes_that_match(labelled):
    task = where.options(
        scheduling_strategy="SPREAD", label_selector={"zone": "in(north,south)"}
    )
    names = {labelled.of(task.remote())[0] for _ in range(6)}
    assert names == {"north", "south"}


def test_nodes_say_their_labels(labelled):
    shown = {row["NodeID"]: row["Labels"] for row in ray.nodes() if row["Alive"]}
    for name, node_id in labelled.ids.items():
        assert shown[node_id] == {"ray.io/node-id": node_id, **LABELS[name]}


def test_the_runtime_context_says_labels(labelled):
    @ray.remote(num_cpus=0, label_selector={"zone": "north"})
    def labels():
        return ray.get_runtime_context().get_node_labels()

    member = Member.options(label_selector={"zone": "south"}).remote()
    found = ray.get([labels.remote(), member.labels.remote()], timeout=60)
    for name, shown in zip(("north", "south"), found, strict=True):
        assert shown == {"ray.io/node-id": labelled.ids[name], **LABELS[name]}
    here = ray.get_runtime_context().get_node_labels()
    assert here == {"ray.io/node-id": labelled.ids["head"]}


def test_a_node_that_joins_later_is_used(labelled):
    ref = where.options(label_selector={"zone": "later"}).remote()
    member = Member.options(label_selector={"zone": "later"}).remote()
    assert is_pending(ref)
    node = labelled.nodes.add(labels={"zone": "later"})
    assert ray.get([ref, member.node.remote()], timeout=60) == [node.node_id] * 2
    ray.kill(member)
    labelled.nodes.end_of_test()


def test_decorators_take_selectors(labelled):
    @ray.remote(num_cpus=0, label_selector={"zone": "south"})
    def task():
        return ray.get_runtime_context().get_node_id()

    @ray.remote(num_cpus=0, label_selector={"zone": "south"})
    class Actor:
        def node(self):
            return ray.get_runtime_context().get_node_id()

    actor = Actor.remote()
    other = Actor.options(label_selector={"zone": "north"}).remote()
    assert labelled.of(task.remote(), actor.node.remote(), other.node.remote()) == [
        "south",
        "south",
        "north",
    ]
