"""Questions of the control service on why something waits, and their answers.

To peers about what they own, to nodes about leases. What is asked and told is
MessagePack (:mod:`.why_payloads`): people look at it, and none of the machines.
"""

from __future__ import annotations

from msgspec import Struct


class AskWhy(Struct, array_like=True, tag=120):
    """Asks a peer or a node; answered by WhyTold, empty where it knows nothing."""

    request_id: int
    #: A ``Question``.
    payload: bytes


class WhyTold(Struct, array_like=True, tag=121):
    """The answer."""

    request_id: int
    #: ``Told``, ``Leases``, ``Facts`` or nothing.
    payload: bytes
