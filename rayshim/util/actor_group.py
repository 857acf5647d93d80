"""Actors of one class that are called together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import rayshim
from rayshim._core.refs import ObjectRef

__all__ = [
    "ActorConfig",
    "ActorGroup",
    "ActorGroupMethod",
    "ActorMetadata",
    "ActorWrapper",
]


@dataclass(frozen=True)
class ActorMetadata:
    """Where an actor is."""

    node_id: str
    node_ip: str
    hostname: str
    #: Resource name ("GPU", ...) -> ids of the actor's accelerators.
    gpu_ids: dict[str, list[str]]


@dataclass
class ActorWrapper:
    """One actor of a group."""

    actor: Any
    #: Where it is; None until `ActorGroup.actor_metadata` was asked for.
    metadata: ActorMetadata | None


@dataclass
class ActorConfig:
    """What actors of a group are made with."""

    num_cpus: float
    num_gpus: float
    resources: dict[str, float] | None
    init_args: tuple[Any, ...]
    init_kwargs: dict[str, Any]


class ActorGroupMethod:
    """A method of all actors of a group."""

    def __init__(self, actor_group: ActorGroup, method_name: str) -> None:
        self._group = actor_group
        self._name = method_name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "ActorGroup methods cannot be called directly. Instead of running "
            f"'object.{self._name}()', try 'object.{self._name}.remote()'."
        )

    def remote(self, *args: Any, **kwargs: Any) -> list[ObjectRef]:
        """Call the method of each actor; one reference for each, in order."""
        return [
            getattr(wrapper.actor, self._name).remote(*args, **kwargs)
            for wrapper in self._group.actors
        ]


class ActorGroup:
    """Actors of one class; ``group.method.remote()`` calls all of them.

    Args:
        actor_cls: the class, without ``@ray.remote``.
        num_actors: how many, >= 1.
        num_cpus_per_actor: CPUs that each holds, >= 0.
        num_gpus_per_actor: GPUs that each holds, >= 0.
        resources_per_actor: further resources, name -> amount.
        init_args: arguments of the constructor.
        init_kwargs: its keyword arguments.

    Raises:
        ValueError: a number out of range.

    Example:
        >>> import rayshim as ray
        >>> from rayshim.util.actor_group import ActorGroup
        >>> class Greeter:
        ...     def greet(self, name):
        ...         return "hello " + name
        >>> group = ActorGroup(Greeter, num_actors=2)
        >>> ray.get(group.greet.remote("you"))
        ['hello you', 'hello you']
        >>> group.shutdown()
        >>> ray.shutdown()
    """

    def __init__(
        self,
        actor_cls: type,
        num_actors: int = 1,
        num_cpus_per_actor: float = 1,
        num_gpus_per_actor: float = 0,
        resources_per_actor: dict[str, float] | None = None,
        init_args: tuple[Any, ...] | None = None,
        init_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if num_actors <= 0:
            raise ValueError(
                "The provided `num_actors` must be greater than 0. Received "
                f"num_actors={num_actors} instead."
            )
        if num_cpus_per_actor < 0 or num_gpus_per_actor < 0:
            raise ValueError(
                "The number of CPUs and GPUs per actor must not be negative. Received "
                f"num_cpus_per_actor={num_cpus_per_actor} and "
                f"num_gpus_per_actor={num_gpus_per_actor}."
            )
        self.actors: list[ActorWrapper] = []
        self.num_actors = num_actors
        self.actor_config = ActorConfig(
            num_cpus_per_actor,
            num_gpus_per_actor,
            resources_per_actor,
            tuple(init_args or ()),
            dict(init_kwargs or {}),
        )
        self._remote_cls = rayshim.remote(
            num_cpus=num_cpus_per_actor,
            num_gpus=num_gpus_per_actor,
            resources=resources_per_actor,
        )(actor_cls)
        self.start()

    def __getattr__(self, item: str) -> ActorGroupMethod:
        if item.startswith("__") or item == "actors":
            raise AttributeError(item)
        if not self.actors:
            raise RuntimeError(
                "This ActorGroup has been shutdown. Please start it again."
            )
        return ActorGroupMethod(self, item)

    def __len__(self) -> int:
        return len(self.actors)

    def __getitem__(self, item: int) -> ActorWrapper:
        return self.actors[item]

    def __iter__(self) -> Iterator[ActorWrapper]:
        return iter(self.actors)

    @property
    def actor_metadata(self) -> list[ActorMetadata | None]:
        """Where each actor is; waits until all of them run."""
        unknown = [wrapper for wrapper in self.actors if wrapper.metadata is None]
        calls = [wrapper.actor.__ray_call__.remote(_where) for wrapper in unknown]
        for wrapper, metadata in zip(unknown, rayshim.get(calls), strict=True):
            wrapper.metadata = metadata
        return [wrapper.metadata for wrapper in self.actors]

    def start(self) -> None:
        """Start the actors, after `shutdown`.

        Raises:
            RuntimeError: they run already.
        """
        if self.actors:
            raise RuntimeError(
                "The actors have already been started. Please call `shutdown` first if "
                "you want to restart them."
            )
        self.add_actors(self.num_actors)

    def add_actors(self, num_actors: int) -> None:
        """Start more actors."""
        config = self.actor_config
        self.actors += [
            ActorWrapper(
                self._remote_cls.remote(*config.init_args, **config.init_kwargs), None
            )
            for _ in range(num_actors)
        ]

    def remove_actors(self, actor_indexes: list[int]) -> None:
        """Take actors out of the group; they end when nobody else has a handle."""
        removed = set(actor_indexes)
        self.actors = [
            wrapper for index, wrapper in enumerate(self.actors) if index not in removed
        ]

    def shutdown(self, patience_s: float = 5) -> None:
        """End the actors.

        Args:
            patience_s: seconds that calls under way have to end; 0 or less kills the
                actors at once.
        """
        actors = [wrapper.actor for wrapper in self.actors]
        self.actors = []
        left = actors
        if actors and patience_s > 0:
            ends = {actor.__ray_terminate__.remote(): actor for actor in actors}
            _, late = rayshim.wait(
                list(ends), num_returns=len(ends), timeout=patience_s
            )
            left = [ends[ref] for ref in late]
        for actor in left:
            rayshim.kill(actor)


def _where(actor: Any) -> ActorMetadata:
    """Runs in an actor, and tells where it is."""
    import socket

    context = rayshim.get_runtime_context()
    return ActorMetadata(
        node_id=context.get_node_id(),
        node_ip=rayshim.util.get_node_ip_address(),
        hostname=socket.gethostname(),
        gpu_ids=context.get_accelerator_ids(),
    )
