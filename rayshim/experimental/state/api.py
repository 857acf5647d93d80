"""As :mod:`rayshim.util.state.api`, at its former place."""

from __future__ import annotations

from rayshim.util.state.api import *  # noqa: F403
from rayshim.util.state.api import StateApiClient as StateApiClient
