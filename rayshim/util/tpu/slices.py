"""Placement groups that hold whole slices of TPUs.

A slice is found by its first host: a group of one bundle with the resource
``TPU-<pod type>-head`` reserves it, the label ``ray.io/tpu-slice-name`` of its node
names it, and a second group holds a bundle on each host of that name.
"""

from __future__ import annotations

from typing import Any

from rayshim.util.tpu.nodes import POD_TYPE, SLICE, WORKER
from rayshim.util.tpu.shapes import Shape, shape_of

#: Seconds that the first host of a slice may take to be free.
HEAD_TIMEOUT_S = 100.0


class SlicePlacementGroup:
    """Slices of one topology, reserved as a whole.

    Args:
        topology: as in ``4x4``.
        accelerator_version: as in ``v6e``.
        resources_per_bundle: of each host; default: a CPU and all of its chips.
        strategy: of the group; see :func:`rayshim.util.placement_group`.
        name: of the group.
        lifetime: None, or "detached".
        num_slices: how many slices.
        chips_per_vm: chips of a host, where both four and eight are possible.
        head_reservation_timeout_s: seconds to wait for the first host of each slice.
        bundle_label_selector: labels for each bundle, beside the slice's own.
        pg_per_slice: make a group for each slice.
        tpu_resource_per_chip: amount of ``TPU`` that stands for a chip; default 1.

    Raises:
        ValueError: there is no such topology.
        TimeoutError: no slice of it was free in time.
        RuntimeError: the first host has no label with the name of its slice.
    """

    def __init__(
        self,
        topology: str,
        accelerator_version: str,
        resources_per_bundle: dict[str, float] | None = None,
        strategy: str = "SPREAD",
        name: str = "",
        lifetime: str | None = None,
        num_slices: int = 1,
        chips_per_vm: int | None = None,
        head_reservation_timeout_s: float = HEAD_TIMEOUT_S,
        bundle_label_selector: list[dict[str, str]] | dict[str, str] | None = None,
        pg_per_slice: bool = False,
        tpu_resource_per_chip: float | None = None,
    ) -> None:
        if num_slices < 1:
            raise ValueError(f"num_slices must be at least 1, not {num_slices}")
        self._shape = shape_of(topology, accelerator_version, chips_per_vm)
        self._num_slices = num_slices
        self._per_chip = tpu_resource_per_chip
        default = {
            "CPU": 1.0,
            "TPU": self._shape.chips_per_host * (self._per_chip or 1),
        }
        self._resources = {**default, **(resources_per_bundle or {})}
        self._strategy, self._name, self._lifetime = strategy, name, lifetime
        self._more_labels = bundle_label_selector
        self._heads: list[Any] = []
        self._groups: list[Any] = []
        self._selectors: list[dict[str, str]] = []
        try:
            self._reserve(head_reservation_timeout_s, pg_per_slice)
        except BaseException:
            self.shutdown()
            raise

    def _reserve(self, limit_s: float, each: bool) -> None:
        from rayshim.util.placement_group import placement_group

        hosts = self._shape.hosts
        for _ in range(self._num_slices):
            labels: dict[str, str] = {}
            if hosts > 1:
                labels = {SLICE: self._reserve_head(limit_s)}
            self._selectors += [dict(labels) for _ in range(hosts)]
        for index, selector in enumerate(self._selectors):
            selector.update(self._labels_of(index))
        size = hosts if each else len(self._selectors)
        for start in range(0, len(self._selectors), size):
            name = self._name
            if name and each and self._num_slices > 1:
                name = f"{name}-{start // size}"
            group = placement_group(
                [dict(self._resources) for _ in range(size)],
                strategy=self._strategy,
                name=name,
                lifetime=self._lifetime,
                bundle_label_selector=self._selectors[start : start + size],
            )
            self._groups.append(group)

    def _labels_of(self, index: int) -> dict[str, str]:
        more = self._more_labels
        if more is None:
            return {}
        if isinstance(more, dict):
            return more
        if len(more) != len(self._selectors):
            raise ValueError(
                f"bundle_label_selector has {len(more)} entries for "
                f"{len(self._selectors)} bundles"
            )
        return more[index]

    def _reserve_head(self, limit_s: float) -> str:
        import rayshim
        from rayshim.util.placement_group import placement_group

        shape = self._shape
        labels = {WORKER: "0", POD_TYPE: shape.pod_type}
        head = placement_group(
            [{f"TPU-{shape.pod_type}-head": 1}], bundle_label_selector=[labels]
        )
        self._heads.append(head)
        if not head.wait(limit_s):
            raise TimeoutError(
                f"Failed to reserve TPU head for slice with shape: {shape.pod_type} "
                f"after {limit_s:g} seconds. Ensure your cluster has sufficient "
                f"resources. Requesting TPU head node with labels: {labels}. Current "
                f"resources: {rayshim.available_resources()}"
            )
        name = _label_of(head)
        if not name:
            raise RuntimeError(
                "Failed to retrieve TPU slice name after reserving head placement "
                f"group: its node has no label {SLICE}. Start the nodes of a slice "
                "with that label."
            )
        return name

    @property
    def placement_group(self) -> Any:
        """The group of all slices; the first one with ``pg_per_slice``."""
        return self._groups[0]

    #: Ray's other name of it.
    slice_placement_group = placement_group

    @property
    def slice_placement_groups(self) -> list[Any]:
        """The groups: one, or one for each slice."""
        return list(self._groups)

    @property
    def head_placement_groups(self) -> list[Any]:
        """The groups that hold the slices' first hosts."""
        return list(self._heads)

    @property
    def topology(self) -> str:
        """As in ``4x4``."""
        return self._shape.topology

    @property
    def accelerator_version(self) -> str:
        """As in ``v6e``."""
        return self._shape.version

    @property
    def num_slices(self) -> int:
        """How many slices it holds."""
        return self._num_slices

    @property
    def num_hosts(self) -> int:
        """Hosts of all slices."""
        return self._shape.hosts * self._num_slices

    @property
    def num_bundles(self) -> int:
        """Bundles of all groups: one for each host."""
        return len(self._selectors)

    @property
    def chips_per_host(self) -> int:
        """Chips of each host."""
        return self._shape.chips_per_host

    @property
    def devices_per_host(self) -> int:
        """Devices that a host's programs see: its chips."""
        return self._shape.chips_per_host

    @property
    def tpu_resource_per_chip(self) -> float | None:
        """Amount of ``TPU`` that stands for a chip, as given."""
        return self._per_chip

    @property
    def bundle_resources(self) -> dict[str, float]:
        """Resources of each bundle."""
        return dict(self._resources)

    @property
    def bundle_label_selector(self) -> list[dict[str, str]]:
        """Labels of each bundle's node."""
        return [dict(one) for one in self._selectors]

    def release_head_pgs(self, slice_index: int | None = None) -> None:
        """Let go of the first hosts: the slices' own bundles hold them.

        Args:
            slice_index: of one slice only; default: of all.
        """
        from rayshim.util.placement_group import remove_placement_group

        chosen = self._heads if slice_index is None else [self._heads[slice_index]]
        for head in list(chosen):
            remove_placement_group(head)
            self._heads.remove(head)

    def shutdown(self) -> None:
        """Remove all groups, and with them what runs in them. Idempotent."""
        from rayshim.util.placement_group import remove_placement_group

        for group in [*self._groups, *self._heads]:
            remove_placement_group(group)
        self._groups, self._heads = [], []


def _label_of(group: Any) -> str | None:
    """Name of the slice of the node that holds a group's first bundle."""
    import rayshim
    from rayshim.util.placement_group import placement_group_table

    node_id = placement_group_table(group)["bundles_to_node_id"][0]
    for node in rayshim.nodes():
        if node["NodeID"] == node_id:
            return str(node["Labels"].get(SLICE, "")) or None
    return None


def slice_placement_group(
    topology: str,
    accelerator_version: str,
    resources_per_bundle: dict[str, float] | None = None,
    num_slices: int = 1,
    chips_per_vm: int | None = None,
    pg_per_slice: bool = False,
    tpu_resource_per_chip: float | None = None,
    **kwargs: Any,
) -> SlicePlacementGroup:
    """Reserve slices; parameters and errors as of :class:`SlicePlacementGroup`.

    Example:
        >>> slices = slice_placement_group("4x4", "v6e")  # doctest: +SKIP
        >>> ray.get(slices.placement_group.ready())  # doctest: +SKIP
    """
    return SlicePlacementGroup(
        topology,
        accelerator_version,
        resources_per_bundle,
        num_slices=num_slices,
        chips_per_vm=chips_per_vm,
        pg_per_slice=pg_per_slice,
        tpu_resource_per_chip=tpu_resource_per_chip,
        **kwargs,
    )


def run_on_slice(
    fn: Any,
    *args: Any,
    topology: str | None = None,
    accelerator_version: str | None = None,
    tpu_slice: SlicePlacementGroup | None = None,
    slice_index: int | None = None,
    num_slices: int = 1,
    chips_per_vm: int | None = None,
    head_reservation_timeout_s: float = HEAD_TIMEOUT_S,
    pg_ready_timeout_s: float | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Run a remote function once on every host of a slice.

    Args:
        fn: a remote function; its resources and strategy are replaced.
        args, kwargs: given to each call.
        topology, accelerator_version: of a slice that is reserved for this.
        tpu_slice: a slice that is reserved already.
        slice_index: with ``pg_per_slice``: only on this one.
        num_slices, chips_per_vm, head_reservation_timeout_s: as in
            :class:`SlicePlacementGroup`.
        pg_ready_timeout_s: seconds to wait for all hosts; None: any time.

    Returns:
        A reference for each host.

    Raises:
        TypeError: ``fn`` is no remote function.
        ValueError: neither a slice nor a topology and version are given.
        TimeoutError: the hosts were not free in time.
    """
    if not hasattr(fn, "options"):
        raise TypeError(
            "fn must be a @ray.remote-decorated function, but got "
            f"{type(fn).__name__!r} which has no .options() method."
        )
    if tpu_slice is None and not (topology and accelerator_version):
        raise ValueError(
            "run_on_slice needs tpu_slice, or both topology and accelerator_version."
        )
    used = tpu_slice
    if used is None:
        assert topology and accelerator_version
        used = SlicePlacementGroup(
            topology,
            accelerator_version,
            num_slices=num_slices,
            chips_per_vm=chips_per_vm,
            head_reservation_timeout_s=head_reservation_timeout_s,
        )
    groups = used.slice_placement_groups
    if slice_index is not None:
        if not 0 <= slice_index < len(groups):
            raise ValueError(
                f"slice_index {slice_index} is none of the {len(groups)} groups; "
                "reserve the slices with pg_per_slice=True"
            )
        groups = [groups[slice_index]]
    for group in groups:
        if not group.wait(1e9 if pg_ready_timeout_s is None else pg_ready_timeout_s):
            if tpu_slice is None:
                used.shutdown()
            raise TimeoutError(
                f"the hosts of slice {used.topology} were not free within "
                f"{pg_ready_timeout_s:g} s; rayshim.explain says what they lack"
            )
    if tpu_slice is None:
        used.release_head_pgs()
    return _submit(fn, args, kwargs, groups, used)


def _submit(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    groups: list[Any],
    used: SlicePlacementGroup,
) -> list[Any]:
    from rayshim.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    chips = used.bundle_resources["TPU"]
    refs = []
    for group in groups:
        for index in range(group.bundle_count):
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
            call = fn.options(
                num_cpus=0, resources={"TPU": chips}, scheduling_strategy=strategy
            )
            refs.append(call.remote(*args, **kwargs))
    return refs


def dispatch(*args: Any, **kwargs: Any) -> list[Any]:
    """Old name of :func:`run_on_slice`, with its parameters."""
    import warnings

    warnings.warn(
        "'dispatch' has been renamed to 'run_on_slice'", DeprecationWarning, 2
    )
    return run_on_slice(*args, **kwargs)


def subslice_placement_group(
    subslice_topology: str,
    accelerator_version: str,
    chips_per_vm: int | None = None,
    resources_per_bundle: dict[str, float] | None = None,
    strategy: str = "STRICT_SPREAD",
    name: str = "",
    lifetime: str | None = None,
    head_reservation_timeout_s: float = HEAD_TIMEOUT_S,
    subslice_index: int | None = None,
) -> Any:
    """Reserving a part of a slice is not supported; see :func:`slice_placement_group`.

    Raises:
        NotImplementedError: always; which hosts of a slice are neighbours only
            Google's libtpu knows.
    """
    raise NotImplementedError(
        "subslice_placement_group() is not supported: rayshim does not know which "
        "hosts of a slice are neighbours. Reserve a whole slice of the smaller "
        "topology with slice_placement_group()."
    )


__all__ = [
    "Shape",
    "SlicePlacementGroup",
    "dispatch",
    "run_on_slice",
    "slice_placement_group",
    "subslice_placement_group",
]
