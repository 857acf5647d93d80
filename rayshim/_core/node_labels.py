"""The labels of a node: what its place says, what its user says, what overrides both.

Ray's names are kept, for labels and for the environment that a provider of machines
sets: ``RAY_NODE_TYPE_NAME`` (node group), ``RAY_NODE_MARKET_TYPE``,
``RAY_NODE_REGION``, ``RAY_NODE_ZONE``, and ``RAY_OVERRIDE_LABELS`` (a JSON object, that
has the last word). Each node has ``ray.io/node-id``, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

OVERRIDE_VARIABLE = "RAY_OVERRIDE_LABELS"
ACCELERATOR_LABEL = "ray.io/accelerator-type"
#: Environment variable -> label.
_FROM_ENVIRONMENT = {
    "RAY_NODE_TYPE_NAME": "ray.io/node-group",
    "RAY_NODE_MARKET_TYPE": "ray.io/market-type",
    "RAY_NODE_REGION": "ray.io/availability-region",
    "RAY_NODE_ZONE": "ray.io/availability-zone",
}


def node_labels(
    wanted: Any, accelerator_type: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """The labels of a node that starts, but for its id.

    Args:
        wanted: what the user gave, a dict of text or None.
        accelerator_type: type of its GPUs, or empty.
        environment: variables of the process that starts it.

    Raises:
        TypeError: ``wanted`` or the override is no dict of text.
        ValueError: the override is no JSON.

    Example:
        >>> node_labels({"a": "b"}, "", {"RAY_NODE_ZONE": "z"})
        {'ray.io/availability-zone': 'z', 'a': 'b'}
    """
    labels = {
        label: environment[variable]
        for variable, label in _FROM_ENVIRONMENT.items()
        if environment.get(variable)
    }
    if accelerator_type:
        labels[ACCELERATOR_LABEL] = accelerator_type
    if wanted is not None:
        labels.update(_checked("labels", wanted))
    text = environment.get(OVERRIDE_VARIABLE)
    if text:
        try:
            override = json.loads(text)
        except ValueError as error:
            raise ValueError(
                f"{OVERRIDE_VARIABLE} is no JSON object of labels: {error}; unset it "
                'or write {"name": "value"}'
            ) from error
        labels.update(_checked(OVERRIDE_VARIABLE, override))
    return labels


def _checked(source: str, labels: Any) -> dict[str, str]:
    if not isinstance(labels, dict):
        raise TypeError(f"{source} must be a dict of text, not {type(labels)}")
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"{source} must map text to text, got {key!r}: {value!r}")
    return labels
