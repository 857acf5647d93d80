"""Watches: what happened to objects since a revision, and what happens from now on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from rayshim.k8s.testing.localkube.resources import Resource
from rayshim.k8s.testing.localkube.statuses import Refusal
from rayshim.k8s.testing.localkube.store import Event, Store
from rayshim.k8s.testing.localkube.tables import partial, table

Object = dict[str, Any]
Test = Callable[[Object], bool]


@dataclass(frozen=True, slots=True)
class View:
    """In which form objects are given.

    Attributes:
        resource: their kind.
        version: of the API.
        shape: "" as they are, "Table", or "PartialObjectMetadata".
    """

    resource: Resource
    version: str
    shape: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether objects are given as they are kept."""
        return not self.shape and self.version == self.resource.versions[0]

    def one(self, made: Object, *, with_heads: bool = True) -> Object:
        """An object in this form."""
        made = {**made, "apiVersion": self.resource.api_version(self.version)}
        if self.shape == "Table":
            meta = {"resourceVersion": made["metadata"]["resourceVersion"]}
            return table(self.resource, [made], meta, with_heads=with_heads)
        return partial(made) if self.shape else made

    def many(self, objects: Iterable[Object], meta: Object) -> Object:
        """A list in this form; items of built-in kinds do not say their kind."""
        api_version = self.resource.api_version(self.version)
        if self.shape == "Table":
            return table(self.resource, objects, meta)
        if self.shape:
            return {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": meta,
                "items": [partial(made) for made in objects],
            }
        hidden = () if self.resource.is_custom else ("apiVersion", "kind")
        items = []
        for made in objects:
            item = {**made, "apiVersion": api_version}
            for name in hidden:
                item.pop(name, None)
            items.append(item)
        return {
            "kind": f"{self.resource.kind}List",
            "apiVersion": api_version,
            "metadata": meta,
            "items": items,
        }


class Watch:
    """One client's watch; gives lines of JSON.

    Args:
        store: the objects.
        view: the form of the objects.
        namespace: "" for all.
        test: which objects.
        since: resourceVersion of the request; "" and "0" begin with what is there.
        is_initial: begin with what is there in any case, then a bookmark says so.

    Raises:
        Refusal: the resourceVersion is none, or of the future.
    """

    def __init__(
        self,
        store: Store,
        view: View,
        *,
        namespace: str,
        test: Test,
        since: str = "",
        is_initial: bool = False,
    ) -> None:
        self._store = store
        self._view = view
        self._namespace = namespace
        self._test = test
        self._seen = 0
        self._is_first = True
        #: No more lines come.
        self.is_over = False
        self._initial: list[bytes] = []
        with store.lock:
            if is_initial or since in ("", "0"):
                self._seen = store.revision
                for made in store.scan(view.resource, namespace):
                    if test(made):
                        self._initial.append(self._line("ADDED", made))
                if is_initial:
                    self._initial.append(self.bookmark(is_initial=True))
            else:
                self._seen = revision_of(since, store)

    @property
    def resource(self) -> Resource:
        """The kind that is watched."""
        return self._view.resource

    def take(self) -> list[bytes]:
        """The lines since the last call."""
        lines, self._initial = self._initial, []
        if self.is_over:
            return lines
        with self._store.lock:
            shelf = self._store.shelf(self._view.resource)
            if self._seen < shelf.forgotten:
                self.is_over = True
                return [*lines, _error(expired(self._seen, shelf.forgotten))]
            news: list[Event] = []
            for event in reversed(shelf.events):
                if event.revision <= self._seen:
                    break
                news.append(event)
            self._seen = max(self._seen, self._store.revision)
        for event in reversed(news):
            lines += self._lines(event)
        return lines

    def bookmark(self, *, is_initial: bool = False) -> bytes:
        """A line that says how far the watch has come."""
        meta: Object = {"resourceVersion": str(self._seen), "creationTimestamp": None}
        if is_initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = self._view.resource
        made: Object = {
            "kind": resource.kind,
            "apiVersion": resource.api_version(self._view.version),
            "metadata": meta,
        }
        if self._view.shape == "Table":
            made = table(resource, [], meta, with_heads=False)
        return _encoded("BOOKMARK", made)

    def _lines(self, event: Event) -> Iterator[bytes]:
        was = event.before is not None and self._fits(event.before)
        is_ = not event.is_gone and self._fits(event.after)
        if is_:
            yield self._line("MODIFIED" if was else "ADDED", event.after, event)
        elif was and event.is_gone:
            yield self._line("DELETED", event.after, event)
        elif was and event.before is not None:
            meta = {
                **event.before["metadata"],
                "resourceVersion": event.after["metadata"]["resourceVersion"],
            }
            yield self._line("DELETED", {**event.before, "metadata": meta})

    def _fits(self, made: Object) -> bool:
        namespace = self._namespace
        if namespace and made["metadata"].get("namespace") != namespace:
            return False
        return self._test(made)

    def _line(self, word: str, made: Object, event: Event | None = None) -> bytes:
        if self._view.is_plain and event is not None:
            return b'{"type":"%s","object":%s}\n' % (word.encode(), event.encoded())
        is_first, self._is_first = self._is_first, False
        return _encoded(word, self._view.one(made, with_heads=is_first))


def revision_of(text: str, store: Store) -> int:
    """A resourceVersion as a number.

    Raises:
        Refusal: it is none, or of the future.
    """
    if not text.isdigit():
        raise Refusal(
            400, "BadRequest", f'invalid resource version "{text}": it is no number'
        )
    revision = int(text)
    if revision > store.revision:
        raise Refusal(
            504,
            "Timeout",
            f"Too large resource version: {revision}, current: {store.revision}",
            {"causes": [{"reason": "ResourceVersionTooLarge"}], "retryAfterSeconds": 1},
        )
    return revision


def expired(since: int, oldest: int) -> Refusal:
    """410: what happened since is not known any more; list again."""
    return Refusal(410, "Expired", f"too old resource version: {since} ({oldest})")


def _error(refusal: Refusal) -> bytes:
    return _encoded("ERROR", refusal.status())


def _encoded(word: str, made: Object) -> bytes:
    return msgspec.json.encode({"type": word, "object": made}) + b"\n"
