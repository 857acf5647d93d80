"""From options to what a lease request says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rayshim._core.gpus import ACCELERATOR_TYPE, TYPE_AMOUNT
from rayshim._core.group_places import NO_GROUP, group_place, names_group
from rayshim.adapters.wire import messages as m
from rayshim.lineage.labels import both, matches

if TYPE_CHECKING:
    from rayshim._core.options import ActorOptions, TaskOptions
    from rayshim._core.peer import Peer


def resources_of(
    options: TaskOptions | ActorOptions, default_cpus: float
) -> dict[str, float]:
    """Resource name -> amount that the options ask for.

    Raises:
        ValueError: a fractional GPU count above 1.
    """
    out: dict[str, float] = {}
    cpus = default_cpus if options.num_cpus is None else float(options.num_cpus)
    if cpus:
        out["CPU"] = cpus
    if options.num_gpus:
        gpus = float(options.num_gpus)
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(
                f"num_gpus is {gpus:g}: GPUs above 1 must be whole numbers, since a "
                "call cannot have a part of a second one"
            )
        out["GPU"] = gpus
    if options.memory:
        out["memory"] = float(int(options.memory))  # whole bytes
    if options.object_store_memory:
        out["object_store_memory"] = float(options.object_store_memory)
    if options.accelerator_type:
        out[ACCELERATOR_TYPE + options.accelerator_type] = TYPE_AMOUNT
    for name, amount in (options.resources or {}).items():
        if amount:
            out[name] = float(amount)
    return out


def actor_resources(
    options: ActorOptions,
) -> tuple[dict[str, float], dict[str, float]]:
    """What an actor needs to be placed, and what it holds for life.

    As in Ray: an actor whose options name no CPUs, GPUs or resources of another kind
    needs a CPU to be placed and holds none; with any of them (an amount of zero, too)
    it holds a CPU unless ``num_cpus`` says otherwise. ``memory`` does not count.

    Raises:
        ValueError: as of :func:`resources_of`.
    """
    is_plain = (
        options.num_cpus is None
        and options.num_gpus is None
        and not options.resources
        and not options.accelerator_type
    )
    held = resources_of(options, default_cpus=0.0 if is_plain else 1.0)
    return ({"CPU": 1.0, **held} if is_plain else held), held


class Place(NamedTuple):
    """Where a call may run."""

    #: Placement group id, or empty, and the bundle in it (-1: any).
    group: bytes = b""
    bundle: int = -1
    #: Calls made from inside go into the same group.
    capture: bool = False
    #: Why it can never run, or empty.
    reject: str = ""
    #: Hex ids of nodes to choose from, and whether others will do.
    nodes: tuple[str, ...] = ()
    soft: bool = True
    #: "", "SPREAD" or what :mod:`rayshim.lineage.affinity` names.
    strategy: str = ""
    #: Label selectors in order of preference.
    labels: tuple[dict[str, str], ...] = ()


def place_of(
    options: TaskOptions | ActorOptions,
    resources: dict[str, float],
    peer: Peer,
    name: str = "",
) -> Place:
    """Where the options say that a call runs.

    In a session on one node, a label selector that the node does not match becomes a
    resource that it does not have, so that the call waits and says what for.

    Raises:
        ValueError: a strategy that is unknown, or a request that fits no bundle.
    """
    strategy: Any = options.scheduling_strategy
    reject, kind = "", ""
    nodes: tuple[str, ...] = ()
    soft = True
    if strategy is None or isinstance(strategy, str):
        if strategy not in (None, "DEFAULT", "SPREAD"):
            raise ValueError(
                f"Invalid scheduling_strategy {strategy!r}; use 'DEFAULT', 'SPREAD' "
                "or a strategy object"
            )
        if strategy == "SPREAD" and peer.control_address:
            kind = strategy
    elif hasattr(strategy, "rayshim_reject"):
        known = peer.nodes.alive_ids() or [peer.node_id]
        reject = strategy.rayshim_reject(known)
        if strategy.node_id.lower() in known:
            nodes, soft = (strategy.node_id.lower(),), bool(strategy.soft)
            kind = strategy.rayshim_kind()
    elif not (
        hasattr(strategy, "rayshim_labels") or hasattr(strategy, "placement_group")
    ):
        raise ValueError(
            f"Invalid scheduling_strategy of type {type(strategy).__name__}; use "
            "'DEFAULT', 'SPREAD' or a strategy of ray.util.scheduling_strategies"
        )
    labels = _select_labels(options, strategy, resources, peer)
    if peer.lease_group is not NO_GROUP or names_group(options):
        group_id, bundle, capture = group_place(options, resources, peer, name)
        if group_id:
            return Place(group_id, bundle, capture, reject)
    return Place(reject=reject, nodes=nodes, soft=soft, strategy=kind, labels=labels)


def _select_labels(
    options: TaskOptions | ActorOptions,
    strategy: Any,
    resources: dict[str, float],
    peer: Peer,
) -> tuple[dict[str, str], ...]:
    wanted: Any = options.label_selector
    selectors: list[dict[str, str]] = []
    if hasattr(strategy, "rayshim_labels"):
        selectors = list(strategy.rayshim_labels())
        wanted = wanted or selectors[-1]
        if options.label_selector:
            selectors = [both(one, options.label_selector) for one in selectors]
    elif wanted:
        selectors = [wanted]
    if not selectors:
        return ()
    selectors += [
        choice.get("label_selector") or {} for choice in options.fallback_strategy or ()
    ]
    if peer.control_address:
        return tuple(selectors)
    if not any(matches(selector, peer.labels) for selector in selectors):
        text = ", ".join(f"{key}={value}" for key, value in wanted.items())
        resources[f"label_selector {text}"] = 0.0001
    return ()


def lease_template(
    peer: Peer,
    name: str,
    resources: dict[str, float],
    env_vars: dict[str, str],
    place: Place,
    runtime_env: str = "",
) -> m.RequestLease:
    """A lease request without an id, for one scheduling class."""
    amounts = ", ".join(f"{key}: {value:g}" for key, value in resources.items())
    return m.RequestLease(
        b"",
        peer.job_id,
        f"{name} {{{amounts}}}",
        resources,
        {**peer.job_env, **env_vars},
        0,
        place.group,
        place.bundle,
        place.capture,
        0,
        list(place.nodes),
        place.soft,
        place.strategy,
        labels=list(place.labels),
        runtime_env=runtime_env,
    )
