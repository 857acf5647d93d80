"""Writes the table of ``compatibility.md`` that the conformance suite's ledger holds.

python docs/generate_ledger.py           write the table
python docs/generate_ledger.py --check   fail if it is not up to date
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "compatibility.md"
LEDGER = DOCS.parent / "compat_tests" / "ledger.toml"
BEGIN = "<!-- ledger: written by docs/generate_ledger.py -->"
END = "<!-- end of the ledger -->"


def table() -> str:
    """The ledger as a table."""
    rows = tomllib.loads(LEDGER.read_text()).get("difference", [])
    lines = ["| case | fails on | why |", "|---|---|---|"]
    for row in sorted(rows, key=lambda one: one["id"]):
        reason = row["reason"].replace("|", "\\|")
        lines.append(f"| `{row['id']}` | {row['fails_on']} | {reason} |")
    return "\n".join(lines)


def page() -> str:
    """The page with that table in its place."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    """Write, or compare."""
    wanted = page()
    if "--check" in sys.argv[1:]:
        return int(wanted != PAGE.read_text())
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
