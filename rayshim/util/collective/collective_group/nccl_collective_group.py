"""The name of NCCL: there are no groups of it."""

from __future__ import annotations

from typing import Any, NoReturn

from rayshim.util.collective.collective_group.base_collective_group import BaseGroup
from rayshim.util.collective.types import Backend


class NCCLGroup(BaseGroup):
    """Not available: use "gloo", or NCCL through ``torch.distributed`` yourself."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        self._refuse()

    @classmethod
    def backend(cls) -> str:
        """``"NCCL"``."""
        return Backend.NCCL

    @classmethod
    def check_backend_availability(cls) -> bool:
        """False."""
        return False

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(
            "Backend NCCL is not available: there are no groups of GPUs; use "
            "backend='gloo'"
        )

    allreduce = barrier = reduce = allgather = broadcast = _refuse
    reducescatter = send = recv = _refuse
