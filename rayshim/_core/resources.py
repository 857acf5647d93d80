"""From options to what a lease request says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import messages as m

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
        out["memory"] = float(options.memory)
    if options.object_store_memory:
        out["object_store_memory"] = float(options.object_store_memory)
    if options.accelerator_type:
        out[f"accelerator_type:{options.accelerator_type}"] = 0.001
    for name, amount in (options.resources or {}).items():
        if amount:
            out[name] = float(amount)
    return out


def scheduling_of(
    options: TaskOptions | ActorOptions, resources: dict[str, float]
) -> tuple[bytes, int]:
    """The placement group (or empty) and bundle that the options name.

    Raises:
        ValueError: a strategy that is unknown, or one that needs several nodes.
        NotImplementedError: a strategy that this version does not have.
    """
    strategy: Any = options.scheduling_strategy
    group: Any = options.placement_group
    bundle = -1
    if options.placement_group_bundle_index is not None:
        bundle = options.placement_group_bundle_index
    if group in (None, "default"):
        group = None
    if strategy is not None and not isinstance(strategy, str):
        if hasattr(strategy, "placement_group"):
            group = strategy.placement_group
            bundle = strategy.placement_group_bundle_index
            if bundle is None:
                bundle = -1
        elif not hasattr(strategy, "rayshim_reject"):
            raise NotImplementedError(
                f"{type(strategy).__name__} is not supported yet: a session has one "
                "node; leave scheduling_strategy out"
            )
    elif strategy not in (None, "DEFAULT", "SPREAD"):
        raise ValueError(
            f"Invalid scheduling_strategy {strategy!r}; use 'DEFAULT', 'SPREAD' or a "
            "strategy object"
        )
    if options.label_selector or options.fallback_strategy:
        raise NotImplementedError(
            "label_selector and fallback_strategy are not supported yet: a session "
            "has one node; leave them out"
        )
    if group is None:
        from rayshim._core import current

        call = current.call.get()
        if call is not None and call.lease is not None and call.lease.capture_group:
            return bytes(call.lease.placement_group), -1
        return b"", -1
    group._check_request(resources, bundle)
    return group.id.binary(), bundle


def lease_template(
    peer: Peer,
    name: str,
    resources: dict[str, float],
    env_vars: dict[str, str],
    group: bytes,
    bundle: int,
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
        group,
        bundle,
    )
