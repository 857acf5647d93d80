"""Metrics of applications: counters, gauges and histograms for Prometheus.

They are shown, with ``ray_`` before their names, at the metrics endpoint of the node
whose process counts (``MetricsExportPort`` in ``nodes()``), and at ``/metrics`` of the
dashboard for the whole cluster.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, Self

from rayshim._core.metric_registry import Family, Tags, registry

__all__ = ["Counter", "Gauge", "Histogram", "Metric"]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class Metric:
    """What counters, gauges and histograms have in common.

    Args:
        name: letters, digits, ``_`` and ``:``, no digit first. Another name warns, and
            what is counted under it is shown nowhere.
        description: what it says, for people.
        tag_keys: names of the tags that each value needs, as a tuple.

    Raises:
        TypeError: ``name``, ``description`` or ``tag_keys`` is of the wrong type.
        ValueError: ``name`` is empty, or used for another kind of metric.
    """

    _kind = ""

    def __init__(
        self,
        name: str,
        description: str = "",
        tag_keys: tuple[str, ...] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be str, got {type(name)}.")
        if not name:
            raise ValueError("Empty name is not allowed. Please provide a metric name.")
        if not isinstance(description, str):
            raise TypeError(f"description must be str, got {type(description)}.")
        if tag_keys is not None and not isinstance(tag_keys, tuple):
            raise TypeError(
                f"tag_keys should be a tuple type, got: {type(tag_keys)}; one tag is "
                "written ('tag',)"
            )
        for key in tag_keys or ():
            if not isinstance(key, str):
                raise TypeError(f"Tag keys must be str, got {type(key)}.")
        self._name = name
        self._description = description
        self._tag_keys: tuple[str, ...] = tag_keys or ()
        self._default_tags: dict[str, str] = {}
        self._family: Family | None = None
        if _NAME.fullmatch(name):
            self._family = registry.family(
                name, self._kind, description, self._bounds()
            )
        else:
            warnings.warn(
                f"Invalid metric name: {name}. Metric will be discarded and data will "
                "not be collected or published. Metric names can only contain letters, "
                "numbers, _, and :. Metric names cannot start with numbers.",
                UserWarning,
                stacklevel=3,
            )
        #: Of values without tags of their own; None if they lack some.
        self._plain: Tags | None = None
        self._settle()

    def _bounds(self) -> list[float]:
        return []

    def set_default_tags(self, default_tags: dict[str, str]) -> Self:
        """Give tags values for all that is counted without them.

        Args:
            default_tags: tag -> value.

        Returns:
            The metric itself.

        Raises:
            ValueError: a tag is none of ``tag_keys``.
            TypeError: a value is no text.

        Example:
            >>> requests = Counter("requests", tag_keys=("route",))
            >>> requests.set_default_tags({"route": "/"}).info["default_tags"]
            {'route': '/'}
        """
        for key, value in default_tags.items():
            if key not in self._tag_keys:
                raise ValueError(f"Unrecognized tag key {key}.")
            if not isinstance(value, str):
                raise TypeError(f"Tag values must be str, got {type(value)}.")
        self._default_tags = dict(default_tags)
        self._settle()
        return self

    @property
    def info(self) -> dict[str, Any]:
        """Name, description, tag keys and default tags."""
        return {
            "name": self._name,
            "description": self._description,
            "tag_keys": self._tag_keys,
            "default_tags": self._default_tags,
        }

    def _settle(self) -> None:
        if self._default_tags.keys() >= set(self._tag_keys):
            self._plain = tuple(sorted(self._default_tags.items()))
        else:
            self._plain = None

    def _tags(self, tags: dict[str, str] | None) -> Tags:
        """The tags of one value.

        Raises:
            TypeError: a value is no text.
            ValueError: one of ``tag_keys`` has no value.
        """
        if not tags:
            if self._plain is not None:
                return self._plain
            tags = {}
        for value in tags.values():
            if not isinstance(value, str):
                raise TypeError(f"Tag values must be str, got {type(value)}.")
        merged = {**self._default_tags, **tags}
        missing = [key for key in self._tag_keys if key not in merged]
        if missing:
            raise ValueError(f"Missing value for tag key(s): {','.join(missing)}.")
        return tuple(sorted(merged.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        # A task that uses a driver's metric counts in its own process.
        return _rebuilt, (type(self), self._arguments(), self._default_tags)

    def _arguments(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "description": self._description,
            "tag_keys": self._tag_keys,
        }


def _rebuilt(
    kind: type[Metric], arguments: dict[str, Any], default_tags: dict[str, str]
) -> Metric:
    return kind(**arguments).set_default_tags(default_tags)


def _check_number(value: Any) -> None:
    if not isinstance(value, (int, float)):
        raise TypeError(f"value must be int or float, got {type(value)}.")


class Counter(Metric):
    """A number that only grows, such as of requests.

    Prometheus sees it as ``ray_NAME_total``.

    Args:
        name: see :class:`Metric`.
        description: what it says, for people.
        tag_keys: names of the tags that each value needs, as a tuple.

    Example:
        >>> requests = Counter("requests", description="Requests that came.")
        >>> requests.inc()
    """

    _kind = "counter"

    def inc(self, value: int | float = 1.0, tags: dict[str, str] | None = None) -> None:
        """Raise it.

        Args:
            value: by how much, above 0.
            tags: tag -> value, over the default tags.

        Raises:
            TypeError: ``value`` is no number, or a tag's value no text.
            ValueError: ``value`` is not above 0, or a tag has no value.
        """
        _check_number(value)
        if value <= 0:
            raise ValueError(f"value must be >0, got {value}")
        chosen = self._tags(tags)
        if self._family is not None:
            self._family.add(chosen, value)


class Gauge(Metric):
    """A number that goes up and down, such as the length of a queue.

    Args:
        name: see :class:`Metric`.
        description: what it says, for people.
        tag_keys: names of the tags that each value needs, as a tuple.

    Example:
        >>> waiting = Gauge("waiting", tag_keys=("queue",))
        >>> waiting.set(3, tags={"queue": "fast"})
    """

    _kind = "gauge"

    def set(
        self, value: int | float | None, tags: dict[str, str] | None = None
    ) -> None:
        """Say what it is now.

        Args:
            value: the number; None changes nothing.
            tags: tag -> value, over the default tags.

        Raises:
            TypeError: ``value`` is no number, or a tag's value no text.
            ValueError: a tag has no value.
        """
        if value is None:
            return
        _check_number(value)
        chosen = self._tags(tags)
        if self._family is not None:
            self._family.put(chosen, value)


class Histogram(Metric):
    """How often numbers fall between given bounds, such as seconds of requests.

    Args:
        name: see :class:`Metric`.
        description: what it says, for people.
        boundaries: upper bounds of the buckets, above 0, growing.
        tag_keys: names of the tags that each value needs, as a tuple.

    Raises:
        ValueError: there are no boundaries, or one is not above 0.

    Example:
        >>> seconds = Histogram("seconds", boundaries=[0.1, 1, 10])
        >>> seconds.observe(0.3)
    """

    _kind = "histogram"

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: list[float] | None = None,
        tag_keys: tuple[str, ...] | None = None,
    ) -> None:
        if not boundaries:
            raise ValueError(
                "boundaries argument should be provided when using the Histogram "
                'class. e.g., Histogram("name", boundaries=[1.0, 2.0])'
            )
        for index, bound in enumerate(boundaries):
            if bound <= 0:
                raise ValueError(
                    f"Invalid `boundaries` argument at index {index}, {boundaries}. "
                    "Use positive values for the arguments."
                )
        self.boundaries = boundaries
        super().__init__(name, description, tag_keys)

    def _bounds(self) -> list[float]:
        return sorted({float(bound) for bound in self.boundaries})

    def observe(self, value: int | float, tags: dict[str, str] | None = None) -> None:
        """Count a number.

        Args:
            value: the number.
            tags: tag -> value, over the default tags.

        Raises:
            TypeError: ``value`` is no number, or a tag's value no text.
            ValueError: a tag has no value.
        """
        _check_number(value)
        chosen = self._tags(tags)
        if self._family is not None:
            self._family.observe(chosen, value)

    @property
    def info(self) -> dict[str, Any]:
        """Name, description, tag keys, default tags and boundaries."""
        return {**super().info, "boundaries": self.boundaries}

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "boundaries": self.boundaries}
