"""Counts the NVIDIA GPUs of this machine and names their model.

NVML comes with the driver, so it is asked through ``ctypes``, without a package. Where
it cannot be loaded, ``nvidia-smi`` is asked. A machine without the driver's device file
is known to have none before either is tried, so that looking costs it nothing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

#: There exactly when the driver is loaded.
CONTROL_FILE = "/dev/nvidiactl"
LIBRARY = "libnvidia-ml.so.1"
#: Bytes of a device's name, as NVML asks for.
_NAME_BYTES = 96
#: Seconds that ``nvidia-smi`` may take: it may have to start the driver first.
_SMI_LIMIT_S = 20.0


class Gpu(NamedTuple):
    """One device, by its number as the driver counts."""

    number: int
    #: As the maker writes it, for example ``NVIDIA A100-SXM4-40GB``.
    name: str


def find(control_file: str = CONTROL_FILE) -> list[Gpu]:
    """The GPUs of this machine; empty where there is no driver.

    A driver that does not answer is logged and counts as no GPU.
    """
    if not os.path.exists(control_file):
        return []
    try:
        return ask_library(ctypes.CDLL(LIBRARY))
    except OSError as error:
        logger.debug("%s: %s", LIBRARY, error)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        logger.warning(
            "%s is there, but neither %s nor nvidia-smi answers: no GPU is counted. "
            "Pass num_gpus, or install the driver's tools",
            control_file,
            LIBRARY,
        )
        return []
    return ask_tool(tool)


def ask_library(library: Any) -> list[Gpu]:
    """What NVML says.

    Args:
        library: NVML as loaded by ``ctypes``, or what behaves as it.

    Raises:
        OSError: it cannot be initialised.
    """
    status = library.nvmlInit_v2()
    if status:
        raise OSError(f"nvmlInit_v2 returned {status}")
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        gpus = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            name = ctypes.create_string_buffer(_NAME_BYTES)
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                continue  # it fell off the bus: the others can be used
            if library.nvmlDeviceGetName(handle, name, _NAME_BYTES):
                name.value = b""
            gpus.append(Gpu(index, name.value.decode(errors="replace")))
        return gpus
    finally:
        library.nvmlShutdown()


def ask_tool(tool: str) -> list[Gpu]:
    """What ``nvidia-smi`` says.

    Args:
        tool: its path.
    """
    command = [tool, "--query-gpu=index,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("%s does not answer (%s): no GPU is counted", tool, error)
        return []
    gpus = []
    for line in done.stdout.splitlines():
        index, _, name = line.partition(",")
        if index.strip().isdigit():
            gpus.append(Gpu(int(index), name.strip()))
    return gpus


def accelerator_type(name: str) -> str:
    """The short model of a GPU, as ``accelerator_type`` options name it.

    It is the first word that has a capital letter and a digit; a name without one is
    taken whole.

    Example:
        >>> accelerator_type("NVIDIA A100-SXM4-40GB")
        'A100'
        >>> accelerator_type("Tesla V100-SXM2-16GB")
        'V100'
        >>> accelerator_type("NVIDIA GeForce RTX 3090")
        'GeForce-RTX-3090'
    """
    words = name.removeprefix("NVIDIA ").split()
    for word in " ".join(words).replace("-", " ").split():
        if any(one.isdigit() for one in word) and word[0].isupper():
            return word
    return "-".join(words)
