"""The choice of a node for a lease, over many nodes and without looking at each.

Gives what :func:`rayshim.lineage.placement.choose` gives over the same nodes, or a node
that is used as little. Three rules always hold:

1. How much of a node is used, for a lease, depends on the names of what it needs and
   not on the amounts. So leases that need the same names and select the same labels
   share a *pool*: the nodes that have all of that, sorted by use, those with GPUs
   apart. The first node with room is the best one.
2. A pool knows the number of the last change that it has seen. Changes of nodes are
   kept once for each node, the newest last, so that a pool that is asked catches up
   with the nodes that changed meanwhile, and with no other.
3. A pool knows for each amount that found no room when that was: then only nodes that
   changed since can have some.

A change costs the same however many nodes and pools there are. A choice costs the
nodes that changed since the same pool was asked, each a search in a sorted list, and a
look at the nodes that are used least; the first choice of a pool looks at all nodes.

Deterministic: work that is to be spread goes around among equally used nodes in the
order of joining, all else depends on the arguments alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import NamedTuple

from rayshim.lineage.labels import matches
from rayshim.lineage.placement import (
    ANYWHERE,
    STAY_HOME,
    Choice,
    Policy,
    View,
    Wish,
    fits,
    usage,
)
from rayshim.lineage.resources import GPU

#: Pools that are kept; the one that was not asked for longest goes first. With 1,000
#: nodes a pool takes 0.2 MB.
MAX_POOLS = 100
#: Amounts without room that a pool remembers.
MAX_AMOUNTS = 1_000
#: Nodes that may have changed since an amount found no room before all are looked at
#: again.
MAX_RECENT = 100

#: Used share, then the place in the order of joining.
_Key = tuple[float, int]
_Amounts = tuple[tuple[str, int], ...]
_NO_SELECTOR: Mapping[str, str] = {}


class _Ranking:
    """Some nodes of a pool."""

    __slots__ = ("full", "keys")

    def __init__(self) -> None:
        #: The nodes, the least used one first.
        self.keys: list[_Key] = []
        #: Amounts -> number of the last change when no node had room for them.
        self.full: dict[_Amounts, int] = {}


class _Spot(NamedTuple):
    """Where a pool has a node."""

    ranking: _Ranking
    key: _Key


class _Pool:
    """The nodes that have what some leases need, sorted by use."""

    __slots__ = (
        "infeasible",
        "names",
        "plain",
        "seen",
        "selector",
        "spots",
        "turn",
        "with_gpu",
    )

    def __init__(self, names: Mapping[str, int], selector: Mapping[str, str]) -> None:
        #: The names of what is needed, each with the smallest amount.
        self.names = dict.fromkeys(names, 1)
        self.selector = dict(selector)
        #: Nodes without GPUs; of work that needs GPUs all of them.
        self.plain = _Ranking()
        self.with_gpu = _Ranking()
        #: Number of each node -> its place.
        self.spots: dict[int, _Spot] = {}
        #: Number of the last change that the pool reckons with.
        self.seen = 0
        #: Number of the node that work to be spread went to last.
        self.turn = 0
        #: Amounts -> layout of the cluster in which no node could ever have room.
        self.infeasible: dict[_Amounts, int] = {}

    def put(self, number: int, view: View) -> None:
        """Sorts a node in anew."""
        self.remove(number)
        if not fits(self.names, view.total):
            return
        if self.selector and not matches(self.selector, view.labels):
            return
        key = (usage(view, self.names), number)
        ranking = self.plain if is_plain(self.names, view) else self.with_gpu
        insort(ranking.keys, key)
        self.spots[number] = _Spot(ranking, key)

    def remove(self, number: int) -> None:
        """A node does not come into question."""
        spot = self.spots.pop(number, None)
        if spot is not None:
            keys = spot.ranking.keys
            del keys[bisect_left(keys, spot.key)]


def is_plain(need: Mapping[str, int], view: View) -> bool:
    """Whether a node has no GPU that the work leaves idle."""
    return GPU in need or not view.total.get(GPU)


class _Search(NamedTuple):
    """One choice under way."""

    need: Mapping[str, int]
    amounts: _Amounts
    selector: Mapping[str, str]
    wish: Wish
    #: Number of a node that does not come into question, or 0.
    skip: int
    draw: int


class NodeIndex:
    """The nodes that may get work.

    Args:
        policy: how work without a wish is spread.

    Example:
        >>> index = NodeIndex()
        >>> index.put(View("a", {"CPU": 40_000}, {"CPU": 10_000}))
        >>> index.put(View("b", {"CPU": 40_000}, {"CPU": 20_000}))
        >>> index.choose({"CPU": 10_000})
        Choice(node_id='b', has_room=True)
        >>> index.update("b", {"CPU": 0})
        >>> index.choose({"CPU": 10_000}).node_id
        'a'
    """

    def __init__(self, policy: Policy = STAY_HOME) -> None:
        self._policy = policy
        #: Node id -> number > 0, in order of joining.
        self._numbers: dict[str, int] = {}
        #: Number -> the node; of nodes that may get work now.
        self._views: dict[int, View] = {}
        #: Number of each node in ``_views`` -> its last change, the newest at the end.
        self._changes: dict[int, int] = {}
        self._clock = 0
        #: Number of times that nodes, or what they have in all, changed.
        self._layout = 0
        #: Names and selector -> pool, the one that was asked last at the end.
        self._pools: dict[tuple[object, ...], _Pool] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._views)

    def __contains__(self, node_id: object) -> bool:
        return self._numbers.get(node_id) in self._views  # type: ignore[call-overload]  # any key may be asked for

    def views(self) -> list[View]:
        """The nodes in order of joining."""
        return [self._views[number] for number in sorted(self._views)]

    def put(self, view: View) -> None:
        """A node may get work, or is not as it was.

        The mappings of ``view`` are kept, not copied: when one of them is changed in
        place, put it again. A node that comes back after :meth:`pause` has its old
        place in the order.
        """
        number = self._numbers.get(view.node_id)
        if number is None:
            self._count += 1
            number = self._numbers[view.node_id] = self._count
        known = self._views.get(number)
        if known is None or known.total != view.total or known.labels != view.labels:
            self._layout += 1
        self._set(number, view)

    def update(self, node_id: str, available: Mapping[str, int]) -> None:
        """A node has other resources free; nothing happens if it gets no work."""
        number = self._numbers.get(node_id)
        if number is not None and (view := self._views.get(number)) is not None:
            self._set(number, view._replace(available=available))

    def pause(self, node_id: str) -> None:
        """A node gets no work until it is put again."""
        number = self._numbers.get(node_id)
        if number is None or self._views.pop(number, None) is None:
            return
        del self._changes[number]
        self._layout += 1
        for pool in self._pools.values():
            pool.remove(number)

    def drop(self, node_id: str) -> None:
        """A node is gone for good."""
        self.pause(node_id)
        self._numbers.pop(node_id, None)

    def choose(
        self,
        need: Mapping[str, int],
        wish: Wish = ANYWHERE,
        *,
        without: str = "",
        draw: int = 0,
    ) -> Choice | None:
        """The node for a lease, or None when none of them could ever have room.

        Args:
            need: units of each resource, > 0.
            wish: see :class:`rayshim.lineage.placement.Wish`.
            without: a node that does not come into question.
            draw: number that picks among the best nodes, >= 0; 0 takes the best one.
        """
        amounts = tuple(sorted(need.items()))
        skip = self._numbers.get(without, 0)
        later: Choice | None = None
        for selector in wish.selectors or (_NO_SELECTOR,):
            choice = self._choose(_Search(need, amounts, selector, wish, skip, draw))
            if choice is not None and choice.has_room:
                return choice
            later = later or choice
        return later

    def _choose(self, search: _Search) -> Choice | None:
        need, wish = search.need, search.wish
        wanted = []
        for node_id in wish.nodes:
            view = self._able(node_id, search)
            if view is None:
                continue
            if fits(need, view.available):
                return Choice(node_id, True)
            wanted.append(view)
        if not wish.is_soft or (wish.is_patient and wanted):
            return _least(wanted, need)
        home = None if wish.is_spread else self._able(wish.home, search)
        if home is not None and not fits(need, home.available):
            home = None
        share = 0.0 if home is None else usage(home, need)
        if home is not None and share < self._policy.spread_threshold:
            if is_plain(need, home):
                return Choice(home.node_id, True)
        pool = self._pool(search)
        for ranking in (pool.plain, pool.with_gpu):
            found = self._fitting(pool, ranking, search)
            first = next(found, None)
            if first is None:
                continue
            if home is not None and is_plain(need, home) is (ranking is pool.plain):
                if share < self._policy.spread_threshold or share <= first[0]:
                    return Choice(home.node_id, True)
            key = self._draw(pool, first, found, search)
            return Choice(self._views[key[1]].node_id, True)
        return _least(wanted, need) if wanted else self._later(pool, search)

    def _draw(
        self, pool: _Pool, first: _Key, found: Iterator[_Key], search: _Search
    ) -> _Key:
        """One of the nodes with room: the best one, one of the best, or the next."""
        if search.wish.is_spread:
            # What takes nothing would always go to the node that is used least.
            among = (
                [first, *found]
                if not search.need
                else [first, *_while_equal(first, found)]
            )
            key = min(among, key=lambda key: (key[1] <= pool.turn, key[1]))
            pool.turn = key[1]
            return key
        best_k = self._policy.best_k(len(self) - (search.skip in self._views))
        if best_k == 1 or search.draw == 0:
            return first
        best = [first, *islice(found, best_k - 1)]
        return best[search.draw % len(best)]

    def _able(self, node_id: str, search: _Search) -> View | None:
        """A node by name, if it could ever have room."""
        number = self._numbers.get(node_id, 0)
        view = self._views.get(number)
        if view is None or number == search.skip or not fits(search.need, view.total):
            return None
        return view if matches(search.selector, view.labels) else None

    def _fitting(
        self, pool: _Pool, ranking: _Ranking, search: _Search
    ) -> Iterator[_Key]:
        """The nodes with room now, the least used one first."""
        need, amounts, skip = search.need, search.amounts, search.skip
        views = self._views
        recent = self._recent(pool, ranking, search)
        if recent is not None:
            if not recent:
                ranking.full[amounts] = self._clock
            yield from (key for key in recent if key[1] != skip)
            return
        is_full = True
        for key in ranking.keys:
            if fits(need, views[key[1]].available):
                is_full = False
                if key[1] != skip:
                    yield key
        if is_full:
            if len(ranking.full) >= MAX_AMOUNTS:
                ranking.full.clear()
            ranking.full[amounts] = self._clock

    def _recent(
        self, pool: _Pool, ranking: _Ranking, search: _Search
    ) -> list[_Key] | None:
        """The nodes with room, if only those that changed lately can have some."""
        since = ranking.full.get(search.amounts)
        if since is None:
            return None
        recent = []
        for count, (number, changed) in enumerate(reversed(self._changes.items())):
            if changed <= since:
                break
            if count == MAX_RECENT:
                del ranking.full[search.amounts]
                return None
            spot = pool.spots.get(number)
            if spot is not None and spot.ranking is ranking:
                if fits(search.need, self._views[number].available):
                    recent.append(spot.key)
        return sorted(recent)

    def _later(self, pool: _Pool, search: _Search) -> Choice | None:
        """The node that is used least of those that could have room."""
        if pool.infeasible.get(search.amounts) == self._layout:
            return None
        is_infeasible = True
        for _, number in merge(pool.plain.keys, pool.with_gpu.keys):
            view = self._views[number]
            if fits(search.need, view.total):
                is_infeasible = False
                if number != search.skip:
                    return Choice(view.node_id, False)
        if is_infeasible:
            if len(pool.infeasible) >= MAX_AMOUNTS:
                pool.infeasible.clear()
            pool.infeasible[search.amounts] = self._layout
        return None

    def _set(self, number: int, view: View) -> None:
        self._views[number] = view
        self._clock += 1
        self._changes.pop(number, None)
        self._changes[number] = self._clock

    def _pool(self, search: _Search) -> _Pool:
        """The pool of a lease, up to date."""
        name = (*sorted(search.need), None, *sorted(search.selector.items()))
        pool = self._pools.pop(name, None)
        if pool is None:
            pool = _Pool(search.need, search.selector)
            if len(self._pools) >= MAX_POOLS:
                del self._pools[next(iter(self._pools))]
        self._pools[name] = pool
        for number, changed in reversed(self._changes.items()):
            if changed <= pool.seen:
                break
            pool.put(number, self._views[number])
        pool.seen = self._clock
        return pool

    def validate(self) -> None:
        """Checks the rules of this module.

        Raises:
            AssertionError: one is broken.
        """
        assert self._changes.keys() == self._views.keys()
        assert list(self._changes.values()) == sorted(self._changes.values())
        assert len(self._pools) <= MAX_POOLS
        for pool in self._pools.values():
            assert pool.spots.keys() <= self._views.keys()
            for ranking in (pool.plain, pool.with_gpu):
                spots = [one for one in pool.spots.values() if one.ranking is ranking]
                assert ranking.keys == sorted(one.key for one in spots)
                for amounts, since in ranking.full.items():
                    for number, spot in pool.spots.items():
                        available = self._views[number].available
                        assert (
                            spot.ranking is not ranking
                            or since < self._changes[number]
                            or not fits(dict(amounts), available)
                        )


def _least(views: list[View], need: Mapping[str, int]) -> Choice | None:
    """The node that is used least, to wait there."""
    if not views:
        return None
    return Choice(min(views, key=lambda view: usage(view, need)).node_id, False)


def _while_equal(first: _Key, found: Iterator[_Key]) -> Iterator[_Key]:
    """What is used as little as the first one."""
    for key in found:
        if key[0] != first[0]:
            return
        yield key
