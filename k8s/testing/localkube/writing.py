"""Creating and changing objects, in the order of the real server.

Decode (unknown fields and nulls go, types are checked) -> defaults -> admission ->
validation -> fields' managers -> the store.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from rayshim.k8s.testing.localkube import applying, built_in, patching
from rayshim.k8s.testing.localkube import statuses as refuse
from rayshim.k8s.testing.localkube.decoding import Decoder, Write
from rayshim.k8s.testing.localkube.resources import Registry, Resource, of_crd
from rayshim.k8s.testing.localkube.statuses import Refusal
from rayshim.k8s.testing.localkube.store import Place, Store, owners

Object = dict[str, Any]

#: (verb "create", "update" or "delete"; "pods" or "daskclusters.kubernetes.dask.org";
#: the object; the user) -> the object to store instead. Raises Refusal to refuse it.
Admission = Callable[[str, str, Object, str], Object]

#: What names made by ``generateName`` end with.
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
#: Of ``metadata``: what only the server writes.
_FIXED: Final = (
    "uid",
    "creationTimestamp",
    "generation",
    "name",
    "namespace",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)
#: Kinds whose objects start with the status that they are created with.
_BRING_STATUS: Final = frozenset({"Node", "CustomResourceDefinition"})
_PRIORITIES: Final = {
    "system-node-critical": 2_000_001_000,
    "system-cluster-critical": 2_000_000_000,
}


def timestamp(when: datetime | None = None) -> str:
    """A time as objects have it."""
    when = when or datetime.now(UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


class Writer:
    """Creates and changes the objects of a store.

    Args:
        store: the objects.
        admission: hooks, called in order.
    """

    def __init__(self, store: Store, admission: list[Admission]) -> None:
        self.store = store
        self.registry: Registry = store.registry
        self.admission = admission
        #: Called with each object that was written, under the lock.
        self.after_write: Callable[[Resource, Object], None] = lambda *_: None
        self.decoder = Decoder()
        self._service_ips = 0

    def create(
        self, resource: Resource, namespace: str, sent: Object, write: Write
    ) -> Object:
        """Create an object.

        Raises:
            Refusal: it exists, is not valid, or its namespace does not take it.
        """
        with self.store.lock:
            made = self._new(resource, namespace, sent)
            self._check_namespace(resource, made)
            made = self.decoder.decode(resource, made, write)
            place = (made["metadata"].get("namespace", ""), made["metadata"]["name"])
            self._reset(resource, made)
            self._depends_on(resource, made)
            made = self._admitted("create", resource, made, write)
            self._validate(resource, made, None, write)
            if self.store.peek(resource, place):
                raise refuse.already_exists(resource.plural, resource.group, place[1])
            made = self._managed(resource, None, made, write)
            return self._kept(resource, made, write)

    def update(
        self,
        resource: Resource,
        place: Place,
        sent: Object,
        write: Write,
        subresource: str = "",
    ) -> Object:
        """Write a whole object.

        Args:
            resource: its kind.
            place: where it is.
            sent: the object; with a resourceVersion, that must be the newest.
            write: how.
            subresource: "status" to write that alone.

        Raises:
            Refusal: there is none, it has changed, or would not be valid.
        """
        with self.store.lock:
            before = self.find(resource, place)
            self._check_same(resource, place, before, sent)
            made = self._changed(resource, before, sent, write, subresource)
            made = self._admitted("update", resource, made, write)
            self._validate(resource, made, before, write)
            made = self._managed(resource, before, made, write, subresource)
            return self._replaced(resource, before, made, write)

    def patch(
        self,
        resource: Resource,
        place: Place,
        content_type: str,
        body: Any,
        write: Write,
        subresource: str = "",
    ) -> Object:
        """Change an object by a merge patch, JSON patch or strategic merge patch.

        Raises:
            Refusal: there is none, the patch does not fit, or its result is not valid.
        """
        with self.store.lock:
            before = self.find(resource, place)
            if content_type == "application/json-patch+json":
                sent = patching.json_patch(before, body)
            elif not isinstance(body, dict):
                raise refuse.bad_request("error decoding patch: it is no object")
            elif content_type == "application/merge-patch+json":
                sent = patching.merge(before, body)
            elif content_type != "application/strategic-merge-patch+json" or (
                resource.is_custom
            ):
                raise Refusal(
                    415,
                    "UnsupportedMediaType",
                    "the body of the request was in an unknown format - accepted media "
                    "types include: application/json-patch+json, "
                    "application/merge-patch+json, application/apply-patch+yaml",
                )
            else:
                schema = self.decoder.schema(resource, write.version)
                sent = patching.strategic_merge(before, body, schema)
            return self.update(resource, place, sent, write, subresource)

    def apply(
        self,
        resource: Resource,
        place: Place,
        sent: Object,
        write: Write,
        *,
        is_forced: bool,
        subresource: str = "",
    ) -> tuple[Object, bool]:
        """Server-side apply.

        Returns:
            (the object, whether it was created).

        Raises:
            Refusal: 409 if others manage fields and it is not forced.
        """
        if not write.manager:
            raise refuse.bad_request(
                'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required '
                "value: is required for apply patch"
            )
        with self.store.lock:
            before = self.store.peek(resource, place)
            if before is None and subresource:
                raise refuse.not_found(resource.plural, resource.group, place[1])
            if (sent.get("metadata") or {}).get("managedFields"):
                raise refuse.bad_request("metadata.managedFields must be nil")
            if before is None:
                sent = self._new(resource, place[0], sent, place[1])
                self._check_namespace(resource, sent)
            else:
                self._check_same(resource, place, before, sent)
            applied = self.decoder.decode(resource, sent, write, is_partial=True)
            applied = _only(resource, applied, subresource)
            made = applying.apply(
                before,
                applied,
                self.decoder.schema(resource, write.version),
                self._manager(resource, write, subresource, is_apply=True),
                is_forced=is_forced,
            )
            if before is None:
                made = self.decoder.decode(resource, made, write)
                self._reset(resource, made)
                self._depends_on(resource, made)
                made = self._admitted("create", resource, made, write)
                self._validate(resource, made, None, write)
                return self._kept(resource, made, write), True
            fields = made["metadata"]["managedFields"]
            made = self._changed(resource, before, made, write, subresource)
            made = self._admitted("update", resource, made, write)
            made["metadata"]["managedFields"] = fields
            self._validate(resource, made, before, write)
            return self._replaced(resource, before, made, write), False

    def find(self, resource: Resource, place: Place) -> Object:
        """The object at a place.

        Raises:
            Refusal: there is none.
        """
        found = self.store.peek(resource, place)
        if found is None:
            raise refuse.not_found(resource.plural, resource.group, place[1])
        return found

    def _new(
        self, resource: Resource, namespace: str, sent: Object, name: str = ""
    ) -> Object:
        if not isinstance(sent, dict):
            raise refuse.bad_request("the request's body is no object")
        self._check_kind(resource, sent)
        meta = dict(sent.get("metadata") or {})
        if name:
            meta.setdefault("name", name)
        if not meta.get("name"):
            prefix = meta.get("generateName")
            if not prefix:
                raise refuse.invalid(
                    resource.kind,
                    resource.group,
                    "",
                    [
                        (
                            "metadata.name",
                            "Required value: name or generateName is required",
                        )
                    ],
                )
            meta["name"] = prefix + "".join(random.choices(_LETTERS, k=5))
        if name and meta["name"] != name:
            raise _other_name(meta["name"], name)
        if resource.is_namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise _other_namespace()
        else:
            meta.pop("namespace", None)
        for one in ("resourceVersion", "selfLink", "managedFields"):
            meta.pop(one, None)
        for one in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            meta.pop(one, None)
        meta |= {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": timestamp(),
            "generation": 1,
        }
        return {**sent, "metadata": meta}

    def _check_kind(self, resource: Resource, sent: Object) -> None:
        kind, version = sent.get("kind"), sent.get("apiVersion")
        group = str(version or "").rpartition("/")[0]
        if kind not in (None, "", resource.kind) or (
            version and group != resource.group
        ):
            raise refuse.bad_request(
                f"{resource.kind} in {resource.api_version()} was expected, the object "
                f"is a {kind} in {version}"
            )

    def _check_namespace(self, resource: Resource, made: Object) -> None:
        if not resource.is_namespaced:
            return
        kind = self.registry.named("namespaces")
        name = made["metadata"]["namespace"]
        namespace = self.store.peek(kind, ("", name))
        if namespace is None:
            raise refuse.not_found("namespaces", "", name)
        if namespace["metadata"].get("deletionTimestamp"):
            raise Refusal(
                403,
                "Forbidden",
                f'{resource.full_name} "{made["metadata"]["name"]}" is forbidden: '
                f"unable to create new content in namespace {name} because it is being "
                "terminated",
                {"causes": [{"reason": "NamespaceTerminating"}]},
            )

    def _check_same(
        self, resource: Resource, place: Place, before: Object, sent: Object
    ) -> None:
        self._check_kind(resource, sent)
        meta, old = sent.get("metadata") or {}, before["metadata"]
        if meta.get("name", place[1]) != place[1]:
            raise _other_name(meta["name"], place[1])
        if resource.is_namespaced and meta.get("namespace", place[0]) != place[0]:
            raise _other_namespace()
        if meta.get("uid", old["uid"]) != old["uid"]:
            raise refuse.conflict(
                resource.plural,
                resource.group,
                place[1],
                f"Precondition failed: UID in precondition: {meta['uid']}, UID in "
                f"object meta: {old['uid']}",
            )
        version = meta.get("resourceVersion")
        if version and version != old["resourceVersion"]:
            raise refuse.conflict(resource.plural, resource.group, place[1])

    def _reset(self, resource: Resource, made: Object) -> None:
        """The status of a new object."""
        if resource.kind in _BRING_STATUS and not resource.is_custom:
            pass
        elif resource.has_status:
            made.pop("status", None)
        if not resource.is_custom:
            status = built_in.first_status(resource.kind, made)
            if status is not None:
                made["status"] = status
        if resource.kind == "Service" and not resource.group:
            self._give_address(made.setdefault("spec", {}))

    def _give_address(self, spec: Object) -> None:
        if spec.get("type") == "ExternalName" or spec.get("clusterIP"):
            return
        self._service_ips += 1
        high, low = divmod(self._service_ips, 250)
        spec["clusterIP"] = f"10.96.{high}.{low + 1}"
        spec["clusterIPs"] = [spec["clusterIP"]]

    def _depends_on(self, resource: Resource, made: Object) -> None:
        """A pod's service account and priority class must be there."""
        if resource.key != ("", "pods"):
            return
        spec, meta = made["spec"], made["metadata"]
        head = f'pods "{meta["name"]}" is forbidden: '
        account = spec["serviceAccountName"]
        kind = self.registry.named("serviceaccounts")
        if not self.store.peek(kind, (meta["namespace"], account)):
            raise Refusal(
                403,
                "Forbidden",
                f"{head}error looking up service account "
                f'{meta["namespace"]}/{account}: serviceaccount "{account}" not found',
            )
        name = spec.get("priorityClassName")
        if name and name not in _PRIORITIES:
            found = self.store.peek(self.registry.named("priorityclasses"), ("", name))
            if not found:
                raise Refusal(
                    403,
                    "Forbidden",
                    f"{head}no PriorityClass with name {name} was found",
                )
            spec["priority"] = found.get("value", 0)
        else:
            spec["priority"] = _PRIORITIES.get(name or "", 0)

    def _changed(
        self,
        resource: Resource,
        before: Object,
        sent: Object,
        write: Write,
        subresource: str,
    ) -> Object:
        """The object after a change, before admission."""
        if subresource == "status":
            # Labels and annotations of built-in kinds could change too: nobody does it.
            sent = {**before, "status": sent.get("status")}
        old = before["metadata"]
        meta = dict(sent.get("metadata") or {})
        for name in _FIXED:
            meta.pop(name, None)
            if name in old:
                meta[name] = old[name]
        sent = {**sent, "metadata": meta}
        if resource.has_status and not subresource:
            sent["status"] = before.get("status")
        made = self.decoder.decode(resource, sent, write)
        made["metadata"]["managedFields"] = old.get("managedFields") or []
        if resource.kind == "Service" and not resource.group:
            address = before["spec"].get("clusterIP")
            if address and not made["spec"].get("clusterIP"):
                made["spec"]["clusterIP"] = address
                made["spec"]["clusterIPs"] = before["spec"].get("clusterIPs")
        return made

    def _admitted(
        self, verb: str, resource: Resource, made: Object, write: Write
    ) -> Object:
        for hook in self.admission:
            name = (made["metadata"].get("namespace"), made["metadata"]["name"])
            made = hook(verb, resource.full_name, made, write.user)
            if (made["metadata"].get("namespace"), made["metadata"]["name"]) != name:
                raise RuntimeError(
                    f"an admission hook renamed {resource.plural} {name}"
                )
        if self.admission and resource.kind == "Pod" and verb == "create":
            made["status"] = built_in.first_status("Pod", made)
        return made

    def _validate(
        self, resource: Resource, made: Object, before: Object | None, write: Write
    ) -> None:
        meta = made["metadata"]
        found = list(
            built_in.faults_of_metadata(
                "" if resource.is_custom else resource.kind, resource.group, meta
            )
        )
        if resource.is_custom:
            found += self.decoder.faults(resource, made, write.version)
        else:
            found += built_in.faults(resource.kind, made, before)
            if resource.kind == "Pod" and before:
                found += built_in.faults_of_gates(before["spec"], made["spec"])
        if resource.kind == "CustomResourceDefinition" and not resource.is_custom:
            spec = made.get("spec") or {}
            wanted = f"{(spec.get('names') or {}).get('plural')}.{spec.get('group')}"
            if meta["name"] != wanted:
                found.append(
                    (
                        "metadata.name",
                        f'Invalid value: "{meta["name"]}": must be {wanted}',
                    )
                )
        if before and before["metadata"].get("deletionTimestamp"):
            had = before["metadata"].get("finalizers") or []
            added = [one for one in meta.get("finalizers") or [] if one not in had]
            if added:
                found.append(
                    (
                        "metadata.finalizers",
                        "Forbidden: no new finalizers can be added if the object is "
                        f"being deleted, found new finalizers {added}",
                    )
                )
        if found:
            raise refuse.invalid(resource.kind, resource.group, meta["name"], found)

    def _manager(
        self, resource: Resource, write: Write, subresource: str, *, is_apply: bool
    ) -> applying.Manager:
        return applying.Manager(
            name=write.manager,
            is_apply=is_apply,
            api_version=resource.api_version(write.version),
            subresource=subresource,
            time=timestamp(),
        )

    def _managed(
        self,
        resource: Resource,
        before: Object | None,
        made: Object,
        write: Write,
        subresource: str = "",
    ) -> Object:
        schema = self.decoder.schema(resource, write.version)
        manager = self._manager(resource, write, subresource, is_apply=False)
        return applying.track(before, made, schema, manager)

    def _kept(self, resource: Resource, made: Object, write: Write) -> Object:
        if resource.kind == "CustomResourceDefinition" and not resource.is_custom:
            of_crd(made)  # Raises on what is none before anything is kept.
            names = made["spec"]["names"]
            made["status"] = {
                "acceptedNames": names,
                "storedVersions": [
                    one["name"]
                    for one in made["spec"]["versions"]
                    if one.get("storage")
                ],
                "conditions": [
                    {
                        "type": "NamesAccepted",
                        "status": "True",
                        "reason": "NoConflicts",
                    },
                    {"type": "Established", "status": "True", "reason": "InitialNames"},
                ],
            }
        if write.is_dry_run:
            return made
        made = self.store.put(resource, made)
        self.after_write(resource, made)
        return made

    def _replaced(
        self, resource: Resource, before: Object, made: Object, write: Write
    ) -> Object:
        if _bare(made, with_status=True) == _bare(before, with_status=True):
            return before
        with_status = not resource.has_status
        if _bare(made, with_status, False) != _bare(before, with_status, False):
            made["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
        if write.is_dry_run:
            made["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            return made
        made = self.store.put(resource, made)
        self.after_write(resource, made)
        return made

    def has_living_owner(self, made: Object) -> bool:
        """Whether one of an object's owners is there; True if it names none."""
        listed = made["metadata"].get("ownerReferences") or []
        if not owners(made):
            return True
        for one in listed:
            resource = self.registry.of_kind(one["apiVersion"], one["kind"])
            if resource is None:
                return True  # Nobody knows.
            namespace = made["metadata"].get("namespace", "")
            place = (namespace if resource.is_namespaced else "", one["name"])
            found = self.store.peek(resource, place)
            if found and found["metadata"]["uid"] == one["uid"]:
                return True
        return False


def _bare(
    made: Object, with_status: bool = False, with_metadata: bool = True
) -> Object:
    """What counts when two states of an object are compared."""
    bare = dict(made)
    meta = bare.pop("metadata")
    if not with_status:
        bare.pop("status", None)
    if with_metadata:
        bare["metadata"] = {k: v for k, v in meta.items() if k != "resourceVersion"}
    return bare


def _only(resource: Resource, applied: Object, subresource: str) -> Object:
    """What of an applied object counts: the status, or the rest."""
    if subresource:
        kept = {"apiVersion", "kind", "metadata", subresource}
        bare = {k: v for k, v in applied.items() if k in kept}
        meta = {k: v for k, v in bare["metadata"].items() if k in ("name", "namespace")}
        return {**bare, "metadata": meta}
    if resource.has_status:
        return {k: v for k, v in applied.items() if k != "status"}
    return applied


def _other_name(sent: str, asked: str) -> Refusal:
    return refuse.bad_request(
        f"the name of the object ({sent}) does not match the name on the URL ({asked})"
    )


def _other_namespace() -> Refusal:
    return refuse.bad_request(
        "the namespace of the provided object does not match the namespace sent on the "
        "request"
    )
