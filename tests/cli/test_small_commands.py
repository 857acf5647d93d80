"""Commands of few lines, on a session of this process."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import rayshim as ray
from rayshim.cli import open_ports, start
from rayshim.cli.main import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[str]:
    ray.init(num_cpus=1, namespace="default", log_to_driver=False)
    from rayshim._core import session

    assert session.session is not None
    yield f"local:{session.session.name}"
    ray.shutdown()


def test_an_archive_has_logs_and_state_and_no_token(
    session: str, tmp_path: Path
) -> None:
    path = tmp_path / "dump.tar.gz"
    done = CliRunner().invoke(main, ["local-dump", "-o", str(path)])
    assert done.exit_code == 0, done.output
    assert path.stat().st_mode & 0o777 == 0o600
    name = session.removeprefix("local:")
    with tarfile.open(path) as archive:
        names = archive.getnames()
        state = archive.extractfile(f"{name}/state.json")
        assert state is not None
        assert len(json.load(state)["nodes"]) == 1
    assert "packages.json" in names and "processes.json" in names
    assert f"{name}/logs" in names
    assert not [one for one in names if "token" in one or "cluster.json" in one]


def test_other_hosts_are_not_logged_in_to() -> None:
    done = CliRunner().invoke(main, ["cluster-dump", "--host", "a,b"])
    assert done.exit_code == 2
    assert "rayshim local-dump" in done.output


def test_all_processes_collect_their_garbage(session: str) -> None:
    done = CliRunner().invoke(main, ["global-gc", "--address", session])
    assert done.exit_code == 0, done.output
    assert "processes collect their garbage" in done.output


def test_there_are_no_usage_statistics() -> None:
    assert CliRunner().invoke(main, ["disable-usage-stats"]).exit_code == 0
    assert CliRunner().invoke(main, ["enable-usage-stats"]).exit_code == 1


def test_an_actor_that_there_is_not_cannot_be_killed(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["kill-actor", "--name", "a", "--address", "127.0.0.1:1"]
    )
    assert done.exit_code != 0


@pytest.mark.parametrize(
    ("ip", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_loopback_is_known_in_all_its_shapes(ip: str, expected: bool) -> None:
    assert open_ports._is_loopback(ip) is expected


@pytest.mark.parametrize(("ip", "is_far"), [("10.0.0.2", True), ("10.0.0.1", False)])
def test_a_node_is_told_whose_loopback_the_dashboard_is_at(
    ip: str, is_far: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"log_color": "false", "log_style": "auto", "verbose": 0, "block": False}
    facts = {
        "address": "10.0.0.1:6379",
        "is_head": False,
        "pid": 1,
        "dashboard_url": "http://127.0.0.1:8265",
    }
    start._tell(options, facts, SimpleNamespace(node_ip=ip))  # type: ignore[arg-type]
    told = capsys.readouterr().out
    assert ("on 10.0.0.1, which this host cannot reach" in told) is is_far
    assert ("rayshim job submit" in told) is not is_far
