"""How controllers talk to the API server: requests, and lists that keep themselves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from rayshim.k8s.api import KINDS, Kind, Object

logger = logging.getLogger(__name__)

#: Seconds for one answer, and between attempts at a server that does not answer.
REQUEST_S = 10.0
AGAIN_S = 0.2
#: Seconds after which a watch is begun anew.
WATCH_S = 300
#: Connections for requests; watches have their own.
CONNECTIONS = 4

MERGE = "application/merge-patch+json"

#: (namespace, name); the namespace of a kind without one is "".
Key = tuple[str, str]

REPLICA_SET = Kind("apps/v1", "ReplicaSet", "replicasets")


class Refused(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


#: What a controller bears and tries again.
FAILURES = (Refused, aiohttp.ClientError, TimeoutError, ConnectionError)


def kind_of(name: str) -> Kind:
    """Where objects of a kind are."""
    return REPLICA_SET if name == "ReplicaSet" else KINDS[name]


def key_of(made: Object) -> Key:
    """The key of an object."""
    meta = made["metadata"]
    return meta.get("namespace", ""), meta["name"]


def owner_of(made: Object) -> str:
    """UID of the controller of an object; empty: it has none."""
    for one in made["metadata"].get("ownerReferences", ()):
        if one.get("controller"):
            return str(one["uid"])
    return ""


def owned_by(owner: Object) -> list[Object]:
    """The ``ownerReferences`` of what a controller makes for an object."""
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


class Connection:
    """Requests to an API server, from one event loop.

    Args:
        url: of the server.
        token: of the user whose requests these are.
        security: for https.
    """

    def __init__(
        self, url: str, token: str, security: ssl.SSLContext | None = None
    ) -> None:
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        secured: ssl.SSLContext | bool = True if security is None else security
        self._requests = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=secured),
            timeout=aiohttp.ClientTimeout(total=REQUEST_S),
        )
        self._watches = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, ssl=secured, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_S),
            read_bufsize=2**20,
        )

    async def close(self) -> None:
        """End all connections."""
        await self._requests.close()
        await self._watches.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One request and its answer.

        Raises:
            Refused: the answer is an error.
        """
        async with self._requests.request(
            method,
            self._url + path,
            params=query,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
        ) as response:
            text = await response.text()
            if response.status >= 400:
                raise _refused(response.status, text)
            answer: Object = json.loads(text or "{}")
            return answer

    async def get(self, kind: str, key: Key) -> Object | None:
        """One object; None if there is none."""
        try:
            return await self.request("GET", kind_of(kind).path(*key))
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def create(self, kind: str, made: Object) -> Object:
        """Create an object in the namespace that it names."""
        where = kind_of(kind)
        made = {"apiVersion": where.api_version, "kind": where.name, **made}
        path = where.path(made["metadata"].get("namespace", ""))
        return await self.request("POST", path, made)

    async def patch(
        self, kind: str, key: Key, change: Object, subresource: str = ""
    ) -> Object | None:
        """Merge a change into an object; None: it is gone."""
        path = kind_of(kind).path(*key) + (f"/{subresource}" if subresource else "")
        try:
            return await self.request("PATCH", path, change, content_type=MERGE)
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def delete(
        self, kind: str, key: Key, *, uid: str = "", grace_s: int | None = None
    ) -> None:
        """Delete an object, if it is there and still the one with this UID."""
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self.request("DELETE", kind_of(kind).path(*key), options)
        except Refused as error:
            if error.status not in (404, 409):
                raise

    async def list(self, kind: str) -> Object:
        """All objects of a kind in all namespaces, with the list's metadata."""
        return await self.request("GET", kind_of(kind).path(""))

    async def watch(
        self, kind: str, since: str, hear: Callable[[str, Object], None]
    ) -> None:
        """Hear of changes until the server ends the watch."""
        query = {
            "watch": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(WATCH_S),
        }
        url = self._url + kind_of(kind).path("")
        async with self._watches.get(url, params=query) as response:
            if response.status >= 400:
                raise _refused(response.status, await response.text())
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise Refused(
                            int(status.get("code", 500)),
                            str(status.get("reason", "")),
                            str(status.get("message", "")),
                        )
                    if event["type"] != "BOOKMARK":
                        hear(event["type"], event["object"])


def _refused(status: int, text: str) -> Refused:
    try:
        answer = json.loads(text)
        return Refused(status, answer.get("reason", ""), answer.get("message", text))
    except (ValueError, AttributeError):
        return Refused(status, "", text[:300])


class Informer:
    """All objects of a kind, kept up to date by a watch.

    Args:
        connection: to the server.
        kind: as "Pod".

    What is written is to be handed to :meth:`remember`, so that the next look already
    sees it.
    """

    def __init__(self, connection: Connection, kind: str) -> None:
        self.kind = kind
        self.objects: dict[Key, Object] = {}
        #: Called with (type, object) at every change.
        self.listeners: list[Callable[[str, Object], None]] = []
        self.is_synced = asyncio.Event()
        self._connection = connection
        #: UIDs of objects that are gone.
        self._gone: set[str] = set()

    def get(self, key: Key) -> Object | None:
        """An object as it was last seen."""
        return self.objects.get(key)

    def of_owner(self, uid: str) -> list[Object]:
        """Objects whose controller has this UID, in the order of their names."""
        found = [one for one in self.objects.values() if owner_of(one) == uid]
        return sorted(found, key=key_of)

    def remember(self, made: Object | None) -> None:
        """Take over what the server answered to a write."""
        if made is None or made["metadata"].get("uid") in self._gone:
            return
        old = self.objects.get(key_of(made))
        if old is not None and old["metadata"]["uid"] == made["metadata"]["uid"]:
            if _version(old) >= _version(made):
                return
        self._hear("MODIFIED" if old else "ADDED", made)

    async def run(self) -> None:
        """Watch until cancelled, through every failure of the server."""
        while True:
            try:
                listed = await self._connection.list(self.kind)
                self._take(listed.get("items", []))
                self.is_synced.set()
                version = str(listed["metadata"]["resourceVersion"])
                await self._connection.watch(self.kind, version, self._event)
            except Refused as error:
                if error.status not in (404, 410):
                    logger.warning("watching %s: %s", self.kind, error)
                if error.status == 404:
                    self.is_synced.set()  # the kind may be installed later
                await asyncio.sleep(AGAIN_S)
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                logger.debug("watching %s: %r", self.kind, error)
                await asyncio.sleep(AGAIN_S)

    def _take(self, items: list[Object]) -> None:
        kind = kind_of(self.kind)
        for one in items:
            one.setdefault("apiVersion", kind.api_version)
            one.setdefault("kind", kind.name)
        found = {key_of(one): one for one in items}
        for key, old in list(self.objects.items()):
            new = found.get(key)
            if new is None or new["metadata"]["uid"] != old["metadata"]["uid"]:
                self._event("DELETED", old)
        for one in items:
            self._event("ADDED", one)

    def _event(self, kind: str, made: Object) -> None:
        key = key_of(made)
        old = self.objects.get(key)
        if kind == "DELETED":
            self._gone.add(made["metadata"]["uid"])
            if old is None or old["metadata"]["uid"] != made["metadata"]["uid"]:
                return
        elif old is not None and old["metadata"]["uid"] == made["metadata"]["uid"]:
            if _version(old) >= _version(made):
                return
        self._hear(kind, made)

    def _hear(self, kind: str, made: Object) -> None:
        if kind == "DELETED":
            self.objects.pop(key_of(made), None)
        else:
            self.objects[key_of(made)] = made
        for listener in self.listeners:
            listener(kind, made)


def _version(made: Object) -> int:
    return int(made["metadata"].get("resourceVersion", 0))


class Reconciler:
    """Calls a function for keys that something has happened to, one at a time.

    Args:
        name: for messages.
        reconcile: brings one object to what it should be; called again after
            failures.
    """

    def __init__(self, name: str, reconcile: Callable[[Key], Awaitable[None]]) -> None:
        self._name = name
        self._reconcile = reconcile
        #: Keys in the order in which they were added.
        self._waiting: dict[Key, None] = {}
        self._wake = asyncio.Event()
        self._later: set[asyncio.TimerHandle] = set()

    def add(self, key: Key) -> None:
        """Look at an object soon."""
        self._waiting[key] = None
        self._wake.set()

    def add_later(self, key: Key, delay_s: float) -> None:
        """Look at an object after some seconds."""

        def due() -> None:
            self._later.discard(handle)
            self.add(key)

        handle = asyncio.get_running_loop().call_later(delay_s, due)
        self._later.add(handle)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    key = next(iter(self._waiting))
                    del self._waiting[key]
                    try:
                        await self._reconcile(key)
                    except FAILURES as error:
                        logger.info("%s %s: %s", self._name, "/".join(key), error)
                        self.add_later(key, AGAIN_S)
        finally:
            for handle in self._later:
                handle.cancel()


async def cancelled(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
