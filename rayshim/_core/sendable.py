"""What can be sent to other processes, of what users choose: text and amounts.

A message that cannot be written fails far from the line that is to blame, with others
that wait to be sent. So such values are refused where they are given.
"""

from __future__ import annotations

#: The largest amount of a resource: its count of the smallest parts has to fit in 64
#: bits, as in Ray.
MAX_AMOUNT = 9 * 10**14


def check_text(keyword: str, value: str) -> None:
    """Check that a text can be sent.

    Raises:
        ValueError: it has a lone surrogate, as names of files have that are no UTF-8.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"'{keyword}' must be text that UTF-8 can hold, not {value!a:.100}"
        ) from None
