"""Which placement group a task or an actor goes into, by its options and its maker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rayshim._core.options import ActorOptions, TaskOptions
    from rayshim._core.peer import Peer


class LeaseGroup(NamedTuple):
    """The placement group of the lease that this process works on."""

    #: Empty without one.
    group_id: bytes = b""
    #: Calls made from here go there, too.
    capture: bool = False


NO_GROUP = LeaseGroup()
#: Option that was left out.
_DEFAULT = "default"


class GroupPlace(NamedTuple):
    """A placement group, and where in it."""

    #: Empty: none.
    group_id: bytes = b""
    #: -1: any.
    bundle: int = -1
    capture: bool = False


def names_group(options: TaskOptions | ActorOptions) -> bool:
    """Whether the options say anything of placement groups."""
    return (
        hasattr(options.scheduling_strategy, "placement_group")
        or options.placement_group != _DEFAULT
        or options.placement_group_bundle_index != -1
    )


def group_place(
    options: TaskOptions | ActorOptions,
    resources: dict[str, float],
    peer: Peer,
    name: str,
) -> GroupPlace:
    """Where the options say that a call goes.

    A strategy object decides alone. Without a strategy the options ``placement_group``
    do, and if they say nothing, the call stays in the group of its maker if that
    captures its children, or if ``placement_group_capture_child_tasks`` says so.

    Raises:
        ValueError: the bundle index is out of range, or no bundle is large enough.
        TypeError: the group is none, or the index no number.
    """
    from rayshim.util.placement_group import PlacementGroup

    strategy: Any = options.scheduling_strategy
    here = peer.lease_group
    if hasattr(strategy, "placement_group"):
        group: Any = strategy.placement_group
        bundle: Any = strategy.placement_group_bundle_index
        capture = strategy.placement_group_capture_child_tasks
    elif strategy is not None:
        return GroupPlace()
    else:
        group = options.placement_group
        bundle = options.placement_group_bundle_index
        capture = options.placement_group_capture_child_tasks
        if group == _DEFAULT:
            is_captured = here.capture if capture is None else capture
            if bundle == -1 and not is_captured:
                return GroupPlace()
            group = _current(peer) if is_captured else None
    if group is None:
        group = PlacementGroup.empty()
    if not isinstance(group, PlacementGroup):
        raise TypeError(
            f"placement_group must be a PlacementGroup, None or 'default', not "
            f"{group!r}"
        )
    if not isinstance(bundle, int):
        raise TypeError(
            f"placement_group_bundle_index must be a whole number (-1 for any bundle), "
            f"not {bundle!r}"
        )
    check_index(group, bundle)
    if group.is_empty:
        return GroupPlace()
    check_fits(group, bundle, resources, name, _needs_cpu_to_start(options, resources))
    if capture is None:
        capture = here.capture
    return GroupPlace(group.id.binary(), bundle, bool(capture))


def _current(peer: Peer) -> Any:
    """A handle of the group that this process works in, or None."""
    from rayshim.lineage.ids import PlacementGroupID
    from rayshim.util.placement_group import PlacementGroup

    group_id = peer.lease_group.group_id
    if not group_id:
        return None
    specs = peer.group_specs.get(group_id)
    group = PlacementGroup(PlacementGroupID(group_id), specs)
    if specs is None:
        # Bundles never change, and a process sees few groups.
        peer.group_specs[group_id] = group.bundle_specs
    return group


def _needs_cpu_to_start(
    options: TaskOptions | ActorOptions, resources: dict[str, float]
) -> bool:
    """Whether all that is asked for is the CPU of an actor that starts."""
    is_actor = hasattr(options, "max_restarts")
    return is_actor and options.num_cpus is None and resources == {"CPU": 1.0}


def check_index(group: Any, bundle: int) -> None:
    """Refuse an index that the group does not have.

    Raises:
        ValueError: it is out of range.
    """
    if group.is_empty:
        if bundle != -1:
            raise ValueError(
                f"placement group bundle index {bundle} needs a placement group: the "
                "value of bundle index must be -1 without one"
            )
        return
    if bundle == -1:
        return
    count = group.bundle_count
    if bundle < -1 or bundle >= count:
        raise ValueError(
            f"placement group bundle index {bundle} is invalid. Valid placement group "
            f"indexes: 0-{count - 1}, or -1 for any bundle"
        )


def check_fits(
    group: Any,
    bundle: int,
    resources: dict[str, float],
    name: str,
    is_for_start: bool,
) -> None:
    """Refuse what could never run in the group.

    Raises:
        ValueError: no bundle, or not the chosen one, is large enough.
    """
    specs = group.bundle_specs
    if not specs:
        return  # The group is unknown here (any more): the cluster says why.
    if bundle >= 0:
        specs = [specs[bundle]]
    for spec in specs:
        if all(spec.get(key, 0) >= amount for key, amount in resources.items()):
            return
    which = f"bundle {bundle}" if bundle >= 0 else "any bundles"
    if is_for_start:
        raise ValueError(
            f"Cannot schedule {name} with the placement group because the actor "
            f"requires 1 CPU for creation, but it cannot fit into {which} for the "
            f"placement group, {specs}. Add CPUs to its bundles, or give the actor "
            "num_cpus=0"
        )
    raise ValueError(
        f"Cannot schedule {name} with the placement group because the resource request "
        f"{resources} cannot fit into {which} for the placement group, {specs}"
    )
