"""Questions to the server about rights: access reviews, token reviews."""

from __future__ import annotations

from typing import Any

from rayshim.k8s.testing.localkube.authorizing import (
    MASTERS,
    Authenticator,
    Authorizer,
    Call,
    User,
)
from rayshim.k8s.testing.localkube.resources import Resource
from rayshim.k8s.testing.localkube.statuses import bad_request

Object = dict[str, Any]


def review(
    resource: Resource,
    sent: Object,
    user: User,
    authorizer: Authorizer,
    authenticator: Authenticator,
) -> Object:
    """The answer to a review, the object with its status.

    Args:
        resource: which kind of review.
        sent: the question.
        user: who asks.
        authorizer: knows the roles.
        authenticator: knows the tokens.
    """
    spec = sent.get("spec") or {}
    made = {
        "kind": resource.kind,
        "apiVersion": resource.api_version(),
        "metadata": {"creationTimestamp": None},
        "spec": spec,
    }
    if resource.kind == "SelfSubjectReview":
        info = {"username": user.name, "groups": list(user.groups)}
        return {**made, "status": {"userInfo": info}}
    if resource.kind == "TokenReview":
        found = authenticator.of_token(spec.get("token", ""))
        status: Object = {"authenticated": found is not None}
        if found:
            status["user"] = {"username": found.name, "groups": list(found.groups)}
        return {**made, "status": status}
    if resource.kind == "SelfSubjectRulesReview":
        return {**made, "status": _rules(spec.get("namespace", ""), user, authorizer)}
    asked = user
    if resource.kind != "SelfSubjectAccessReview":
        if not spec.get("user"):
            raise bad_request(
                "spec.user: Required value: at least one of user or group"
            )
        asked = User.named(spec["user"], spec.get("groups") or ())
    is_allowed = _is_allowed(spec, asked, authorizer)
    return {**made, "status": {"allowed": is_allowed}}


def _is_allowed(spec: Object, user: User, authorizer: Authorizer) -> bool:
    wanted = spec.get("resourceAttributes")
    if wanted is None:
        is_read = (spec.get("nonResourceAttributes") or {}).get("verb") == "get"
        return is_read or MASTERS in user.groups
    call = Call(
        user.name,
        wanted.get("verb", ""),
        wanted.get("group", ""),
        wanted.get("resource", ""),
        wanted.get("subresource", ""),
        wanted.get("namespace", ""),
        wanted.get("name", ""),
    )
    return authorizer.allows(user, call)


def _rules(namespace: str, user: User, authorizer: Authorizer) -> Object:
    everything = MASTERS in user.groups or not authorizer.is_enforced
    if everything:
        rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    else:
        rules = [
            {
                "verbs": [one.verb],
                "apiGroups": [one.group],
                "resources": [one.resource],
                **({"resourceNames": list(one.names)} if one.names else {}),
            }
            for one in authorizer.grants(user)
            if one.namespace in ("", namespace)
        ]
    return {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}
