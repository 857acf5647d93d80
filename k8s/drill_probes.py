"""Work that drills lay on a platform, to see that nothing of it is lost."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from rayshim.adapters.dask.probe_answer import Answer
from rayshim.adapters.wire.tls import Credentials
from rayshim.lineage.demand import NODE_GROUP_LABEL

logger = logging.getLogger(__name__)

#: Where the probe's actors have their names.
NAMESPACE: Final = "rayshim-drill"
#: Seconds that one piece of work takes, and bytes of its result: large enough to lie in
#: a node's store, so that it is lost with the node and has to be made again.
PIECE_S: Final = 0.5
PIECE_BYTES: Final = 200_000
#: Results that are held: each of them has to be there at the end.
HELD: Final = 64
#: Seconds for the first answer on a new connection.
ANEW_S: Final = 2.0


class Probe(Protocol):
    """Work and actors on a platform.

    No method waits for the platform longer than a few seconds: drills ask again.
    ``ConnectionError`` if the head does not answer.
    """

    #: Whether what an actor knows survives the head.
    keeps_state: bool

    def begin_work(
        self, group: str, resources: Mapping[str, float], width: int
    ) -> None:
        """Keeps so many pieces of work going on a group, from then on.

        Args:
            group: name of the group.
            resources: of one piece.
            width: pieces at a time.
        """

    def step(self) -> frozenset[str]:
        """Ids of the nodes that did pieces; follows each done one with another."""

    def finish_work(self, limit_s: float) -> int:
        """Begins no more, and collects what is held.

        Returns:
            How many pieces were done.

        Raises:
            TimeoutError: results are not there within the limit.
            ValueError: one is wrong.
        """

    def begin_actor(self, group: str, *, is_detached: bool) -> None:
        """Starts an actor that counts on a group.

        Args:
            group: name of the group; empty: anywhere.
            is_detached: it has a name, and outlives this process's connection.
        """

    def ask(self) -> Answer | None:
        """The actor's next answer; None while there is none."""

    def leave(self) -> None:
        """Ends the connection; what is detached stays."""

    def ask_anew(self) -> Answer | None:
        """As :meth:`ask` of the detached actor, on a new connection; ends that.

        Raises:
            LookupError: the head answers, and knows no such actor.
        """

    def end(self) -> None:
        """Removes whatever is left of the probe. Idempotent."""


class RayshimProbe:
    """A driver in this process.

    The platform's pods have to reach this process: values that a driver owns are read
    from it.

    Args:
        address: "HOST:PORT" of the head.
        token_path: file with the token.
        tls: files for TLS; None without.

    Raises:
        RuntimeError: this process is a driver already.
    """

    keeps_state = True

    def __init__(
        self, address: str, token_path: str, tls: Credentials | None = None
    ) -> None:
        import rayshim

        if rayshim.is_initialized():
            raise RuntimeError("this process has joined a cluster: shutdown() it first")
        self._address = address
        self._env = {"RAYSHIM_TOKEN_PATH": token_path}
        if tls is not None:
            self._env |= {
                "RAYSHIM_TLS_CA": tls.ca,
                "RAYSHIM_TLS_CERT": tls.cert,
                "RAYSHIM_TLS_KEY": tls.key,
                "RAYSHIM_TLS_NAME": tls.name,
            }
        self._name = f"probe-{os.urandom(4).hex()}"
        self._piece: Any = None
        self._width = 0
        #: Pieces that were begun.
        self._begun = 0
        #: Reference to where a piece is done.
        self._open: list[Any] = []
        #: Number of a piece, and the reference to its result; the newest ones.
        self._held: deque[tuple[int, Any]] = deque(maxlen=HELD)
        self._nodes: set[str] = set()
        self._actor: Any = None
        self._asked: Any = None
        self._is_detached = False

    def begin_work(
        self, group: str, resources: Mapping[str, float], width: int
    ) -> None:
        """See :class:`Probe`."""
        ray = self._joined()

        def piece(number: int, seconds: float, size_bytes: int) -> Any:
            time.sleep(seconds)
            where = ray.get_runtime_context().get_node_id()
            return where, number.to_bytes(8, "little") * (size_bytes // 8)

        self._piece = ray.remote(piece).options(
            **_options(resources),
            num_returns=2,
            max_retries=-1,
            label_selector={NODE_GROUP_LABEL: group},
        )
        self._width = min(width, HELD)
        self.step()

    def step(self) -> frozenset[str]:
        """See :class:`Probe`."""
        ray = self._joined()
        if self._open:
            done, self._open = ray.wait(
                self._open, num_returns=len(self._open), timeout=0
            )
            self._nodes.update(ray.get(done, timeout=10))
        while len(self._open) < self._width:
            where, result = self._piece.remote(self._begun, PIECE_S, PIECE_BYTES)
            self._open.append(where)
            self._held.append((self._begun, result))
            self._begun += 1
        return frozenset(self._nodes)

    def finish_work(self, limit_s: float) -> int:
        """See :class:`Probe`."""
        ray = self._joined()
        self._width = 0
        try:
            results = ray.get([one for _, one in self._held], timeout=limit_s)
        except ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(str(error)) from None
        for (number, _), result in zip(self._held, results, strict=True):
            if result != number.to_bytes(8, "little") * (PIECE_BYTES // 8):
                raise ValueError(f"the result of piece {number} is not what it was")
        return self._begun

    def begin_actor(self, group: str, *, is_detached: bool) -> None:
        """See :class:`Probe`."""
        ray = self._joined()

        class Counter:
            """Counts how often it was asked."""

            def __init__(self) -> None:
                self.count = 0

            def ask(self) -> Any:
                self.count += 1
                where = ray.get_runtime_context().get_node_id()
                return self.count, where, f"{where}:{os.getpid()}"

        options: dict[str, Any] = {
            "num_cpus": 0,
            "max_restarts": -1,
            "max_task_retries": -1,
        }
        if group:
            options["label_selector"] = {NODE_GROUP_LABEL: group}
        if is_detached:
            options |= {
                "name": self._name,
                "namespace": NAMESPACE,
                "lifetime": "detached",
            }
        self._is_detached = is_detached
        self._actor = ray.remote(Counter).options(**options).remote()

    def ask(self) -> Answer | None:
        """See :class:`Probe`."""
        ray = self._joined()
        if self._asked is None:
            self._asked = self._actor.ask.remote()
        done, _ = ray.wait([self._asked], timeout=0.05)
        if not done:
            return None
        asked, self._asked = self._asked, None
        try:
            return Answer(*ray.get(asked, timeout=10))
        except ray.exceptions.RayActorError:
            return None  # it is being restarted; the next question waits for that

    def leave(self) -> None:
        """See :class:`Probe`."""
        import rayshim

        self._actor = self._asked = self._piece = None
        self._open, self._held = [], deque(maxlen=HELD)
        rayshim.shutdown()

    def ask_anew(self) -> Answer | None:
        """See :class:`Probe`."""
        try:
            ray = self._joined()
            actor = ray.get_actor(self._name, NAMESPACE)
            return Answer(*ray.get(actor.ask.remote(), timeout=ANEW_S))
        except (ray_errors().GetTimeoutError, ray_errors().RayActorError):
            return None
        except ValueError as error:
            raise LookupError(f"actor {self._name} is gone: {error}") from error
        finally:
            self.leave()

    def end(self) -> None:
        """See :class:`Probe`."""
        import rayshim

        try:
            if self._is_detached:
                ray = self._joined()
                ray.kill(ray.get_actor(self._name, NAMESPACE))
                self._is_detached = False
        except (ConnectionError, ValueError, ray_errors().RayError) as error:
            logger.warning(
                "actor %s of namespace %s may be left: %s",
                self._name,
                NAMESPACE,
                error,
            )
        finally:
            if rayshim.is_initialized():
                self.leave()

    def _joined(self) -> Any:
        """rayshim, as a driver of the cluster."""
        import rayshim

        if not rayshim.is_initialized():
            with _environment(self._env):
                rayshim.init(
                    self._address,
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    logging_level="ERROR",
                )
        return rayshim


def ray_errors() -> Any:
    """The module of errors, which loads more than a command needs at its start."""
    from rayshim import exceptions

    return exceptions


def _options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Amounts as ``options`` takes them."""
    own = dict(resources)
    found = {"num_cpus": own.pop("CPU", 0), "num_gpus": own.pop("GPU", 0)}
    return {**found, "resources": own} if own else found


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables while a driver starts, which reads them once."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
