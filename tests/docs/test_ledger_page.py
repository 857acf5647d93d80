"""The compatibility page has what the conformance suite's ledger says."""

from __future__ import annotations

import subprocess
import sys

from doc_pages import DOCS


def test_the_table_is_up_to_date() -> None:
    script = DOCS / "generate_ledger.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "run: python docs/generate_ledger.py"
