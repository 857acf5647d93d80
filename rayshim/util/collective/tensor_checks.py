"""What operations take."""

from __future__ import annotations

from typing import Any

from rayshim.util.collective.collective_group.base_collective_group import BaseGroup


def check_tensor(tensor: Any) -> None:
    """Refuse what is neither an array nor a tensor.

    Raises:
        RuntimeError: it is something else.
    """
    names = {
        f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        for kind in type(tensor).__mro__
    }
    if not names & {"numpy.ndarray", "torch.Tensor", "torch.TensorBase"}:
        raise RuntimeError(
            f"Unrecognized tensor type '{type(tensor)}'. Supported types are: "
            "np.ndarray, torch.Tensor."
        )


def check_tensors(tensor_list: Any) -> None:
    """Refuse what is no list of arrays or tensors.

    Raises:
        RuntimeError: it is something else, or empty.
    """
    if not isinstance(tensor_list, list):
        raise RuntimeError(
            f"The input must be a list of tensors. Got '{type(tensor_list)}'."
        )
    if not tensor_list:
        raise RuntimeError("Got an empty list of tensors.")
    for tensor in tensor_list:
        check_tensor(tensor)


def check_rank(group: BaseGroup, rank: int) -> None:
    """Refuse a rank that the group does not have.

    Raises:
        ValueError: it is negative or too large.
    """
    if rank < 0:
        raise ValueError(f"rank '{rank}' is negative.")
    if rank >= group.world_size:
        raise ValueError(
            f"rank '{rank}' must be less than world size '{group.world_size}'"
        )
