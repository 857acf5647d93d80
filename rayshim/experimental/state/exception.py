"""As :mod:`rayshim.util.state.exception`, at its former place."""

from __future__ import annotations

from rayshim.util.state.exception import RayStateApiException as RayStateApiException
