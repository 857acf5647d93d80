"""Mutual proof of the cluster's token around each Flight call.

The token itself never travels. A client sends ``EXPIRY.NONCE.PROOF`` as a header of
each call, where the proof is an HMAC over role, method, expiry and nonce; the server's
answer carries an HMAC over the same nonce, and the client takes no byte before it has
checked that. Calls only read, so that a replay within the expiry gains nothing beyond
what the eavesdropper saw.
"""

from __future__ import annotations

import hmac
import os
import time
from typing import Any

from pyarrow import flight

from rayshim.adapters.flight.tickets import LIFE_S, derive_key

HEADER = "x-rayshim-proof"
_NONCE_BYTES = 16


def _digest(key: bytes, role: str, method: str, expiry: str, nonce: str) -> str:
    text = ".".join((role, method, expiry, nonce))
    return hmac.digest(key, text.encode(), "sha256").hex()


class _Answer(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types.
    """Proves the token to one client."""

    def __init__(self, proof: str) -> None:
        super().__init__()
        self._proof = proof

    def sending_headers(self) -> dict[str, str]:
        """The server's proof."""
        return {HEADER: self._proof}


class ServerProof(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # As above.
    """Refuses every call, of whatever method, whose client does not know the token."""

    def __init__(self, token: bytes) -> None:
        super().__init__()
        self._key = derive_key(token, b"call")

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _Answer:
        """Checks the client's proof.

        Raises:
            pyarrow.flight.FlightUnauthenticatedError: it is missing or wrong.
        """
        values = headers.get(HEADER) or [""]
        text = values[0] if len(values) == 1 and isinstance(values[0], str) else ""
        expiry, _, rest = text.partition(".")
        nonce, _, proof = rest.partition(".")
        method = str(info.method)
        wanted = _digest(self._key, "client", method, expiry, nonce)
        is_right = hmac.compare_digest(proof.encode(), wanted.encode())
        # Digits only once the proof is right: nobody else wrote them.
        if not is_right or abs(int(expiry) - time.time()) > 2 * LIFE_S:
            raise flight.FlightUnauthenticatedError(
                "a call without this cluster's token was refused"
            )
        return _Answer(_digest(self._key, "server", method, expiry, nonce))


class _Question(flight.ClientMiddleware):  # type: ignore[misc]  # As above.
    def __init__(self, factory: ClientProof, method: str) -> None:
        super().__init__()
        self._factory = factory
        expiry, nonce = str(int(time.time() + LIFE_S)), os.urandom(_NONCE_BYTES).hex()
        key = factory.key
        self._sent = ".".join(
            (expiry, nonce, _digest(key, "client", method, expiry, nonce))
        )
        self._wanted = _digest(key, "server", method, expiry, nonce)

    def sending_headers(self) -> dict[str, str]:
        """The client's proof."""
        return {HEADER: self._sent}

    def received_headers(self, headers: dict[str, list[Any]]) -> None:
        """Checks the server's proof."""
        values = headers.get(HEADER) or [""]
        if isinstance(values[0], str):
            self._factory.is_proved = hmac.compare_digest(
                values[0].encode(), self._wanted.encode()
            )


class ClientProof(flight.ClientMiddlewareFactory):  # type: ignore[misc]  # As above.
    """Proves the token on each call of one connection that one thread uses."""

    def __init__(self, token: bytes) -> None:
        super().__init__()
        self.key = derive_key(token, b"call")
        #: Whether the server of the call in hand has proved the token.
        self.is_proved = False

    def start_call(self, info: Any) -> _Question:
        """Begins the proof of one call."""
        self.is_proved = False
        return _Question(self, str(info.method))
