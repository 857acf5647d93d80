"""Answers as JSON, whatever is in them.

Names, errors and lines of logs are what programs chose: they may have lone surrogates
(Python makes them of file names that are no UTF-8), and numbers may be infinite. One
such row must not take the whole answer along.
"""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import JSONResponse


class Json(JSONResponse):
    """An answer as JSON: what UTF-8 cannot hold is escaped, what is no number is null.

    Example:
        >>> Json({"name": chr(0xDCFF), "amount": float("inf")}).body
        b'{"name":"\\\\udcff","amount":null}'
    """

    def render(self, content: Any) -> bytes:
        """The body."""
        try:
            return super().render(content)
        except ValueError:
            finite = _finite(content)
            return json.dumps(finite, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
