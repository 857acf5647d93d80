"""As :mod:`rayshim.util.state.common`, at its former place."""

from __future__ import annotations

from rayshim.util.state.common import *  # noqa: F403
