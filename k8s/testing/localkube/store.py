"""The objects, and what happened to them lately.

An object that is kept is never changed: a write puts another one in its place. So what
readers and watchers hold stays as it was without a copy.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from rayshim.k8s.testing.localkube import selectors
from rayshim.k8s.testing.localkube.resources import Registry, Resource

Object = dict[str, Any]
#: (namespace or "", name).
Place = tuple[str, str]

#: Events of one kind that are kept for watches that come back.
KEPT_EVENTS = 10_000


@dataclass(slots=True)
class Event:
    """A write.

    Attributes:
        revision: of the whole store after it.
        before: the object as it was, None if it is new.
        after: as it is; of one that is gone, as it was last, with that revision.
        is_gone: the object was removed.
    """

    revision: int
    before: Object | None
    after: Object
    is_gone: bool
    _bytes: bytes = b""

    def encoded(self) -> bytes:
        """``after`` as JSON; encoded once for all watchers."""
        if not self._bytes:
            self._bytes = msgspec.json.encode(self.after)
        return self._bytes


class Shelf:
    """The objects of one kind, and their events."""

    def __init__(self, kept_events: int) -> None:
        self.objects: dict[Place, Object] = {}
        self.events: deque[Event] = deque(maxlen=kept_events)
        #: Revision of the newest event that is kept no more.
        self.forgotten = 0


class Store:
    """The objects.

    Thread safety: each method may be called from any thread. ``get`` and ``list`` give
    copies, ``peek`` and ``scan`` the objects themselves, which must not be changed.

    Args:
        registry: the kinds.
        kept_events: of each kind, for watches that come back.
    """

    def __init__(self, registry: Registry, kept_events: int = KEPT_EVENTS) -> None:
        self.lock = threading.RLock()
        self.registry = registry
        #: Of the newest write.
        self.revision = 1
        self._kept_events = kept_events
        self._shelves: dict[tuple[str, str], Shelf] = {}
        #: uid of an owner -> (kind, place) of what it owns.
        self._owned: dict[str, set[tuple[tuple[str, str], Place]]] = {}
        self._listeners: list[Callable[[Resource], None]] = []

    def get(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """One object; None if there is none.

        Args:
            resource: a plural name: "pods", "deployments", "daskclusters".
            name: of the object.
            namespace: "" for kinds that are in none.
        """
        return copy.deepcopy(
            self.peek(self.registry.named(resource), (namespace, name))
        )

    def peek(self, resource: Resource, place: Place) -> Object | None:
        """One object itself."""
        with self.lock:
            return self.shelf(resource).objects.get(place)

    def scan(self, resource: Resource, namespace: str = "") -> list[Object]:
        """All objects of a kind themselves, in the order of namespace and name."""
        with self.lock:
            objects = self.shelf(resource).objects
            return [
                objects[place]
                for place in sorted(objects)
                if not namespace or place[0] == namespace
            ]

    def owned(self, uid: str) -> list[tuple[Resource, Object]]:
        """What names an owner in its ``ownerReferences``."""
        with self.lock:
            found = []
            for key, place in sorted(self._owned.get(uid, ())):
                resource = self.registry.get(*key)
                made = resource and self.peek(resource, place)
                if resource and made:
                    found.append((resource, made))
            return found

    def put(self, resource: Resource, made: Object) -> Object:
        """Keep an object, new or changed; it gets a new resourceVersion."""
        with self.lock:
            shelf = self.shelf(resource)
            place = place_of(made)
            before = shelf.objects.get(place)
            self._index(resource, place, before, made)
            self.revision += 1
            made["metadata"]["resourceVersion"] = str(self.revision)
            shelf.objects[place] = made
            self._happened(resource, shelf, Event(self.revision, before, made, False))
            return made

    def remove(self, resource: Resource, made: Object) -> None:
        """Keep an object no more."""
        with self.lock:
            shelf = self.shelf(resource)
            place = place_of(made)
            before = shelf.objects.pop(place)
            self._index(resource, place, before, None)
            self.revision += 1
            last = {**made, "metadata": {**made["metadata"]}}
            last["metadata"]["resourceVersion"] = str(self.revision)
            self._happened(resource, shelf, Event(self.revision, before, last, True))

    def drop_kind(self, resource: Resource) -> None:
        """Forget the (empty) shelf of a kind that is served no more."""
        with self.lock:
            self._shelves.pop(resource.key, None)

    def listen(self, listener: Callable[[Resource], None]) -> None:
        """Call a function, under the lock, after each write of a kind."""
        with self.lock:
            self._listeners.append(listener)

    def forget_events(self) -> None:
        """Forget what happened, as the real server does after some minutes.

        Watches that want to go on from before get 410 Gone.
        """
        with self.lock:
            for shelf in self._shelves.values():
                shelf.events.clear()
                shelf.forgotten = self.revision

    def shelf(self, resource: Resource) -> Shelf:
        """Of a kind; made if there is none."""
        found = self._shelves.get(resource.key)
        if found is None:
            found = self._shelves[resource.key] = Shelf(self._kept_events)
        return found

    def _happened(self, resource: Resource, shelf: Shelf, event: Event) -> None:
        if len(shelf.events) == shelf.events.maxlen:
            shelf.forgotten = shelf.events[0].revision
        shelf.events.append(event)
        for listener in self._listeners:
            listener(resource)

    def _index(
        self,
        resource: Resource,
        place: Place,
        before: Object | None,
        after: Object | None,
    ) -> None:
        entry = (resource.key, place)
        for uid in owners(before):
            self._owned[uid].discard(entry)
            if not self._owned[uid]:
                del self._owned[uid]
        for uid in owners(after):
            self._owned.setdefault(uid, set()).add(entry)

    def list(
        self, resource: str, namespace: str = "", labels: str = ""
    ) -> list[Object]:
        """All objects of a kind, in the order of namespace and name.

        Args:
            resource: a plural name.
            namespace: "" for all.
            labels: a label selector, as in "app=web,tier in (a, b)".
        """
        test = selectors.parse_labels(labels)
        return [
            copy.deepcopy(one)
            for one in self.scan(self.registry.named(resource), namespace)
            if test(one["metadata"].get("labels") or {})
        ]


def place_of(made: Object) -> Place:
    """Namespace and name of an object."""
    meta = made["metadata"]
    return meta.get("namespace", ""), meta["name"]


def owners(made: Object | None) -> list[str]:
    """The uids of an object's owners."""
    if made is None:
        return []
    listed = made["metadata"].get("ownerReferences") or []
    return list(dict.fromkeys(one["uid"] for one in listed))
