"""Deleting objects: finalizers, grace, owners, namespaces, CRDs.

What the real cluster's garbage collector and namespace controller do a moment later is
done at once here, before the request's answer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rayshim.k8s.testing.localkube import statuses as refuse
from rayshim.k8s.testing.localkube.decoding import Write
from rayshim.k8s.testing.localkube.resources import Resource, of_crd
from rayshim.k8s.testing.localkube.store import Place, place_of
from rayshim.k8s.testing.localkube.writing import Writer, timestamp

Object = dict[str, Any]

FOREGROUND: Final = "foregroundDeletion"


class Remover:
    """Deletes objects of a store, and what follows from writes.

    Args:
        writer: who writes them.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.store = writer.store
        self.registry = writer.registry
        writer.after_write = self._after_write

    def delete(
        self,
        resource: Resource,
        place: Place,
        options: Object,
        write: Write,
    ) -> tuple[Object, bool]:
        """Delete an object.

        Args:
            resource: its kind.
            place: where it is.
            options: ``DeleteOptions``.
            write: how.

        Returns:
            (the object as it is now or was last, whether it is gone).

        Raises:
            Refusal: there is none, or it is not the one that was meant.
        """
        with self.store.lock:
            made = self.writer.find(resource, place)
            self._check(resource, made, options)
            for hook in self.writer.admission:
                hook("delete", resource.full_name, made, write.user)
            if write.is_dry_run:
                return made, True
            return self._begin(resource, made, options)

    def _check(self, resource: Resource, made: Object, options: Object) -> None:
        wanted, meta = options.get("preconditions") or {}, made["metadata"]
        for field, name in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            value = wanted.get(field)
            if value and value != meta[field]:
                raise refuse.conflict(
                    resource.plural,
                    resource.group,
                    meta["name"],
                    f"Precondition failed: {name} in precondition: {value}, {name} in "
                    f"object meta: {meta[field]}",
                )
        policy = options.get("propagationPolicy")
        if policy not in (None, "Background", "Foreground", "Orphan"):
            raise refuse.bad_request(f"invalid propagationPolicy: {policy!r}")

    def _begin(
        self, resource: Resource, made: Object, options: Object
    ) -> tuple[Object, bool]:
        policy = options.get("propagationPolicy")
        if options.get("orphanDependents"):
            policy = "Orphan"
        if policy == "Orphan":
            self._orphan(made["metadata"]["uid"])
        finalizers = list(made["metadata"].get("finalizers") or [])
        is_new = FOREGROUND not in finalizers
        if policy == "Foreground" and is_new and self._blockers(made):
            finalizers = [*finalizers, FOREGROUND]
        grace_s = self._grace_s(resource, made, options)
        is_namespace = resource.key == ("", "namespaces")
        is_crd = resource.key == ("apiextensions.k8s.io", "customresourcedefinitions")
        if not (finalizers or grace_s or is_namespace or is_crd):
            self._gone(resource, made)
            return made, True
        made = self._marked(resource, made, grace_s, finalizers)
        if FOREGROUND in finalizers:
            self._delete_owned(made["metadata"]["uid"])
        elif is_namespace:
            self._empty_namespace(made)
        elif is_crd:
            self._empty_kind(made)
        place = place_of(made)
        now = self.store.peek(resource, place)
        return (now, False) if now else (made, True)

    def _grace_s(self, resource: Resource, made: Object, options: Object) -> int:
        """Seconds that a pod has; none before it is on a node or after it has ended."""
        if resource.key != ("", "pods") or not made["spec"].get("nodeName"):
            return 0
        if (made.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        asked = options.get("gracePeriodSeconds")
        if asked is None:
            asked = made["spec"].get("terminationGracePeriodSeconds", 30)
        if asked < 0:
            asked = 1
        left = made["metadata"].get("deletionGracePeriodSeconds")
        return int(asked if left is None else min(left, asked))

    def _marked(
        self, resource: Resource, made: Object, grace_s: int, finalizers: list[str]
    ) -> Object:
        meta = made["metadata"]
        is_same = (
            meta.get("deletionTimestamp")
            and meta.get("deletionGracePeriodSeconds", 0) == grace_s
            and finalizers == (meta.get("finalizers") or [])
        )
        if is_same:
            return made
        until = datetime.now(UTC) + timedelta(seconds=grace_s)
        meta = {
            **meta,
            "deletionTimestamp": timestamp(until),
            "deletionGracePeriodSeconds": grace_s,
            "generation": meta.get("generation", 1) + 1,
        }
        if finalizers:
            meta["finalizers"] = finalizers
        made = {**made, "metadata": meta}
        if resource.key == ("", "namespaces"):
            made["status"] = {**(made.get("status") or {}), "phase": "Terminating"}
        return self.store.put(resource, made)

    def _after_write(self, resource: Resource, made: Object) -> None:
        """What follows from a write: kinds, last finalizers, owners that are gone."""
        meta = made["metadata"]
        if resource.key == ("apiextensions.k8s.io", "customresourcedefinitions"):
            self.registry.add(of_crd(made))
        if resource.key == ("", "namespaces"):
            self._first_content(meta["name"])
        if meta.get("deletionTimestamp"):
            is_held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
            if not is_held:
                self._end(resource, made)
        elif not self.writer.has_living_owner(made):
            self._begin(resource, made, {"propagationPolicy": "Background"})

    def _end(self, resource: Resource, made: Object) -> None:
        """Remove what was being deleted and is held by nothing but its contents."""
        if resource.key == ("", "namespaces"):
            self._empty_namespace(made)
        elif resource.key == ("apiextensions.k8s.io", "customresourcedefinitions"):
            self._empty_kind(made)
        else:
            self._gone(resource, made)

    def _first_content(self, namespace: str) -> None:
        kind = self.registry.named("serviceaccounts")
        if not self.store.peek(kind, (namespace, "default")):
            self.writer.create(
                kind, namespace, {"metadata": {"name": "default"}}, Write()
            )

    def _gone(self, resource: Resource, made: Object) -> None:
        self.store.remove(resource, made)
        meta = made["metadata"]
        self._delete_owned(meta["uid"])
        self._waiting_owners(made)
        if resource.is_namespaced:
            kind = self.registry.named("namespaces")
            namespace = self.store.peek(kind, ("", meta.get("namespace", "")))
            if namespace and namespace["metadata"].get("deletionTimestamp"):
                self._end_if_empty(kind, namespace)
        if resource.is_custom:
            kind = self.registry.named("customresourcedefinitions")
            crd = self.store.peek(kind, ("", f"{resource.plural}.{resource.group}"))
            if crd and crd["metadata"].get("deletionTimestamp"):
                self._empty_kind(crd)

    def _delete_owned(self, uid: str) -> None:
        """Background deletion: what no living owner has any more goes."""
        for resource, made in self.store.owned(uid):
            now = self.store.peek(resource, place_of(made))
            if now is None or now["metadata"].get("deletionTimestamp"):
                continue
            others = [
                one for one in now["metadata"]["ownerReferences"] if one["uid"] != uid
            ]
            meta = {**now["metadata"], "ownerReferences": others}
            reduced = {**now, "metadata": meta}
            if others and self.writer.has_living_owner(reduced):
                self.store.put(resource, reduced)
            else:
                self._begin(resource, now, {"propagationPolicy": "Background"})

    def _orphan(self, uid: str) -> None:
        for resource, made in self.store.owned(uid):
            meta = {**made["metadata"]}
            meta["ownerReferences"] = [
                one for one in meta["ownerReferences"] if one["uid"] != uid
            ]
            self.store.put(resource, {**made, "metadata": meta})

    def _blockers(self, made: Object) -> list[Object]:
        uid = made["metadata"]["uid"]
        return [
            one
            for _, one in self.store.owned(uid)
            for owner in one["metadata"]["ownerReferences"]
            if owner["uid"] == uid and owner.get("blockOwnerDeletion")
        ]

    def _waiting_owners(self, made: Object) -> None:
        """Owners that are deleted in the foreground go after what they own."""
        for one in made["metadata"].get("ownerReferences") or []:
            resource = self.registry.of_kind(one["apiVersion"], one["kind"])
            if resource is None:
                continue
            namespace = made["metadata"].get("namespace", "")
            place = (namespace if resource.is_namespaced else "", one["name"])
            owner = self.store.peek(resource, place)
            if owner is None or owner["metadata"]["uid"] != one["uid"]:
                continue
            finalizers = owner["metadata"].get("finalizers") or []
            if FOREGROUND not in finalizers or self._blockers(owner):
                continue
            kept = [name for name in finalizers if name != FOREGROUND]
            meta = {**owner["metadata"], "finalizers": kept}
            owner = self.store.put(resource, {**owner, "metadata": meta})
            self._after_write(resource, owner)

    def _contents(self, namespace: str) -> list[tuple[Resource, Object]]:
        return [
            (resource, made)
            for resource in self.registry
            if resource.is_namespaced and not resource.is_virtual
            for made in self.store.scan(resource, namespace)
        ]

    def _empty_namespace(self, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        for resource, made in self._contents(name):
            now = self.store.peek(resource, place_of(made))
            if now and not now["metadata"].get("deletionTimestamp"):
                self._begin(resource, now, {"propagationPolicy": "Background"})
        kind = self.registry.named("namespaces")
        now = self.store.peek(kind, ("", name))
        if now:
            self._end_if_empty(kind, now)

    def _end_if_empty(self, kind: Resource, made: Object) -> None:
        meta = made["metadata"]
        if not meta.get("finalizers") and not self._contents(meta["name"]):
            self.store.remove(kind, made)

    def _empty_kind(self, crd: Object) -> None:
        spec = crd["spec"]
        resource = self.registry.get(spec["group"], spec["names"]["plural"])
        if resource is not None:
            for made in self.store.scan(resource):
                now = self.store.peek(resource, place_of(made))
                if now and not now["metadata"].get("deletionTimestamp"):
                    self._begin(resource, now, {"propagationPolicy": "Background"})
            if self.store.scan(resource):
                return
        kind = self.registry.named("customresourcedefinitions")
        now = self.store.peek(kind, place_of(crd))
        if now and not now["metadata"].get("finalizers"):
            self.registry.remove(spec["group"], spec["names"]["plural"])
            self.store.remove(kind, now)
