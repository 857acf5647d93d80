"""Who asks, what Roles allow, and what was asked.

Source: Kubernetes' page "Using RBAC Authorization". Roles are read anew for each
request. Creating a Role that allows more than its author may do is not prevented here.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rayshim.k8s.testing.localkube.statuses import Refusal, full_name

Object = dict[str, Any]

MASTERS: Final = "system:masters"
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"
#: What everybody who is known may create: questions about oneself.
_ABOUT_ONESELF: Final = frozenset(
    {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
)


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    groups: tuple[str, ...] = ()

    @classmethod
    def named(cls, name: str, groups: Iterable[str] = ()) -> User:
        """A user with the groups that the server adds."""
        made = [*groups]
        if name.startswith(_SERVICE_ACCOUNT):
            namespace = name.split(":")[2]
            made += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        return cls(name, tuple(dict.fromkeys([*made, "system:authenticated"])))


@dataclass(frozen=True, slots=True)
class Call:
    """A request, as RBAC sees it.

    Attributes:
        user: who asked; "system:serviceaccount:<namespace>:<name>" for example.
        verb: "get", "list", "watch", "create", "update", "patch", "delete" or
            "deletecollection".
        group: API group, "" for the core one.
        resource: plural name.
        subresource: "" or as "status".
        namespace: "" for all, and for kinds that are in none.
        name: of the object, "" where none is named.
    """

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str

    @property
    def full_resource(self) -> str:
        """As rules name it: "deployments/scale"."""
        return "/".join(filter(None, (self.resource, self.subresource)))


class Authenticator:
    """Bearer tokens and whose they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Token -> user.
        self._users: dict[str, User] = {}
        #: User -> token.
        self._tokens: dict[User, str] = {}

    def token(self, name: str, groups: Iterable[str] = ()) -> str:
        """The token of a user; always the same one."""
        user = User.named(name, groups)
        with self._lock:
            if user not in self._tokens:
                token = secrets.token_urlsafe(24)
                self._tokens[user], self._users[token] = token, user
            return self._tokens[user]

    def user(self, header: str) -> User:
        """Whose an ``Authorization`` header is.

        Raises:
            Refusal: 401, nobody's.
        """
        scheme, _, token = header.partition(" ")
        found = self._users.get(token.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        return found

    def of_token(self, token: str) -> User | None:
        """Whose a token is; None: nobody's."""
        return self._users.get(token)


@dataclass(frozen=True, slots=True)
class Grant:
    """One verb on one resource that a role allows.

    Attributes:
        role: where it stands, as "Role ray-prod/demo-autoscaler".
        namespace: where it holds, "" for everywhere.
        verb: or "*".
        group: or "*".
        resource: or "*", with "/subresource".
        names: of the objects that it is restricted to; empty for all.
    """

    role: str
    namespace: str
    verb: str
    group: str
    resource: str
    names: tuple[str, ...] = ()

    def allows(self, call: Call) -> bool:
        """Whether a request is allowed by this."""
        wanted = call.full_resource
        return (
            self.namespace in ("", call.namespace)
            and self.verb in ("*", call.verb)
            and self.group in ("*", call.group)
            and (
                self.resource in ("*", wanted)
                or (bool(call.subresource) and self.resource == f"*/{call.subresource}")
            )
            and (not self.names or call.name in self.names)
        )

    def __str__(self) -> str:
        what = full_name(self.resource, self.group)
        named = f" {', '.join(self.names)}" if self.names else ""
        return f"{self.role}: {self.verb} {what}{named}"


def grants_of(objects: Iterable[Mapping[str, Any]], user: User) -> list[Grant]:
    """What roles and bindings allow a user.

    Args:
        objects: Roles, RoleBindings, ClusterRoles and ClusterRoleBindings; others are
            passed over.
        user: whose.
    """
    roles: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    bindings: list[Mapping[str, Any]] = []
    for one in objects:
        meta = one["metadata"]
        if one["kind"] in ("Role", "ClusterRole"):
            namespace = meta.get("namespace", "") if one["kind"] == "Role" else ""
            roles[one["kind"], namespace, meta["name"]] = one
        elif one["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            bindings.append(one)
    found: list[Grant] = []
    for one in bindings:
        is_everywhere = one["kind"] == "ClusterRoleBinding"
        namespace = "" if is_everywhere else one["metadata"].get("namespace", "")
        if not any(_is(s, user, namespace) for s in one.get("subjects") or []):
            continue
        kind, name = one["roleRef"]["kind"], one["roleRef"]["name"]
        role = roles.get((kind, namespace if kind == "Role" else "", name))
        if role is not None:
            place = f"{namespace}/{name}" if kind == "Role" else name
            found += _grants(role, f"{kind} {place}", namespace)
    return found


def _is(subject: Mapping[str, Any], user: User, namespace: str) -> bool:
    kind, name = subject["kind"], subject["name"]
    if kind == "ServiceAccount":
        account_namespace = subject.get("namespace") or namespace
        return user.name == f"{_SERVICE_ACCOUNT}{account_namespace}:{name}"
    return bool(user.name == name if kind == "User" else name in user.groups)


def _grants(role: Mapping[str, Any], words: str, namespace: str) -> Iterator[Grant]:
    for rule in role.get("rules") or []:
        names = tuple(rule.get("resourceNames") or ())
        for verb in rule.get("verbs") or []:
            for group in rule.get("apiGroups") or []:
                for resource in rule.get("resources") or []:
                    yield Grant(words, namespace, verb, group, resource, names)


def not_granted(
    calls: Iterable[Call],
    objects: Iterable[Mapping[str, Any]],
    user: str,
    groups: Iterable[str] = (),
) -> list[Call]:
    """What a user asked for that no role allows, each once.

    Args:
        calls: recorded requests (``ApiServer.requests``).
        objects: rendered objects, or those of a namespace.
        user: whose requests.
        groups: of the user, beside those that follow from the name.
    """
    grants = grants_of(objects, User.named(user, groups))
    asked = dict.fromkeys(one for one in calls if one.user == user)
    return [
        call
        for call in asked
        if call.resource not in _ABOUT_ONESELF
        and not any(one.allows(call) for one in grants)
    ]


def unused_rules(
    calls: Iterable[Call],
    objects: Iterable[Mapping[str, Any]],
    user: str,
    groups: Iterable[str] = (),
) -> list[Grant]:
    """What roles allow a user that it never asked for.

    A rule is taken apart: each verb on each resource has to be used.

    Args:
        calls: recorded requests.
        objects: rendered objects, or those of a namespace.
        user: whose.
        groups: of the user, beside those that follow from the name.
    """
    asked = {one for one in calls if one.user == user}
    return [
        grant
        for grant in grants_of(objects, User.named(user, groups))
        if not any(grant.allows(call) for call in asked)
    ]


class Authorizer:
    """Decides by the roles that are in the store.

    Args:
        roles: gives all roles and bindings.
        is_enforced: else everybody who is known may do all.
    """

    def __init__(self, roles: Any, *, is_enforced: bool) -> None:
        self._roles = roles
        self.is_enforced = is_enforced

    def grants(self, user: User) -> list[Grant]:
        """What a user may do."""
        return grants_of(self._roles(), user)

    def allows(self, user: User, call: Call) -> bool:
        """Whether a user may ask for this."""
        if not self.is_enforced or MASTERS in user.groups:
            return True
        if call.verb == "create" and call.resource in _ABOUT_ONESELF:
            return True
        return any(one.allows(call) for one in self.grants(user))

    def check(self, user: User, call: Call) -> None:
        """Refuse what no role allows.

        Raises:
            Refusal: 403.
        """
        if not self.allows(user, call):
            raise forbidden(call)


def forbidden(call: Call) -> Refusal:
    """No role allows it; in the words of the real server."""
    where = (
        f' in the namespace "{call.namespace}"'
        if call.namespace
        else " at the cluster scope"
    )
    named = f' "{call.name}"' if call.name else ""
    what = full_name(call.resource, call.group)
    return Refusal(
        403,
        "Forbidden",
        f'{what}{named} is forbidden: User "{call.user}" cannot {call.verb} resource '
        f'"{call.full_resource}" in API group "{call.group}"{where}',
        {"name": call.name, "group": call.group, "kind": call.resource},
    )
