"""The scheduling strategy for labels over nodes."""

from __future__ import annotations

import pytest

import ray
from failures.placed import GET_LIMIT_S, where
from ray.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeLabelSchedulingStrategy,
    NotIn,
)

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize(
    ("hard", "matches"),
    [
        ({"zone": In("north", "south")}, True),
        ({"zone": Exists()}, True),
        ({"zone": NotIn("north")}, False),
        ({"zone": DoesNotExist()}, False),
    ],
)
def test_the_strategy_for_labels(nodes, hard, matches):
    node = nodes.add(labels={"zone": "north"})
    strategy = NodeLabelSchedulingStrategy(hard=hard)
    ran_on = ray.get(
        where.options(num_cpus=0, scheduling_strategy=strategy).remote(),
        timeout=GET_LIMIT_S,
    )
    assert (ran_on == node.node_id) is matches
