"""Quantities of named resources, exact to 1/10000, and who holds which GPU.

Amounts are integers in units of 1/10000, so that a thousand leases of 0.1 CPU
give back exactly what they took (Ray's documentation names the same precision).
Two rules always hold:

- ``available + every allocation in force == total`` for every resource.
  ``available`` of CPU may be below zero while a call that gave its CPU back in
  ``get`` has taken it again; nothing that needs CPU is granted meanwhile.
- A GPU index is shared only by fractions that sum to at most one; a request for
  whole GPUs gets indices that nobody else holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: Units of one whole resource.
UNITS = 10_000
CPU = "CPU"
GPU = "GPU"

Units = dict[str, int]


def to_units(amounts: Mapping[str, float]) -> Units:
    """Amounts in units, without the resources of which nothing is asked."""
    return {
        name: units
        for name, amount in amounts.items()
        if (units := round(amount * UNITS)) != 0
    }


def to_amounts(units: Mapping[str, int]) -> dict[str, float]:
    """The inverse of :func:`to_units`."""
    return {name: count / UNITS for name, count in units.items()}


def describe(units: Mapping[str, int]) -> str:
    """Text such as ``{CPU: 1, GPU: 0.5}``."""
    parts = (f"{name}: {count / UNITS:g}" for name, count in units.items())
    return "{" + ", ".join(parts) + "}"


class Allocation:
    """What one lease or bundle holds of a :class:`ResourceSet`."""

    __slots__ = ("gpus", "lent_cpu", "units")

    def __init__(self, units: Units, gpus: dict[int, int]) -> None:
        #: Resource name -> units held, > 0.
        self.units = units
        #: GPU index -> units held of it; sums to ``units["GPU"]``.
        self.gpus = gpus
        #: Units of CPU given back while the holder waits; <= ``units["CPU"]``.
        self.lent_cpu = 0

    @property
    def gpu_ids(self) -> list[int]:
        """Logical GPU indices, ascending."""
        return sorted(self.gpus)


class ResourceSet:
    """The resources of a node or of one placement group bundle.

    Args:
        total: Resource name -> units.
        gpus: GPU index -> units of it that belong to this set; by default the
            indices 0, 1, ... for all of ``total["GPU"]``.
    """

    __slots__ = ("available", "gpus_free", "total")

    def __init__(
        self, total: Mapping[str, int], gpus: Mapping[int, int] | None = None
    ) -> None:
        #: Resource name -> units that exist.
        self.total: Units = dict(total)
        #: Resource name -> units that nobody holds; below zero for CPU only.
        self.available: Units = dict(total)
        if gpus is None:
            whole, rest = divmod(self.total.get(GPU, 0), UNITS)
            gpus = dict.fromkeys(range(whole), UNITS)
            if rest:
                gpus[whole] = rest
        #: GPU index -> units of it that nobody holds.
        self.gpus_free: dict[int, int] = dict(gpus)

    def is_feasible(self, need: Mapping[str, int]) -> bool:
        """Whether ``need`` would fit if nobody held anything."""
        total = self.total
        return all(total.get(name, 0) >= units for name, units in need.items())

    def missing(self, need: Mapping[str, int]) -> Units:
        """Units by which each scarce resource falls short of ``need``."""
        available = self.available
        short = {
            name: units - available.get(name, 0)
            for name, units in need.items()
            if available.get(name, 0) < units
        }
        if not short and GPU in need and self._choose_gpus(need[GPU]) is None:
            short[GPU] = need[GPU]
        return short

    def acquire(self, need: Units) -> Allocation | None:
        """Takes ``need``, or returns None and takes nothing."""
        available = self.available
        for name, units in need.items():
            if available.get(name, 0) < units:
                return None
        gpus: dict[int, int] = {}
        if GPU in need:
            chosen = self._choose_gpus(need[GPU])
            if chosen is None:
                return None
            gpus = chosen
            for index, units in gpus.items():
                self.gpus_free[index] -= units
        for name, units in need.items():
            available[name] -= units
        return Allocation(need, gpus)

    def release(self, allocation: Allocation) -> None:
        """Gives back all that ``allocation`` holds."""
        available = self.available
        for name, units in allocation.units.items():
            available[name] = available.get(name, 0) + units
        if allocation.lent_cpu:
            available[CPU] -= allocation.lent_cpu
            allocation.lent_cpu = 0
        for index, units in allocation.gpus.items():
            self.gpus_free[index] = self.gpus_free.get(index, 0) + units

    def release_rest(self, part: ResourceSet) -> None:
        """Takes over what nobody holds of ``part``, a set made from this one."""
        for name, units in part.available.items():
            self.available[name] = self.available.get(name, 0) + units
        for index, units in part.gpus_free.items():
            self.gpus_free[index] = self.gpus_free.get(index, 0) + units

    def shrink(self, allocation: Allocation, need: Mapping[str, int]) -> None:
        """Gives back what ``allocation`` holds above ``need``."""
        held = allocation.units
        if allocation.lent_cpu:
            self.reclaim_cpu(allocation)
        kept = {
            name: units
            for name, count in held.items()
            if (units := min(count, need.get(name, 0)))
        }
        for name, count in held.items():
            self.available[name] += count - kept.get(name, 0)
        surplus = held.get(GPU, 0) - kept.get(GPU, 0)
        for index in sorted(allocation.gpus, reverse=True):
            units = min(surplus, allocation.gpus[index])
            surplus -= units
            self.gpus_free[index] += units
            allocation.gpus[index] -= units
            if not allocation.gpus[index]:
                del allocation.gpus[index]
        allocation.units = kept

    def lend_cpu(self, allocation: Allocation) -> bool:
        """Frees the CPUs of a holder that waits; False if they were free."""
        cpu = allocation.units.get(CPU, 0) - allocation.lent_cpu
        if not cpu:
            return False
        allocation.lent_cpu += cpu
        self.available[CPU] += cpu
        return True

    def reclaim_cpu(self, allocation: Allocation) -> None:
        """Takes lent CPUs back at once, even below zero."""
        if allocation.lent_cpu:
            self.available[CPU] -= allocation.lent_cpu
            allocation.lent_cpu = 0

    def validate(self, allocations: Iterable[Allocation]) -> None:
        """Checks that ``allocations``, all that are in force, add up.

        Raises:
            AssertionError: they do not.
        """
        available = dict(self.total)
        gpus: dict[int, int] = {}
        for one in allocations:
            for name, units in one.units.items():
                available[name] = available.get(name, 0) - units
            available[CPU] = available.get(CPU, 0) + one.lent_cpu
            for index, units in one.gpus.items():
                gpus[index] = gpus.get(index, 0) + units
            assert sum(one.gpus.values()) == one.units.get(GPU, 0)
        names = available.keys() | self.available.keys()
        for name in names:
            assert self.available.get(name, 0) == available.get(name, 0), name
            assert name == CPU or self.available.get(name, 0) >= 0, name
        assert sum(self.gpus_free.values()) + sum(gpus.values()) == self.total.get(
            GPU, 0
        )
        assert all(0 <= units <= UNITS for units in self.gpus_free.values())
        assert all(units <= UNITS for units in gpus.values())

    def _choose_gpus(self, need: int) -> dict[int, int] | None:
        """GPU index -> units for ``need``: whole ones first, then one fraction.

        A fraction goes where the least is left, so that whole GPUs stay whole;
        ties go to the lowest index.
        """
        whole, rest = divmod(need, UNITS)
        free = self.gpus_free
        chosen: dict[int, int] = {}
        if whole:
            for index in sorted(free):
                if free[index] == UNITS:
                    chosen[index] = UNITS
                    if len(chosen) == whole:
                        break
            if len(chosen) < whole:
                return None
        if rest:
            fits = [
                (units, index)
                for index, units in free.items()
                if units >= rest and index not in chosen
            ]
            if not fits:
                return None
            chosen[min(fits)[1]] = rest
        return chosen
