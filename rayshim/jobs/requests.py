"""What somebody wants to be run: checked before it becomes a job."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import secrets
import string
from dataclasses import dataclass
from typing import Any, Self

#: Characters of a submission id that is made here; none that looks like another.
_LETTERS = [one for one in string.ascii_letters + string.digits if one not in "IlOo01"]
#: An id names a file and is part of addresses.
_ID = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}")


@dataclass(frozen=True)
class JobRequest:
    """A job to be run.

    Args:
        entrypoint: the command.
        submission_id: its name; None for one that is made up.
        runtime_env: of the command, and of the program that it starts.
        metadata: text -> text.
        entrypoint_num_cpus, entrypoint_num_gpus: that the command holds; 0.
        entrypoint_memory: in bytes; 0.
        entrypoint_resources: name -> amount.
        entrypoint_label_selector: of the node that it runs on.
        job_id: an older name of ``submission_id``.

    Raises:
        TypeError, ValueError: a value is not what it has to be; the text names it.
    """

    entrypoint: str
    submission_id: str | None = None
    job_id: str | None = None
    runtime_env: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    entrypoint_num_cpus: int | float | None = None
    entrypoint_num_gpus: int | float | None = None
    entrypoint_memory: int | None = None
    entrypoint_resources: dict[str, float] | None = None
    entrypoint_label_selector: dict[str, str] | None = None

    def __post_init__(self) -> None:
        _check_type("entrypoint", self.entrypoint, str, "a string")
        _check_sendable("entrypoint", self.entrypoint)
        if "\0" in self.entrypoint:
            raise ValueError("entrypoint must not have a null character")
        for name in ("submission_id", "job_id"):
            value = getattr(self, name)
            if value is not None:
                _check_type(name, value, str, "a string")
                _check_sendable(name, value)
                if value and not _ID.fullmatch(value):
                    raise ValueError(
                        f"{name} {value!r} must have at most 200 characters, none of "
                        "them a slash, a backslash or a control character"
                    )
                if value in (".", ".."):
                    raise ValueError(f"{name} must not be {value!r}")
        if self.runtime_env is not None:
            _check_type("runtime_env", self.runtime_env, dict, "a dict")
            for key in self.runtime_env:
                _check_type("runtime_env keys", key, str, "strings")
            _check_sendable("runtime_env", self.runtime_env)
        _check_texts("metadata", self.metadata)
        _check_texts("entrypoint_label_selector", self.entrypoint_label_selector)
        _check_amount("entrypoint_num_cpus", self.entrypoint_num_cpus)
        _check_amount("entrypoint_num_gpus", self.entrypoint_num_gpus)
        _check_amount("entrypoint_memory", self.entrypoint_memory)
        resources = self.entrypoint_resources
        if resources is not None:
            _check_type("entrypoint_resources", resources, dict, "a dict")
            for key, amount in resources.items():
                _check_type("entrypoint_resources keys", key, str, "strings")
                _check_sendable("entrypoint_resources keys", key)
                _check_amount("entrypoint_resources values", amount, "numbers")

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The request in a body.

        Raises:
            TypeError, ValueError: it is none; the text says why.
        """
        _check_type("the body", values, dict, "an object")
        names = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            raise TypeError(
                f"a job has no {', '.join(unknown)}; it has {', '.join(sorted(names))}"
            )
        if "entrypoint" not in values:
            raise TypeError("entrypoint is missing: the command that the job runs")
        return cls(**values)

    @property
    def holds_resources(self) -> bool:
        """Whether its command needs something of its node."""
        return any(
            (
                self.entrypoint_num_cpus,
                self.entrypoint_num_gpus,
                self.entrypoint_memory,
                self.entrypoint_resources,
                self.entrypoint_label_selector,
            )
        )

    def name(self) -> str:
        """The name that was asked for, or a new one."""
        asked = self.submission_id or self.job_id
        return asked or "raysubmit_" + "".join(
            secrets.choice(_LETTERS) for _ in range(16)
        )


def _check_type(name: str, value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, got {type(value)}")


def _check_sendable(name: str, value: Any) -> None:
    """Clients get it back as JSON."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False, default=str).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{name} must be text that UTF-8 can hold, not {value!a:.100}"
        ) from None
    except ValueError:
        raise ValueError(f"{name} has a number that is not finite") from None


def _check_texts(name: str, values: Any) -> None:
    if values is None:
        return
    _check_type(name, values, dict, "a dict")
    for key, value in values.items():
        _check_type(f"{name} keys", key, str, "strings")
        _check_type(f"{name} values", value, str, "strings")
    _check_sendable(name, values)


def _check_amount(name: str, value: Any, what: str = "a number") -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {what}, got {type(value)}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must not be negative, not {value}")
