"""What a node process makes of its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node_process import NodeProcess
from rayshim.adapters.raylet.config import NodeConfig


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    """The least that a head needs, with a token that others may read."""
    token = tmp_path / "token"
    token.write_text("00" * 32)
    token.chmod(0o640)
    return {
        "session": "s",
        "session_dir": str(tmp_path),
        "node_id": "ab" * 28,
        "token_path": str(token),
        "with_raylet": False,
        "listen_ip": "127.0.0.1",
    }


def test_nobody_listens_whose_token_others_can_read(values: dict[str, Any]) -> None:
    with pytest.raises(PermissionError, match=r"mode 640 .*must be this user's"):
        NodeConfig(values).bind()
    Path(values["token_path"]).chmod(0o600)
    sock = NodeConfig(values).bind()
    assert sock is not None
    sock.close()


def test_sessions_of_one_host_listen_at_no_address(values: dict[str, Any]) -> None:
    assert NodeConfig({**values, "listen_ip": ""}).bind() is None


def test_a_process_that_may_not_listen_says_why(values: dict[str, Any]) -> None:
    values.pop("session_dir")
    with NodeProcess(**{**values, "listen_ip": "0.0.0.0", "resources": {}}) as process:
        assert process.ready["error"].startswith("PermissionError: the token file ")
        assert process.process.wait(10) == 1
