"""The certificate that all pods share, if cert-manager makes it."""

from __future__ import annotations

from typing import Any

from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import base, pods, state
from rayshim.k8s.rendering.head import host_names

Object = dict[str, Any]


def dns_names(platform: Platform) -> list[str]:
    """Names that the certificate must have, whoever makes it.

    "rayshim" is what all of its peers check (setting ``tls_name``); the others are what
    clients call the head and Valkey.
    """
    found = [pods.TLS_NAME, *host_names(platform)]
    if state.kind(platform) == "valkey":
        found.append(state.host(platform))
    return found


def objects(platform: Platform) -> list[Object]:
    """A Certificate; nothing if the user brings the Secret, or without TLS.

    It is for a year, since pods read it when they start: they have to be started anew
    in the quarter before it ends.
    """
    tls = platform.tls
    if not tls.is_enabled or tls.source != "cert-manager":
        return []
    labels = base.labels(platform, "tls")
    return [
        {
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": base.metadata(platform, tls.secret, "tls"),
            "spec": {
                "secretName": tls.secret,
                "secretTemplate": {"labels": labels},
                "commonName": pods.TLS_NAME,
                "dnsNames": dns_names(platform),
                "usages": [
                    "digital signature",
                    "key encipherment",
                    "server auth",
                    "client auth",
                ],
                "privateKey": {
                    "algorithm": "ECDSA",
                    "size": 256,
                    "rotationPolicy": "Always",
                },
                "duration": "8760h",
                "renewBefore": "2160h",
                "issuerRef": {
                    "group": "cert-manager.io",
                    "kind": tls.issuer_kind,
                    "name": tls.issuer,
                },
            },
        }
    ]
