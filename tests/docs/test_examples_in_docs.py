"""The code of the README and of the first pages runs and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from doc_pages import DOCS, ROOT, blocks

PAGES = [ROOT / "README.md", DOCS / "getting-started.md", DOCS / "utilities.md"]
#: The comment behind a print: its output.
_OUTPUT = re.compile(r"^print\(.*\)  # (.+)$", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks(page.read_text()))
    program = tmp_path / "page.py"
    program.write_text(code)

    ended = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert ended.returncode == 0, ended.stderr
    promised = _OUTPUT.findall(code)
    assert promised
    assert ended.stdout.splitlines() == promised
