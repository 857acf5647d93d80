"""Which GPUs a call may use, in the words of CUDA.

A lease names *indices*: 0, 1, ... of the GPUs that its node has. Where the node was
started with ``CUDA_VISIBLE_DEVICES``, index ``i`` is the device that this list names at
place ``i``; programs see the device, as text, and indices as numbers otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"
#: Of the resource that a node with GPUs of one type has, before the type.
ACCELERATOR_TYPE = "accelerator_type:"
#: Amount of it that a call with the option ``accelerator_type`` holds.
TYPE_AMOUNT = 0.001
#: What ``get_accelerator_ids`` lists; only GPUs have ids here.
FAMILIES = (
    "GPU",
    "TPU",
    "NPU",
    "HPU",
    "neuron_cores",
    "RBLN",
    "FURIOSA",
    "TTNPU",
    "MBLT",
)


def visible_devices(environment: Mapping[str, str]) -> list[str] | None:
    """The devices that an environment allows; None without a limit."""
    listed = environment.get(VARIABLE)
    if listed is None:
        return None
    if listed == "NoDevFiles":
        return []
    devices = []
    for part in listed.split(","):
        device = part.strip()
        if device == "-1":
            break  # CUDA sees nothing from here on
        if device:
            devices.append(device)
    return devices


def device_ids(
    indices: Sequence[int], visible: Sequence[str] | None
) -> list[int] | list[str]:
    """What a program calls the GPUs of its lease."""
    if visible is None or (indices and max(indices) >= len(visible)):
        return list(indices)
    return [visible[index] for index in indices]
