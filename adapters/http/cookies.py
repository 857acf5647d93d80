"""Cookies by which a browser proves that it was shown the token.

A cookie goes to every port of its host, so it never holds the token: it is the time of
its end, signed with the token. Who reads it off another port may use the dashboard for
as long, but not join the cluster; a new cluster has a new token, which ends it.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.responses import Response

#: Seconds for which a browser stays known.
LIFE_S = 7 * 24 * 3600


class Cookies:
    """Makes and knows the cookies of one dashboard.

    Args:
        token: the cluster's, as hex.
        port: of the dashboard; others on its host have other cookies.
        now: seconds since the epoch.

    Example:
        >>> cookies = Cookies("abcd", 8265, lambda: 0.0)
        >>> cookies.name
        'rayshim_8265'
    """

    def __init__(
        self, token: str, port: int, now: Callable[[], float] = time.time
    ) -> None:
        self.name = f"rayshim_{port}"
        self._key = hashlib.sha256(b"rayshim dashboard cookie:" + token.encode())
        self._now = now

    def set(self, answer: Response) -> None:
        """Has the browser keep one: not for scripts, not for other sites."""
        end = str(int(self._now() + LIFE_S))
        answer.set_cookie(
            self.name,
            f"{end}-{self._sign(end)}",
            max_age=LIFE_S,
            httponly=True,
            samesite="strict",
            path="/",
        )

    def remove(self, answer: Response) -> None:
        """Has the browser forget it."""
        answer.delete_cookie(self.name, path="/", httponly=True, samesite="strict")

    def is_known(self, headers: Headers) -> bool:
        """Whether a request brings one that still counts."""
        for text in headers.getlist("cookie"):
            try:
                morsel = SimpleCookie(text).get(self.name)
            except CookieError:
                continue
            end, _, signature = (morsel.value if morsel else "").partition("-")
            if hmac.compare_digest(signature.encode(), self._sign(end).encode()):
                return end.isdigit() and int(end) > self._now()
        return False

    def _sign(self, end: str) -> str:
        key = self._key.digest()
        return hmac.new(key, end.encode(), hashlib.sha256).hexdigest()
