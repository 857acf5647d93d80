"""The platform's Secrets in the cluster: made once, and of one piece ever after.

A token or password that is there is never changed. Whoever rotates one writes the key
``token`` or ``password``; what follows from it (the URL of the journal, Valkey's
configuration) is brought in line by the next ``up``.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from rayshim.k8s.api import Conflict, Kube, Object
from rayshim.k8s.config import Platform
from rayshim.k8s.failures import ClusterRefuses
from rayshim.k8s.rendering import state
from rayshim.k8s.rendering.secrets import filled

#: What a password may be made of, in a URL and in Valkey's configuration as it is.
_PASSWORD: Final = re.compile(r"[A-Za-z0-9_.~-]+")


def lacking(
    secret: Mapping[str, Any],
    found: Mapping[str, Any],
    platform: Platform,
    draw: Callable[[int], bytes] = os.urandom,
) -> dict[str, str]:
    """Keys of a Secret that is there, with what they have to be (base64).

    Args:
        secret: rendered, empty.
        found: as it is in the cluster.
        platform: the file.
        draw: gives so many random bytes.

    Raises:
        ClusterRefuses: a password has characters that would have to be escaped.
    """
    there: Mapping[str, str] = found.get("data") or {}
    data: dict[str, str] = filled(secret, platform, draw)["data"]
    if "password" not in data:
        return {key: value for key, value in data.items() if not there.get(key)}
    if there.get("password"):
        password = base64.b64decode(there["password"]).decode(errors="replace")
        if not _PASSWORD.fullmatch(password):
            raise ClusterRefuses(
                f"Secret {secret['metadata']['name']}: the key `password` may be of "
                "letters, digits, '_', '-', '.' and '~' alone (and no line break); "
                "write another one"
            )
        texts = {
            "password": password,
            "url": state.journal_url(platform, password),
            "valkey.conf": f"requirepass {password}\n",
        }
        data = {
            key: base64.b64encode(text.encode()).decode() for key, text in texts.items()
        }
    return {key: value for key, value in data.items() if there.get(key) != value}


def keep(kube: Kube, secret: Object, found: Object | None, platform: Platform) -> str:
    """Makes a Secret, or completes it; what was done: "created", "changed" or "".

    Raises:
        Forbidden: it may not be written.
    """
    if found is None:
        try:
            kube.create(filled(secret, platform, os.urandom))
        except Conflict:
            return ""  # Another `up` was faster; what it made stays.
        return "created"
    change = lacking(secret, found, platform)
    if not change:
        return ""
    version = found["metadata"]["resourceVersion"]
    kube.patch(
        "Secret",
        secret["metadata"]["name"],
        {"metadata": {"resourceVersion": version}, "data": change},
    )
    return "changed"
