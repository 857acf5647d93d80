"""``ray.autoscaler.sdk``: asking for room ahead of use.

The other functions of Ray's module start and stop clusters on machines of a cloud;
they are not there, and say so when they are called.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from rayshim._core import current
from rayshim._core.label_selectors import check_label_selector

#: Bundles that are asked for at most: each of them has to find a place in each plan.
MAX_BUNDLES = 100_000

__all__ = [
    "bootstrap_config",
    "configure_logging",
    "create_or_update_cluster",
    "fillout_defaults",
    "get_docker_host_mount_location",
    "get_head_node_ip",
    "get_worker_node_ips",
    "register_callback_handler",
    "request_resources",
    "rsync",
    "run_on_cluster",
    "teardown_cluster",
]


def request_resources(
    num_cpus: int | None = None,
    bundles: list[dict[str, float]] | None = None,
    bundle_label_selectors: list[dict[str, str]] | None = None,
) -> None:
    """Have the cluster keep room for this, whether it is used or not.

    An autoscaler starts the nodes that are missing, and does not stop them until the
    next call, which replaces this one; a call without arguments, or with
    ``num_cpus=0``, ends it. Without an autoscaler it is only told to whoever asks.

    Args:
        num_cpus: so many bundles of one CPU.
        bundles: amounts of resources, each of which has to fit on one node.
        bundle_label_selectors: for each bundle the labels of its node.

    Raises:
        RuntimeError: no session is open.
        TypeError: an argument is of another type.
        ValueError: the selectors are not one for each bundle, or have another form; an
            amount is negative or not finite; there are more than 100,000 bundles.

    Example:
        >>> import rayshim as ray
        >>> from rayshim.autoscaler import sdk
        >>> sdk.request_resources(bundles=[{"GPU": 8}])  # doctest: +SKIP
    """
    if current.peer is None:
        raise RuntimeError(
            "Ray is not initialized yet: request_resources() asks the cluster of a "
            "session. Call ray.init() first."
        )
    if num_cpus is not None and not isinstance(num_cpus, int):
        raise TypeError(f"num_cpus should be of type int, not {num_cpus!r}")
    _check_bundles(bundles)
    labels = bundle_label_selectors
    if labels is not None:
        _check_selectors(labels, bundles)
    ones = max(num_cpus or 0, 0)
    count = ones + len(bundles or ())
    if count > MAX_BUNDLES:
        raise ValueError(
            f"request_resources() for {count} bundles: at most {MAX_BUNDLES} can be "
            "planned for; ask for fewer, larger ones"
        )
    wanted = [{"CPU": 1.0}] * ones
    wanted += [{name: float(n) for name, n in one.items()} for one in bundles or ()]
    payload: dict[str, Any] = {"bundles": wanted}
    if labels:
        payload["labels"] = [{}] * ones + list(labels)
    current.peer.request("request_resources", payload)


def _check_bundles(bundles: Any) -> None:
    if bundles is None:
        return
    if not isinstance(bundles, list):
        raise TypeError(f"bundles should be of type List, not {bundles!r}")
    for bundle in bundles:
        if not isinstance(bundle, dict):
            raise TypeError(f"each bundle should be a Dict, not {bundle!r}")
        for name, amount in bundle.items():
            if not isinstance(name, str):
                raise TypeError(f"each bundle key should be str, not {name!r}")
            if not isinstance(amount, int | float):
                raise TypeError(
                    "each bundle value should be a number (int or float), not "
                    f"{amount!r} for {name}"
                )
            if amount < 0 or not math.isfinite(amount):
                raise ValueError(
                    "each bundle value must be at least 0 and finite, not "
                    f"{amount!r} for {name}"
                )


def _check_selectors(selectors: Any, bundles: list[dict[str, float]] | None) -> None:
    if not bundles:
        raise ValueError(
            "`bundles` must be provided when `bundle_label_selectors` is specified"
        )
    if not isinstance(selectors, list) or len(selectors) != len(bundles):
        raise ValueError(
            "`bundle_label_selectors` must be a list with length equal to the number "
            f"of bundles ({len(bundles)}), not {selectors!r}"
        )
    for selector in selectors:
        if not isinstance(selector, dict) or not all(
            isinstance(text, str) for pair in selector.items() for text in pair
        ):
            raise ValueError(
                "Bundle label selector must be a list of dicts of text, such as "
                f'[{{"ray.io/market-type": "spot"}}], not {selector!r}'
            )
        try:
            check_label_selector(selector)
        except ValueError as error:
            raise ValueError(
                "Invalid label selector provided in bundle_label_selectors list. "
                f"Detailed error: '{error}'"
            ) from None


def _refuse(name: str, instead: str) -> NoReturn:
    raise NotImplementedError(
        f"ray.autoscaler.sdk.{name}() is not supported: rayshim starts no machines of "
        f"a cloud; {instead}"
    )


_NODES = (
    "start nodes of this machine with rayshim.cluster_utils.AutoscalingCluster, others "
    "with your platform's tools"
)
_ADDRESSES = "use ray.nodes(), whose rows have the addresses of the cluster's nodes"
_COMMANDS = "use your platform's tools to reach its machines"


def create_or_update_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("create_or_update_cluster", _NODES)


def teardown_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("teardown_cluster", _NODES)


def run_on_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("run_on_cluster", _COMMANDS)


def rsync(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("rsync", _COMMANDS)


def get_head_node_ip(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("get_head_node_ip", _ADDRESSES)


def get_worker_node_ips(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("get_worker_node_ips", _ADDRESSES)


def configure_logging(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("configure_logging", "configure Python's logging instead")


def bootstrap_config(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("bootstrap_config", _NODES)


def fillout_defaults(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("fillout_defaults", _NODES)


def register_callback_handler(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("register_callback_handler", _NODES)


def get_docker_host_mount_location(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported; raises ``NotImplementedError``."""
    _refuse("get_docker_host_mount_location", _COMMANDS)
