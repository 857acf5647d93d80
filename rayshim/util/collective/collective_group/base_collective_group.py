"""What the groups of all backends have in common."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any

from rayshim.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)


class BaseGroup(metaclass=ABCMeta):
    """This process as a member of a group.

    Operations take each tensor in a list of one, as Ray's do, and change it in place.

    Args:
        world_size: number of members.
        rank: number of this one, from 0.
        group_name: name of the group.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        self._world_size = world_size
        self._rank = rank
        self._group_name = group_name

    @property
    def rank(self) -> int:
        """Number of this process in the group."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of processes in the group."""
        return self._world_size

    @property
    def group_name(self) -> str:
        """Name of the group."""
        return self._group_name

    # Not abstract: groups that hold nothing need none.
    def destroy_group(self) -> None:  # noqa: B027
        """Give up what the group holds."""

    @classmethod
    def backend(cls) -> str:
        """Name of the backend."""
        raise NotImplementedError(f"{cls.__name__} does not say its backend")

    @classmethod
    @abstractmethod
    def check_backend_availability(cls) -> bool:
        """Whether the backend can be used in this process."""

    @abstractmethod
    def allreduce(
        self,
        tensor: list[Any],
        allreduce_options: AllReduceOptions = AllReduceOptions(),  # noqa: B008
    ) -> None:
        """Reduce the tensors of all; all get the result."""

    @abstractmethod
    def barrier(
        self,
        barrier_options: BarrierOptions = BarrierOptions(),  # noqa: B008
    ) -> None:
        """Wait until all are here."""

    @abstractmethod
    def reduce(
        self,
        tensor: list[Any],
        reduce_options: ReduceOptions = ReduceOptions(),  # noqa: B008
    ) -> None:
        """Reduce the tensors of all; the root gets the result."""

    @abstractmethod
    def allgather(
        self,
        tensor_list: list[list[Any]],
        tensor: list[Any],
        allgather_options: AllGatherOptions = AllGatherOptions(),  # noqa: B008
    ) -> None:
        """Give all the tensors of all."""

    @abstractmethod
    def broadcast(
        self,
        tensor: list[Any],
        broadcast_options: BroadcastOptions = BroadcastOptions(),  # noqa: B008
    ) -> None:
        """Give all the tensor of the root."""

    @abstractmethod
    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        reducescatter_options: ReduceScatterOptions = ReduceScatterOptions(),  # noqa: B008
    ) -> None:
        """Reduce the lists of all; each gets the tensor of its rank."""

    @abstractmethod
    def send(self, tensor: list[Any], send_options: SendOptions) -> None:
        """Send a tensor to another member."""

    @abstractmethod
    def recv(self, tensor: list[Any], recv_options: RecvOptions) -> None:
        """Fill a tensor with what another member sends."""
