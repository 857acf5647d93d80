"""Secrets that `rayshim k8s up` makes once: the cluster's token, Valkey's password.

Rendered they are empty, and say what makes them; pods that need one wait until it is
filled. What is in them is in no file.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import base, state

Object = dict[str, Any]

#: Annotation of an empty Secret: its keys, and who fills them.
KEYS: Final = "rayshim.io/keys"
MADE_BY: Final = "rayshim.io/filled-by"
#: Random bytes of a token and of a password.
TOKEN_BYTES: Final = 32
PASSWORD_BYTES: Final = 24


def secrets(platform: Platform) -> list[Object]:
    """The Secrets, empty."""
    found = []
    if platform.runtime == "rayshim":
        name = names.token_secret(platform.name)
        found.append(_empty(platform, name, "access", ("token",)))
    if state.kind(platform) == "valkey":
        keys = ("password", "url", "valkey.conf")
        found.append(_empty(platform, state.name(platform), "state", keys))
    return found


def is_filled(secret: Mapping[str, Any], found: Mapping[str, Any] | None) -> bool:
    """Whether the cluster has it with all of its keys.

    Args:
        secret: one of :func:`secrets`.
        found: as it is in the cluster; None: it is not.
    """
    data = (found or {}).get("data") or {}
    keys = secret["metadata"]["annotations"][KEYS].split(",")
    return all(data.get(one) for one in keys)


def filled(
    secret: Mapping[str, Any], platform: Platform, draw: Callable[[int], bytes]
) -> Object:
    """The Secret with what has to be in it.

    Args:
        secret: one of :func:`secrets`.
        platform: the file.
        draw: gives so many random bytes (``os.urandom``).
    """
    made: Object = copy.deepcopy(dict(secret))
    if secret["metadata"]["name"] == names.token_secret(platform.name):
        values = {"token": draw(TOKEN_BYTES).hex()}
    else:
        password = draw(PASSWORD_BYTES).hex()
        values = {
            "password": password,
            "url": state.journal_url(platform, password),
            "valkey.conf": f"requirepass {password}\n",
        }
    made["data"] = {
        name: base64.b64encode(value.encode()).decode()
        for name, value in values.items()
    }
    return made


def _empty(
    platform: Platform, name: str, component: str, keys: tuple[str, ...]
) -> Object:
    annotations = {MADE_BY: "rayshim k8s up", KEYS: ",".join(keys)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": base.metadata(platform, name, component, annotations=annotations),
        "type": "Opaque",
    }
