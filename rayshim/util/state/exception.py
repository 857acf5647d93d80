"""``ray.util.state.exception``."""

from __future__ import annotations


class RayStateApiException(Exception):
    """The state of a cluster could not be asked for, or not in full.

    Args:
        err_msg: what is wrong, and what to do.
    """

    def __init__(self, err_msg: object, *args: object) -> None:
        self.err_msg = err_msg
        super().__init__(str(err_msg), *args)
