"""Shapes of TPU slices: chips, hosts and names of a topology.

Source of the numbers: Google Cloud's pages on TPU versions and their topologies.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: Version -> cores of a chip, by which pods of older versions are named.
CORES = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2, "v5litepod": 1, "v6e": 1, "v7x": 2}
#: Versions whose chips form a plane; the others form a cube (v2, v3: larger planes).
_PLANES = ("v5litepod", "v6e")
#: Topologies of one host, where it is not the usual four chips.
_SMALL = {"1x1": 1, "2x4": 8}
#: Chips of a host, unless the topology says otherwise.
CHIPS_PER_HOST = 4
#: Port of the coordinator of several slices, as libtpu expects it.
COORDINATOR_PORT = "8081"


class Shape(NamedTuple):
    """A slice."""

    #: As in ``v6e``.
    version: str
    #: As in ``4x4``.
    topology: str
    chips: int
    chips_per_host: int

    @property
    def hosts(self) -> int:
        """Hosts of the slice."""
        return max(1, self.chips // self.chips_per_host)

    @property
    def pod_type(self) -> str:
        """As the label ``ray.io/tpu-pod-type`` has it."""
        return f"{self.version}-{self.chips * CORES[self.version]}"


def get_tpu_version_from_type(accelerator_type: str) -> str:
    """The version in an accelerator type.

    Args:
        accelerator_type: as in ``TPU-V6E`` or ``v6e``.

    Raises:
        ValueError: it is none.

    Example:
        >>> get_tpu_version_from_type("TPU-V6E")
        'v6e'
    """
    version = accelerator_type.lower().removeprefix("tpu-")
    if version not in CORES:
        raise ValueError(
            f"Invalid accelerator_type: {accelerator_type}. Must be one of "
            f"{list(CORES)} or start with 'TPU-' followed by a valid type."
        )
    return version


def chips_of(topology: str) -> int:
    """Chips of a topology.

    Raises:
        ValueError: it is none.
    """
    try:
        sides = [int(side) for side in topology.lower().split("x")]
    except ValueError:
        sides = []
    if not sides or min(sides) < 1:
        raise ValueError(
            f"Invalid accelerator topology: {topology!r}; write it as 4x4 or 2x2x4"
        )
    return math.prod(sides)


def shape_of(topology: str, version: str, chips_per_host: int | None = None) -> Shape:
    """The slice of a topology.

    Args:
        topology: as in ``4x4``.
        version: as :func:`get_tpu_version_from_type` takes it.
        chips_per_host: chips of each host, where both four and eight are possible.

    Raises:
        ValueError: the version has no such topology.
    """
    version = get_tpu_version_from_type(version)
    chips, name = chips_of(topology), topology.lower()
    dimensions = len(name.split("x"))
    if version in _PLANES:
        is_known = dimensions == 2 and chips <= 256
    elif version in ("v2", "v3"):
        is_known = dimensions == 2 and chips >= 16
    else:
        is_known = dimensions == 3 and chips % CHIPS_PER_HOST == 0
    if not is_known:
        raise ValueError(
            f"Invalid accelerator topology: {topology!r} for accelerator version: "
            f"{version!r}"
        )
    each = chips_per_host or _SMALL.get(name, CHIPS_PER_HOST)
    if chips % each:
        raise ValueError(
            f"a slice of topology {topology} has {chips} chips, which {each} for each "
            "host do not divide; give another chips_per_vm"
        )
    return Shape(version, name, chips, each)


def get_tpu_worker_resources(
    topology: str,
    accelerator_type: str,
    resources_per_worker: dict[str, float] | None = None,
    num_slices: int = 1,
    chips_per_vm: int | None = None,
    tpu_resource_per_chip: float | None = None,
) -> tuple[int, dict[str, float]]:
    """How many workers slices have room for, and what each of them takes.

    Args:
        topology: of a slice, as in ``4x4``.
        accelerator_type: as in ``TPU-V6E``.
        resources_per_worker: what a worker takes; default: one CPU and the chips of a
            host.
        num_slices: how many slices there are.
        chips_per_vm: chips of a host, where both four and eight are possible.
        tpu_resource_per_chip: amount of ``TPU`` that stands for a chip; default 1.

    Returns:
        Number of workers over all slices, and the resources of each.

    Raises:
        ValueError: the chips of the slices cannot be divided so.

    Example:
        >>> get_tpu_worker_resources("4x4", "v6e")
        (4, {'CPU': 1, 'TPU': 4})
    """
    get_tpu_version_from_type(accelerator_type)
    each = chips_per_vm or _SMALL.get(topology.lower(), CHIPS_PER_HOST)
    if "v5lite" not in accelerator_type.lower() and "v6e" not in (
        accelerator_type.lower()
    ):
        each = chips_per_vm or CHIPS_PER_HOST
    scale = tpu_resource_per_chip or 1
    resources = dict(resources_per_worker or {})
    resources.setdefault("CPU", 1)
    resources.setdefault("TPU", each * scale)
    total = chips_of(topology) * num_slices * scale
    wanted = resources["TPU"]
    if wanted <= 0:
        raise ValueError("TPU in resources_per_worker must be above zero.")
    if total % wanted:
        raise ValueError(
            f"Total TPU resources ({total:g}) not divisible by TPUs requested per "
            f"worker ({wanted:g})."
        )
    return int(total // wanted), resources


def get_tpu_num_slices_for_workers(
    topology: str,
    accelerator_type: str,
    num_workers: int,
    resources_per_worker: dict[str, float] | None = None,
    tpu_resource_per_chip: float | None = None,
) -> int:
    """How many slices hold so many workers.

    Args:
        topology: of a slice.
        accelerator_type: as in ``TPU-V6E``.
        num_workers: how many workers there are to be.
        resources_per_worker: as in :func:`get_tpu_worker_resources`.
        tpu_resource_per_chip: amount of ``TPU`` that stands for a chip; default 1.

    Returns:
        At least 1; also when the topology is not divided by a worker's chips.

    Example:
        >>> get_tpu_num_slices_for_workers("2x2x2", "v4", 5, {"TPU": 4})
        3
    """
    if not topology or not accelerator_type:
        return 1
    try:
        workers, _ = get_tpu_worker_resources(
            topology,
            accelerator_type,
            resources_per_worker,
            tpu_resource_per_chip=tpu_resource_per_chip,
        )
    except ValueError:
        return 1
    return max(1, math.ceil(num_workers / workers))


def get_tpu_coordinator_env_vars(
    coordinator_address: str,
    num_slices: int,
    slice_id: int,
    coordinator_port: str = COORDINATOR_PORT,
) -> dict[str, str]:
    """Environment variables by which the hosts of several slices find each other.

    Args:
        coordinator_address: IP of the first slice's first host.
        num_slices: how many slices there are.
        slice_id: number of this one, from 0.
        coordinator_port: TCP port.
    """
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": coordinator_address,
        "MEGASCALE_PORT": coordinator_port,
        "MEGASCALE_NUM_SLICES": str(num_slices),
        "MEGASCALE_SLICE_ID": str(slice_id),
    }
