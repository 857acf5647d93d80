"""HTTP requests to a dashboard, by what Python has."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import urlsplit

#: Seconds that one answer may take, and one with a large body.
LIMIT_S = 120.0
UPLOAD_LIMIT_S = 1800.0
_OWN_HOSTS = ("127.0.0.1", "localhost", "::1")


class Answer:
    """What a dashboard answered.

    Args:
        status: the HTTP status.
        data: the body.
    """

    def __init__(self, status: int, data: bytes) -> None:
        self.status = status
        self.data = data

    def json(self) -> Any:
        """The body as plain values.

        Raises:
            RuntimeError: the dashboard refused; the text says why.
        """
        self.check()
        return json.loads(self.data)

    def check(self) -> None:
        """Raises what the dashboard refused.

        Raises:
            RuntimeError: with the status and its text.
        """
        if self.status != 200:
            text = self.data.decode("utf-8", "replace")
            try:
                text = str(json.loads(text)["error"])
            except (ValueError, KeyError, TypeError):
                pass
            raise RuntimeError(
                f"Request failed with status code {self.status}: {text}."
            )


class DashboardLink:
    """The way to one dashboard; safe for threads.

    Args:
        url: ``http://HOST:PORT``, perhaps with a path.
        headers: of all requests.
        verify: whether certificates are checked; or a file, or folder, of those that
            are trusted.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], verify: str | bool = True
    ) -> None:
        self.url = url
        self._headers = dict(headers)
        handlers: list[Any] = [_NoRedirects()]
        if urlsplit(url).hostname in _OWN_HOSTS:
            handlers.append(urllib.request.ProxyHandler({}))
        if url.startswith("https://"):
            handlers.append(urllib.request.HTTPSHandler(context=_context(verify)))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(
        self,
        method: str,
        path: str,
        *,
        content: Any = None,
        body: tuple[IO[bytes], int] | None = None,
    ) -> Answer:
        """One request, and all of its answer.

        Args:
            method: of HTTP.
            path: with a slash at its begin, and quoted.
            content: sent as JSON, unless None.
            body: a file and its length in bytes, instead.

        Raises:
            ConnectionError: nobody answers there.
        """
        answer = self._open(method, path, content, body)
        if isinstance(answer, Answer):
            return answer
        with answer:
            return Answer(answer.status, answer.read())

    def stream(self, path: str) -> http.client.HTTPResponse:
        """An answer that comes bit by bit; close it.

        Raises:
            RuntimeError: the dashboard refused; the text says why.
            ConnectionError: nobody answers there.
        """
        answer = self._open("GET", path, None, None)
        if isinstance(answer, Answer):
            answer.check()
            raise RuntimeError(f"{path}: unexpected answer {answer.status}")
        return answer

    def _open(
        self,
        method: str,
        path: str,
        content: Any,
        body: tuple[IO[bytes], int] | None,
    ) -> http.client.HTTPResponse | Answer:
        headers = dict(self._headers)
        data: Any = None
        if content is not None:
            data = json.dumps(content).encode()
            headers["Content-Type"] = "application/json"
        elif body is not None:
            data = body[0]
            headers["Content-Type"] = "application/octet-stream"
            headers["Content-Length"] = str(body[1])
        request = urllib.request.Request(
            self.url + path, data=data, headers=headers, method=method
        )
        limit_s = LIMIT_S if body is None else UPLOAD_LIMIT_S
        try:
            answer: http.client.HTTPResponse = self._opener.open(
                request, timeout=limit_s
            )
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read())
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(
                f"Failed to connect to Ray at address: {self.url}. ({error})"
            ) from error
        return answer


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The token is for this host alone."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _context(verify: str | bool) -> ssl.SSLContext:
    import os

    if isinstance(verify, str):
        is_folder = os.path.isdir(verify)
        return ssl.create_default_context(
            capath=verify if is_folder else None,
            cafile=None if is_folder else verify,
        )
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
