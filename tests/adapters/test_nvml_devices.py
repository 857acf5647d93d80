"""GPUs of the machine: what NVML or ``nvidia-smi`` say, and what is made of it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rayshim._core import gpus, init_options
from rayshim.adapters.nvml import devices
from rayshim.adapters.nvml.devices import Gpu, accelerator_type

NAMES = ("NVIDIA H100 80GB HBM3", "NVIDIA L4")

FAKE_NVML = """
#include <string.h>
static const char *names[] = {"NVIDIA H100 80GB HBM3", "NVIDIA L4"};
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)names[index];
    return 0;
}
int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
    strncpy(name, handle, size);
    return 0;
}
"""


class FakeLibrary:
    """Answers as NVML does; ``broken`` devices give no handle."""

    def __init__(self, *names: str, status: int = 0, broken: int = -1) -> None:
        self.names = names
        self.status = status
        self.broken = broken
        self.is_open = False

    def nvmlInit_v2(self) -> int:
        self.is_open = not self.status
        return self.status

    def nvmlShutdown(self) -> int:
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.names)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 15 if index == self.broken else 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: int) -> int:
        name.value = self.names[handle.value - 1].encode()
        return 0


def test_the_library_is_asked_and_closed() -> None:
    library = FakeLibrary(*NAMES)
    assert devices.ask_library(library) == [Gpu(0, NAMES[0]), Gpu(1, NAMES[1])]
    assert not library.is_open


def test_a_device_that_does_not_answer_is_left_out() -> None:
    assert devices.ask_library(FakeLibrary(*NAMES, broken=0)) == [Gpu(1, NAMES[1])]


def test_a_library_that_does_not_start_is_an_error() -> None:
    with pytest.raises(OSError, match="returned 9"):
        devices.ask_library(FakeLibrary(status=9))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_real_library_is_called_rightly(tmp_path: Path) -> None:
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(FAKE_NVML)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True
    )
    found = devices.ask_library(ctypes.CDLL(str(library)))
    assert [one.name for one in found] == list(NAMES)


def make_tool(folder: Path, script: str) -> str:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return str(tool)


def test_the_tool_is_read(tmp_path: Path) -> None:
    tool = make_tool(tmp_path, "echo '0, NVIDIA L4'; echo '1, NVIDIA L4'")
    assert devices.ask_tool(tool) == [Gpu(0, "NVIDIA L4"), Gpu(1, "NVIDIA L4")]


def test_a_tool_that_fails_counts_as_no_gpu(tmp_path: Path) -> None:
    assert devices.ask_tool(make_tool(tmp_path, "exit 9")) == []


def test_a_machine_without_the_driver_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise AssertionError("asked")

    monkeypatch.setattr(ctypes, "CDLL", fail)
    monkeypatch.setattr(subprocess, "run", fail)
    assert devices.find(str(tmp_path / "none")) == []


def test_the_tool_is_asked_where_there_is_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tool(tmp_path, "echo '0, NVIDIA L4'")
    control = tmp_path / "nvidiactl"
    control.touch()
    monkeypatch.setattr(devices, "LIBRARY", str(tmp_path / "libnone.so"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert devices.find(str(control)) == [Gpu(0, "NVIDIA L4")]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA GeForce RTX 3090", "GeForce-RTX-3090"),
        ("", ""),
    ],
)
def test_the_type_is_the_model(name: str, short: str) -> None:
    assert accelerator_type(name) == short


# What a node has.


@pytest.fixture
def with_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two devices."""
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(init_options, "_GPU_DRIVER", str(driver))
    found = [Gpu(0, NAMES[0]), Gpu(1, NAMES[1])]
    monkeypatch.setattr(devices, "find", lambda: found)
    monkeypatch.delenv(gpus.VARIABLE, raising=False)


def resources(**options: Any) -> dict[str, float]:
    made = init_options.InitOptions.validate(num_cpus=1, **options)
    shown = {**made.resources, **dict.fromkeys(made.labels.values(), 0.0)}
    return {
        name: amount
        for name, amount in shown.items()
        if name not in ("CPU", "memory", "object_store_memory")
    }


@pytest.mark.usefixtures("with_driver")
class TestWithDevices:
    """The machine has an H100 and an L4."""

    def test_all_devices_are_counted_and_the_first_names_the_type(self) -> None:
        assert resources() == {"GPU": 2.0, "accelerator_type:H100": 1.0, "H100": 0.0}

    def test_fewer_may_be_given(self) -> None:
        assert resources(num_gpus=1)["GPU"] == 1.0

    def test_none_may_be_given(self) -> None:
        assert resources(num_gpus=0) == {}

    def test_the_visible_ones_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(gpus.VARIABLE, "1")
        assert resources() == {"GPU": 1.0, "accelerator_type:L4": 1.0, "L4": 0.0}

    def test_devices_may_be_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(gpus.VARIABLE, "GPU-8932f937")
        assert resources()["GPU"] == 1.0

    @pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
    def test_all_may_be_hidden(
        self, value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(gpus.VARIABLE, value)
        assert resources() == {}

    def test_more_than_are_visible_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(gpus.VARIABLE, "0,1")
        with pytest.raises(ValueError, match="names 2 devices: 0,1"):
            resources(num_gpus=3)

    def test_a_label_of_the_user_wins(self) -> None:
        labels = {"ray.io/accelerator-type": "mine"}
        made = init_options.InitOptions.validate(num_cpus=1, labels=labels)
        assert made.labels == labels


def test_logical_gpus_need_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_options, "_GPU_DRIVER", "/nowhere")
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    assert resources(num_gpus=4) == {"GPU": 4.0}
    assert resources() == {}


@pytest.mark.parametrize(
    ("indices", "visible", "ids"),
    [
        ([0, 2], None, [0, 2]),
        ([1], ["3", "5"], ["5"]),
        ([0, 1], ["GPU-a", "GPU-b"], ["GPU-a", "GPU-b"]),
        ([], ["3"], []),
        ([4], ["3"], [4]),
    ],
)
def test_ids_are_what_the_node_sees(
    indices: list[int], visible: list[str] | None, ids: list[Any]
) -> None:
    assert gpus.device_ids(indices, visible) == ids
