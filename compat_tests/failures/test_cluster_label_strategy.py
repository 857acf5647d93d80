"""The scheduling strategy for labels over nodes."""

from __future__ import annotations

import pytest

import ray
from failures.placed import GET_LIMIT_S, where
from ray.util import scheduling_strategies as strategies

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ("north", "south"), True),
        ("Exists", (), True),
        ("NotIn", ("north",), False),
        ("DoesNotExist", (), False),
    ],
)
def test_the_strategy_for_labels(nodes, operator, values, matches):
    node = nodes.add(labels={"zone": "north"})
    condition = getattr(strategies, operator)(*values)
    strategy = strategies.NodeLabelSchedulingStrategy(hard={"zone": condition})
    ran_on = ray.get(
        where.options(scheduling_strategy=strategy).remote(), timeout=GET_LIMIT_S
    )
    assert (ran_on == node.node_id) is matches
