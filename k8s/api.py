"""Kubernetes' API with objects as plain maps, and errors that say what to do.

The official client does the connection (kubeconfig, tokens, TLS); its generated classes
are left out, since custom resources have none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from kubernetes import client, config
from kubernetes.client import ApiClient
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from rayshim.k8s import names

Object = dict[str, Any]

#: Seconds for one answer.
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Where objects of a kind are."""

    api_version: str
    name: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str | None, name: str = "") -> str:
        """Path of the collection, or of one object of it."""
        prefix = "api" if "/" not in self.api_version else "apis"
        parts = [prefix, self.api_version]
        if self.is_namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/" + "/".join([*parts, self.plural, *([name] if name else [])])


def _kinds() -> dict[str, Kind]:
    rows = [
        ("v1", "Namespace", "namespaces", False),
        ("v1", "Node", "nodes", False),
        ("v1", "Pod", "pods", True),
        ("v1", "Service", "services", True),
        ("v1", "Event", "events", True),
        ("v1", "ConfigMap", "configmaps", True),
        ("v1", "Secret", "secrets", True),
        ("v1", "ServiceAccount", "serviceaccounts", True),
        ("v1", "PersistentVolumeClaim", "persistentvolumeclaims", True),
        ("apps/v1", "Deployment", "deployments", True),
        ("apps/v1", "StatefulSet", "statefulsets", True),
        ("coordination.k8s.io/v1", "Lease", "leases", True),
        ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True),
        ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", True),
        ("networking.k8s.io/v1", "Ingress", "ingresses", True),
        ("rbac.authorization.k8s.io/v1", "Role", "roles", True),
        ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", True),
        (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            False,
        ),
        ("kubernetes.dask.org/v1", "DaskCluster", "daskclusters", True),
        ("kubernetes.dask.org/v1", "DaskWorkerGroup", "daskworkergroups", True),
        ("cert-manager.io/v1", "Certificate", "certificates", True),
        ("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", True),
        ("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", True),
        ("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules", True),
        ("kueue.x-k8s.io/v1beta2", "LocalQueue", "localqueues", True),
        ("kueue.x-k8s.io/v1beta2", "ClusterQueue", "clusterqueues", False),
        ("kueue.x-k8s.io/v1beta2", "ResourceFlavor", "resourceflavors", False),
        ("kueue.x-k8s.io/v1beta2", "Topology", "topologies", False),
        (
            "kueue.x-k8s.io/v1beta2",
            "WorkloadPriorityClass",
            "workloadpriorityclasses",
            False,
        ),
        ("karpenter.sh/v1", "NodePool", "nodepools", False),
        ("karpenter.k8s.aws/v1", "EC2NodeClass", "ec2nodeclasses", False),
    ]
    return {row[1]: Kind(*row) for row in rows}


KINDS = _kinds()


class KubeError(RuntimeError):
    """Kubernetes refused; the text names the object, the cause and the next step.

    Attributes:
        status: HTTP status.
        reason: Kubernetes' word for it, as "AlreadyExists".
    """

    def __init__(self, text: str, status: int = 0, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class NotFound(KubeError):
    """There is no such object, or no such kind of objects."""


class Conflict(KubeError):
    """The object exists already, or was changed by somebody else meanwhile."""


class Forbidden(KubeError):
    """A Role is lacking."""


class Invalid(KubeError):
    """The object is not as its schema wants it."""


class Unreachable(ConnectionError):
    """The API server does not answer."""


class Kube:
    """A namespace of a Kubernetes cluster.

    Args:
        api: the official client's connection.
        namespace: where namespaced objects are, unless they say otherwise.

    Thread safety: each method may be called from any thread; a watch belongs to one.

    Example:
        >>> kube = Kube.load(namespace="ray-prod")
        >>> [one["metadata"]["name"] for one in kube.list("Pod")]
    """

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    @classmethod
    def load(
        cls,
        *,
        namespace: str,
        context: str | None = None,
        kubeconfig: str | None = None,
    ) -> Kube:
        """Connect as the pod's ServiceAccount, or as kubeconfig says.

        Raises:
            Unreachable: there is neither.
        """
        settings = client.Configuration()
        try:
            if context is None and kubeconfig is None:
                try:
                    config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
                    return cls(ApiClient(settings), namespace)
                except config.ConfigException:
                    pass
            config.load_kube_config(  # type: ignore[no-untyped-call]
                kubeconfig, context=context, client_configuration=settings
            )
        except (config.ConfigException, OSError, YAMLError, ValueError) as error:
            file = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
            raise Unreachable(
                f"no Kubernetes cluster to talk to: kubeconfig {file}: "
                f"{str(error).rstrip('.')}. Set KUBECONFIG, or pass --context of a "
                "kubeconfig (aws eks update-kubeconfig writes one)"
            ) from error
        return cls(ApiClient(settings), namespace)

    def close(self) -> None:
        """End the connections."""
        self._api.rest_client.pool_manager.clear()

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object; None if there is none."""
        path = KINDS[kind].path(namespace or self.namespace, name)
        try:
            return self._json("GET", path, f"get {kind} {name}")
        except NotFound:
            return None

    def list(
        self,
        kind: str,
        labels: Mapping[str, str] | None = None,
        *,
        namespace: str | None = None,
        everywhere: bool = False,
    ) -> list[Object]:
        """All objects that have these labels; none also if the kind is unknown.

        Args:
            kind: as "Pod".
            labels: label -> value; a value "" asks for the label alone.
            namespace: another one than usual.
            everywhere: in all namespaces.
        """
        items: list[Object] = self.list_page(kind, labels, namespace, everywhere)[
            "items"
        ]
        return items

    def list_page(
        self,
        kind: str,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
        everywhere: bool = False,
    ) -> Object:
        """As :meth:`list`, with the list's metadata (``resourceVersion``)."""
        where = None if everywhere else namespace or self.namespace
        path = KINDS[kind].path(where)
        query = {"labelSelector": selector(labels)} if labels else {}
        try:
            return self._json("GET", path, f"list {KINDS[kind].plural}", query=query)
        except NotFound:
            return {"items": [], "metadata": {"resourceVersion": "0"}}

    def create(self, made: Object) -> Object:
        """Create an object.

        Raises:
            Conflict: it exists.
        """
        kind, name, namespace = self._place(made)
        path = KINDS[kind].path(namespace)
        return self._json("POST", path, f"create {kind} {name}", made)

    def apply(self, made: Object, *, dry_run: bool = False) -> Object:
        """Create it or bring its fields to what is given (server-side apply).

        Args:
            made: with apiVersion, kind and metadata.name.
            dry_run: only ask what would come of it.
        """
        kind, name, namespace = self._place(made)
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        return self._json(
            "PATCH",
            KINDS[kind].path(namespace, name),
            f"apply {kind} {name}",
            made,
            query=query,
            content_type="application/apply-patch+yaml",
        )

    def patch(
        self,
        kind: str,
        name: str,
        change: Object,
        *,
        subresource: str = "",
        namespace: str | None = None,
    ) -> Object:
        """Merge a change into an object (JSON merge patch).

        A ``metadata.resourceVersion`` in the change makes the write fail with
        :class:`Conflict` if the object has changed since.
        """
        path = KINDS[kind].path(namespace or self.namespace, name)
        return self._json(
            "PATCH",
            f"{path}/{subresource}" if subresource else path,
            f"patch {kind} {name}",
            change,
            content_type="application/merge-patch+json",
        )

    def replace(self, made: Object) -> Object:
        """Write a whole object; its resourceVersion must be the newest."""
        kind, name, namespace = self._place(made)
        path = KINDS[kind].path(namespace, name)
        return self._json("PUT", path, f"replace {kind} {name}", made)

    def delete(
        self,
        kind: str,
        name: str,
        *,
        namespace: str | None = None,
        grace_s: int | None = None,
        uid: str = "",
    ) -> bool:
        """Delete an object, and in the background what it owns; False: there is none.

        Args:
            kind: as "Pod".
            name: of the object.
            namespace: another one than usual.
            grace_s: seconds that a pod's processes have to end; 0 kills them.
            uid: only if it is still this one.
        """
        path = KINDS[kind].path(namespace or self.namespace, name)
        options: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            self._json("DELETE", path, f"delete {kind} {name}", options)
        except NotFound:
            return False
        return True

    def watch(
        self,
        kind: str,
        labels: Mapping[str, str] | None = None,
        *,
        resource_version: str = "",
        limit_s: int = 60,
        on_open: Callable[[Callable[[], None]], None] | None = None,
    ) -> Iterator[tuple[str, Object]]:
        """What happens to objects: (type, object).

        Types are "ADDED", "MODIFIED", "DELETED", and "ERROR" with a Status.

        Args:
            kind: as "Pod".
            labels: as for :meth:`list`.
            resource_version: of a list, to hear of everything since.
            limit_s: seconds after which the server ends the watch.
            on_open: is given a function that ends it from any other thread.
        """
        query = {"watch": "true", "timeoutSeconds": str(limit_s)}
        if labels:
            query["labelSelector"] = selector(labels)
        if resource_version:
            query["resourceVersion"] = resource_version
        path = KINDS[kind].path(self.namespace)
        doing = f"watch {KINDS[kind].plural}"
        response = self._send(
            "GET", path, doing, query=query, timeout_s=limit_s + TIMEOUT_S, stream=True
        )
        if on_open is not None:
            on_open(response.shutdown)
        rest = b""
        try:
            for chunk in response.stream(amt=None, decode_content=False):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    yield event["type"], event["object"]
        except HTTPError as error:
            raise Unreachable(f"{doing}: the API server went away: {error}") from error
        finally:
            response.close()

    def text(self, path: str, **query: str) -> str:
        """Whatever is at a path, such as a pod's log or "/version"."""
        response = self._send("GET", path, f"read {path}", query=query)
        return bytes(response.data).decode(errors="replace")

    def _place(self, made: Mapping[str, Any]) -> tuple[str, str, str]:
        meta = made["metadata"]
        return made["kind"], meta["name"], meta.get("namespace") or self.namespace

    def _json(
        self,
        method: str,
        path: str,
        doing: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        found = self._send(
            method, path, doing, body, query=query, content_type=content_type
        )
        answer: Object = json.loads(found.data or b"{}")
        return answer

    def _send(
        self,
        method: str,
        path: str,
        doing: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = TIMEOUT_S,
        stream: bool = False,
    ) -> Any:
        settings = self._api.configuration
        headers = {"Accept": "application/json", "Content-Type": content_type}
        for one in settings.auth_settings().values():
            if one["in"] == "header" and one["value"]:
                headers[one["key"]] = one["value"]
        url = settings.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._api.rest_client.pool_manager.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=timeout_s,
                retries=False,
                preload_content=not stream,
            )
        except HTTPError as error:
            raise Unreachable(
                f"{doing}: the API server at {settings.host} does not answer: {error}"
            ) from error
        if response.status >= 400:
            raise self._error(doing, response)
        return response

    def _error(self, doing: str, response: Any) -> KubeError | Unreachable:
        text = bytes(response.data or response.read() or b"").decode(errors="replace")
        try:
            status = json.loads(text)
            message, reason = status.get("message", text), status.get("reason", "")
        except (ValueError, AttributeError):
            message, reason = text[:300], ""
        code = response.status
        if code == 401:
            message = f"the credentials were refused ({message}); log in again"
        if code == 429 or (code >= 500 and code != 501):
            return Unreachable(f"{doing} in {self.namespace}: {code} {message}")
        kinds = {401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict}
        made = {400: Invalid, 422: Invalid, **kinds}.get(code, KubeError)
        return made(f"{doing} in {self.namespace}: {message}", code, reason)


def selector(labels: Mapping[str, str]) -> str:
    """A label selector: equality of each, or presence where the value is empty."""
    return ",".join(
        f"{name}={value}" if value else name for name, value in labels.items()
    )
