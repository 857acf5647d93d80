"""What builders of environments tell, of URIs that let somebody in."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from rayshim.adapters.environments import build


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://me:p@ss@h:9/x.zip: no", "https://***@h:9/x.zip: no"),
        ("git+https://tok@h/x#egg=a", "git+https://***@h/x#egg=a"),
        ("s3://b/x.zip?sig=1&x=.zip'", "s3://b/x.zip?***'"),
        ("me@h, http://h/a@b.zip", "me@h, http://h/a@b.zip"),
    ],
)
def test_users_and_queries_are_left_out(text: str, told: str) -> None:
    assert build.without_secrets(text) == told


def test_neither_lines_nor_errors_nor_files_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "environments"
    (tmp_path / "logs").mkdir()
    order = build.Order(
        {
            "working_dir": "http://me:secret@127.0.0.1:9/x.zip?key=secret",
            "config": {"log_files": ["setup.log", "../outside", "."]},
        },
        {},
        "",
        "",
        str(cache),
        str(tmp_path / "host"),
        1 << 30,
        1.0,
    )
    said = io.BytesIO()
    given = io.BytesIO(msgspec.json.encode(order) + b"\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=given))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=said))
    build.main()
    lines = said.getvalue().decode()
    assert "cannot download http://***@127.0.0.1:9/x.zip?***" in lines
    assert "secret" not in lines + (tmp_path / "logs" / "setup.log").read_text()
    assert not (tmp_path / "outside").exists()
