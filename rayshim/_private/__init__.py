"""Names of Ray's inside that libraries use all the same."""

from __future__ import annotations
