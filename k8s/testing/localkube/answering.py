"""Requests about objects -> answers. Who asks is known, and that it is allowed."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rayshim.k8s.testing.localkube import selectors, subresources
from rayshim.k8s.testing.localkube import statuses as refuse
from rayshim.k8s.testing.localkube.authorizing import Authenticator, Authorizer, User
from rayshim.k8s.testing.localkube.decoding import Write
from rayshim.k8s.testing.localkube.removing import Remover
from rayshim.k8s.testing.localkube.requests import Request
from rayshim.k8s.testing.localkube.resources import Resource
from rayshim.k8s.testing.localkube.reviews import review
from rayshim.k8s.testing.localkube.statuses import Refusal
from rayshim.k8s.testing.localkube.store import Place, place_of
from rayshim.k8s.testing.localkube.watching import View, Watch, revision_of
from rayshim.k8s.testing.localkube.writing import Writer

Object = dict[str, Any]

#: (namespace, pod, container or "", query) -> the log.
PodLog = Callable[[str, str, str, dict[str, str]], bytes]

JSON: Final = "application/json"


@dataclass(slots=True)
class Answer:
    """What goes back."""

    body: bytes
    code: int = 200
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, made: Any, code: int = 200) -> Answer:
        """An object."""
        return cls(msgspec.json.encode(made), code)


class Answerer:
    """Answers requests about objects.

    Args:
        writer: creates and changes them.
        remover: deletes them.
        authenticator: knows the tokens.
        authorizer: knows the roles.
    """

    def __init__(
        self,
        writer: Writer,
        remover: Remover,
        authenticator: Authenticator,
        authorizer: Authorizer,
    ) -> None:
        self.writer = writer
        self.remover = remover
        self.store = writer.store
        self.authenticator = authenticator
        self.authorizer = authorizer
        self.pod_log: PodLog | None = None

    def answer(self, request: Request, user: User) -> Answer | Watch:
        """Do what is asked.

        Raises:
            Refusal: it cannot be done.
        """
        target = request.target
        resource = self.writer.registry.get(target.group, target.resource)
        if resource is None or target.version not in resource.versions:
            raise refuse.not_found_path()
        write = self._write(request, user)
        if resource.is_virtual:
            if request.method != "POST":
                raise _not_allowed()
            sent = request.decoded() or {}
            made = review(resource, sent, user, self.authorizer, self.authenticator)
            return Answer.json(made, 201)
        namespace = target.namespace if resource.is_namespaced else ""
        if resource.is_namespaced and target.name and not namespace:
            raise refuse.not_found_path()
        if not target.name:
            answer = self._collection(request, resource, namespace, write)
        elif target.subresource not in ("", "status"):
            place = (namespace, target.name)
            answer = self._subresource(request, resource, place, write)
        else:
            answer = self._object(request, resource, (namespace, target.name), write)
        if write.warnings and isinstance(answer, Answer):
            words = (one.replace('"', '\\"') for one in write.warnings)
            answer.headers["Warning"] = ", ".join(f'299 - "{one}"' for one in words)
        return answer

    def _write(self, request: Request, user: User) -> Write:
        dry_run = request.query.get("dryRun", "")
        if dry_run not in ("", "All"):
            raise refuse.bad_request(
                f"dryRun: Unsupported value: {dry_run!r}: only All"
            )
        return Write(
            user=user.name,
            manager=request.manager,
            version=request.target.version,
            is_dry_run=dry_run == "All",
            on_unknown=request.query.get("fieldValidation") or "Warn",
        )

    def _collection(
        self, request: Request, resource: Resource, namespace: str, write: Write
    ) -> Answer | Watch:
        view = View(resource, request.target.version, request.shape)
        if request.method == "POST":
            if resource.is_namespaced and not namespace:
                raise _not_allowed()
            made = self.writer.create(resource, namespace, request.decoded(), write)
            return Answer.json(view.one(made), 201)
        test = _test(request)
        if request.method == "DELETE":
            options = self._options(request, write)
            gone = []
            for made in self.store.scan(resource, namespace):
                if test(made):
                    gone.append(made)
            for made in gone:
                if self.store.peek(resource, place_of(made)):
                    self.remover.delete(resource, place_of(made), options, write)
            return Answer.json(view.many(gone, self._list_meta()))
        if request.method not in ("GET", "HEAD"):
            raise _not_allowed()
        since = request.query.get("resourceVersion", "")
        if request.is_watch:
            return Watch(
                self.store,
                view,
                namespace=namespace,
                test=test,
                since=since,
                is_initial=request.is_flagged("sendInitialEvents"),
            )
        if since:
            revision_of(since, self.store)
        return self._list(request, resource, namespace, view, test)

    def _list(
        self,
        request: Request,
        resource: Resource,
        namespace: str,
        view: View,
        test: Callable[[Object], bool],
    ) -> Answer:
        """A list, in pages if it is to be limited.

        A page begins after the last object of the page before, as the objects are now.
        """
        with self.store.lock:
            found = [one for one in self.store.scan(resource, namespace) if test(one)]
            meta = self._list_meta()
        begin = request.query.get("continue", "")
        if begin:
            found = [one for one in found if place_of(one) > _place(begin)]
        limit = int(request.query.get("limit") or 0)
        if 0 < limit < len(found):
            meta["remainingItemCount"] = len(found) - limit
            found = found[:limit]
            place = json.dumps(place_of(found[-1])).encode()
            meta["continue"] = base64.urlsafe_b64encode(place).decode()
        return Answer.json(view.many(found, meta))

    def _list_meta(self) -> Object:
        return {"resourceVersion": str(self.store.revision)}

    def _object(
        self, request: Request, resource: Resource, place: Place, write: Write
    ) -> Answer:
        view = View(resource, request.target.version, request.shape)
        part = request.target.subresource
        if part and not resource.has_status:
            raise refuse.not_found_path()
        method = request.method
        if method in ("GET", "HEAD"):
            return Answer.json(view.one(self.writer.find(resource, place)))
        if method == "DELETE" and not part:
            options = self._options(request, write)
            made, is_gone = self.remover.delete(resource, place, options, write)
            if not is_gone or resource.key == ("", "pods"):
                return Answer.json(view.one(made))
            return Answer.json(_deleted(resource, made))
        if method == "PUT":
            sent = request.decoded()
            if not isinstance(sent, dict):
                raise refuse.bad_request("the request's body is no object")
            return self._put(resource, place, sent, write, part, view)
        if method != "PATCH":
            raise _not_allowed()
        sent = request.decoded()
        if not request.is_apply:
            kind = request.content_type
            made = self.writer.patch(resource, place, kind, sent, write, part)
            return Answer.json(view.one(made))
        made, is_new = self.writer.apply(
            resource,
            place,
            sent,
            write,
            is_forced=request.is_flagged("force"),
            subresource=part,
        )
        return Answer.json(view.one(made), 201 if is_new else 200)

    def _put(
        self,
        resource: Resource,
        place: Place,
        sent: Object,
        write: Write,
        part: str,
        view: View,
    ) -> Answer:
        is_custom = resource.is_custom
        if is_custom and not (sent.get("metadata") or {}).get("resourceVersion"):
            raise refuse.invalid(
                resource.kind,
                resource.group,
                place[1],
                [
                    (
                        "metadata.resourceVersion",
                        "Invalid value: 0x0: must be specified for an update",
                    )
                ],
            )
        return Answer.json(
            view.one(self.writer.update(resource, place, sent, write, part))
        )

    def _subresource(
        self, request: Request, resource: Resource, place: Place, write: Write
    ) -> Answer:
        part, method = request.target.subresource, request.method
        match resource.key, part, method:
            case _, "scale", "GET":
                found = self.writer.find(resource, place)
                return Answer.json(subresources.scale_of(resource, found))
            case _, "scale", "PUT" | "PATCH":
                kind = request.content_type if method == "PATCH" else ""
                sent = request.decoded()
                return Answer.json(
                    subresources.write_scale(
                        self.writer, resource, place, sent, kind, write
                    )
                )
            case ("", "pods"), "log", "GET":
                return self._log(request, resource, place)
            case ("", "pods"), "binding", "POST":
                sent = request.decoded() or {}
                made = subresources.bind(self.writer, resource, place, sent)
                return Answer.json(made, 201)
            case ("", "pods"), "eviction", "POST":
                sent = request.decoded() or {}
                made = subresources.evict(
                    self.writer, self.remover, resource, place, sent, write
                )
                return Answer.json(made, 201)
            case ("", "serviceaccounts"), "token", "POST":
                self.writer.find(resource, place)
                sent = request.decoded() or {}
                made = subresources.token_of(self.authenticator, place, sent)
                return Answer.json(made, 201)
            case ("", "pods"), "exec" | "attach" | "portforward", _:
                raise Refusal(
                    501,
                    "NotImplemented",
                    f"pods/{part} is not supported by this server: look into the pod's "
                    "log, or connect to its address",
                )
        raise refuse.not_found_path()

    def _log(self, request: Request, resource: Resource, place: Place) -> Answer:
        pod = self.writer.find(resource, place)
        if self.pod_log is None:
            raise Refusal(
                501,
                "NotImplemented",
                f"there is no kubelet that keeps the log of pod {place[1]}: set "
                "ApiServer.pod_log",
            )
        container = request.query.get("container", "")
        known = [
            one["name"]
            for name in ("initContainers", "containers")
            for one in pod["spec"].get(name) or []
        ]
        if container and container not in known:
            raise refuse.bad_request(
                f"container {container} is not valid for pod {place[1]}"
            )
        text = self.pod_log(place[0], place[1], container, dict(request.query))
        return Answer(text, content_type="text/plain")

    def _options(self, request: Request, write: Write) -> Object:
        sent = request.decoded() or {}
        if not isinstance(sent, dict):
            raise refuse.bad_request("the request's body is no DeleteOptions")
        if sent.get("dryRun"):
            write.is_dry_run = True
        options = dict(sent)
        seconds = request.query.get("gracePeriodSeconds")
        if seconds is not None:
            options.setdefault("gracePeriodSeconds", int(seconds))
        policy = request.query.get("propagationPolicy")
        if policy:
            options.setdefault("propagationPolicy", policy)
        return options


def _test(request: Request) -> Callable[[Object], bool]:
    labels = selectors.parse_labels(request.query.get("labelSelector", ""))
    fields = selectors.parse_fields(request.query.get("fieldSelector", ""))
    return lambda made: labels(made["metadata"].get("labels") or {}) and fields(made)


def _place(text: str) -> Place:
    try:
        namespace, name = json.loads(base64.urlsafe_b64decode(text))
    except ValueError as error:
        raise refuse.bad_request(f"continue key is not valid: {error}") from error
    return namespace, name


def _deleted(resource: Resource, made: Object) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": made["metadata"]["name"],
            "group": resource.group,
            "kind": resource.plural,
            "uid": made["metadata"]["uid"],
        },
    }


def _not_allowed() -> Refusal:
    return Refusal(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    )
