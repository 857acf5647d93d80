"""`python -m rayshim.k8s.testing.localkube`, and `kubectl` on what it starts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rayshim.k8s.api import Kube
from rayshim.k8s.crds import check
from rayshim.k8s.loading import load_platform
from rayshim.k8s.render import render
from rayshim.k8s.testing.localkube.nodes import platform_nodes
from whole_platforms import write_file

pytestmark = pytest.mark.slow

_COMMAND = (sys.executable, "-m", "rayshim.k8s.testing.localkube")


def _refused(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [*_COMMAND, *arguments], capture_output=True, text=True, timeout=30
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_it_has_the_machines_of_a_platform_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    file = write_file(tmp_path)
    process = subprocess.Popen(
        [*_COMMAND, "--platform", str(file)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        with process.stdout as lines:
            config = next(lines).removeprefix("export KUBECONFIG=").strip()
            kube = Kube.load(namespace="default", kubeconfig=config)
            found = {one["metadata"]["name"] for one in kube.list("Node")}
            kube.close()
            assert found == {one.name for one in platform_nodes(load_platform(file))}
            if shutil.which("kubectl"):
                told = subprocess.run(
                    ["kubectl", "get", "nodes", "-o", "name"],
                    env={**os.environ, "KUBECONFIG": config, "HOME": str(tmp_path)},
                    capture_output=True,
                    text=True,
                    timeout=30,
                )
                assert told.returncode == 0, told.stderr
                assert "node/head-0" in told.stdout
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        assert not Path(config).exists()
    finally:
        process.kill()
        process.wait()


def test_what_it_cannot_use_is_named() -> None:
    code, text = _refused("--platform", "nowhere.yaml")
    assert code == 2
    assert "nowhere.yaml" in text
    assert _refused("--port", "99999")[0] == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = _refused("--port", str(port))
    assert code == 1
    assert f"port {port} of 127.0.0.1 is taken" in text


def test_the_platform_of_the_page_is_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/localkube.md").read_text("utf-8")
    file = tmp_path / "platform.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    platform = load_platform(file)
    rendered = render(platform)
    assert not check(rendered.objects)
    kinds = {one["kind"] for one in rendered.objects}
    assert not kinds & {"LocalQueue", "Certificate", "StatefulSet"}
