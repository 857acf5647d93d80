"""YAML as typed values: strict, and every error knows its path in the file.

YAML is read as version 1.2 does: only ``true`` and ``false`` are flags, and dates and
times stay text. A key that stands twice in a map is an error, since the first one would
be lost.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Final

import yaml

from rayshim.k8s.config import ConfigError

#: For errors that concern no single value.
WHOLE: Final = "(file)"

#: Levels of maps and lists, and values with those that aliases repeat.
MAX_DEPTH: Final = 40
MAX_VALUES: Final = 100_000

_TAGS = "tag:yaml.org,2002:"
_SCALARS = [
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
]

#: Suffix of a quantity of Kubernetes -> factor.
_SUFFIXES: Final = {
    "": 1.0,
    "m": 1e-3,
    **{suffix: 1000.0 ** (n + 1) for n, suffix in enumerate("kMGTP")},
    **{f"{suffix}i": 1024.0 ** (n + 1) for n, suffix in enumerate("KMGTP")},
}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Plain values of YAML 1.2's core schema, without doubled keys."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A map, unless a key stands in it twice."""
        if isinstance(node, yaml.MappingNode):
            self._refuse_doubles(node)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found

    def _refuse_doubles(self, node: yaml.MappingNode) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            line = key.start_mark.line + 1
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {key.value!r} stands here and in line {seen[key.value]}; "
                    "keep one",
                    key.start_mark,
                )
            seen[key.value] = line

    def construct_int(self, node: Any) -> int:
        """A whole number; ``010`` is ten, as in YAML 1.2."""
        text = str(self.construct_scalar(node))
        return int(text, 0 if text.startswith(("0x", "0o")) else 10)


for _name, _pattern, _firsts in _SCALARS:
    _Loader.add_implicit_resolver(
        _TAGS + _name, re.compile(f"(?:{_pattern})$"), _firsts
    )
_Loader.add_implicit_resolver(_TAGS + "merge", re.compile("<<$"), ["<"])
_Loader.add_constructor(_TAGS + "int", _Loader.construct_int)


def read_yaml(text: str, source: str) -> dict[str, Any]:
    """The map that a text holds.

    Raises:
        ConfigError: it is no YAML, or no map.
    """
    try:
        found = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else WHOLE
        raise ConfigError(where, error.problem or "is no YAML", source) from error
    except RecursionError as error:
        raise ConfigError(WHOLE, "has too many levels", source) from error
    except (
        yaml.YAMLError,
        # What its constructors raise for a tag that does not fit, as `!!bool maybe`.
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigError(WHOLE, f"is no YAML: {error}", source) from error
    if not isinstance(found, dict):
        what = "is empty" if found is None else f"holds {_kind(found)}, not a map"
        raise ConfigError(WHOLE, f"{what}; begin with `name:`", source)
    _Checked(source).check("", found)
    return found


class _Checked:
    """Refuses what JSON cannot say, and values that hold themselves or too much."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._count = 0

    def check(self, path: str, value: Any, depth: int = 0) -> None:
        """Look at a value and all that is in it."""
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_VALUES:
            limit = f"{MAX_DEPTH} levels or {MAX_VALUES} values"
            raise self._error(path, f"has more than {limit}")
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str):
                    wanted = f'write "{_short(key)}"'
                    raise self._error(path, f"the key {key!r} is no text; {wanted}")
                self.check(f"{path}.{key}" if path else key, inner, depth + 1)
        elif isinstance(value, list):
            for n, inner in enumerate(value):
                self.check(f"{path}[{n}]", inner, depth + 1)
        elif isinstance(value, float) and not math.isfinite(value):
            raise self._error(path, f"must be finite, not {value}")
        elif not (value is None or isinstance(value, (str, bool, int, float))):
            raise self._error(path, f"must be plain YAML, not {_kind(value)}")

    def _error(self, path: str, problem: str) -> ConfigError:
        return ConfigError(path or WHOLE, problem, self._source)


def merged(base: Any, change: Any) -> Any:
    """A value with a change merged in; null removes a key, a list replaces one.

    Source: RFC 7396 (JSON Merge Patch).
    """
    if not isinstance(change, dict):
        return change
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def quantity(text: str) -> float | None:
    """A quantity of Kubernetes in cores, bytes or pieces; None: it is none.

    Example:
        >>> quantity("1500m"), quantity("2Gi"), quantity("two")
        (1.5, 2147483648.0, None)
    """
    found = _QUANTITY.fullmatch(text)
    return float(found[1]) * _SUFFIXES[found[2] or ""] if found else None


def nearest(name: str, names: Iterable[str]) -> str:
    """Words that propose the most similar name, and list all of them."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    listed = ", ".join(known) or "none"
    return f"did you mean {close[0]}?" if close else f"there are: {listed}"


class Reader:
    """A map of the file, from which typed values are taken by key.

    Args:
        value: what stands in the file.
        path: where.
        source: name of the file.
        keys: the keys that may be there.

    Raises:
        ConfigError: by the constructor and each method, if the file has something else
            than what is asked for.
    """

    def __init__(
        self, value: Any, path: str, source: str, keys: Iterable[str] | None = None
    ) -> None:
        self.where = path
        self.source = source
        if not isinstance(value, dict):
            raise self.error("", f"must be a map, not {_kind(value)}")
        self._values: dict[str, Any] = value
        known = None if keys is None else tuple(keys)
        for key in value:
            if known is not None and key not in known:
                raise self.error(key, f"unknown key; {nearest(key, known)}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def path(self, key: str) -> str:
        """Where the value of a key stands."""
        return ".".join(filter(None, [self.where, key])) or WHOLE

    def error(self, key: str, problem: str) -> ConfigError:
        """An error about the value of a key; "": about the map."""
        return ConfigError(self.path(key), problem, self.source)

    def names(self) -> tuple[str, ...]:
        """The keys, in the file's order."""
        return tuple(self._values)

    def value(self, key: str, default: Any = None) -> Any:
        """The value as it stands; without a default (None) it must be there."""
        if key not in self._values:
            if default is None:
                raise self.error(key, "is missing")
            return default
        found = self._values[key]
        if found is None:
            raise self.error(key, "is empty; write a value, or remove the key")
        return found

    def text(
        self, key: str, default: str | None = None, *, match: str = "", hint: str = ""
    ) -> str:
        """A text.

        Args:
            key: of it.
            default: if it is not there; None: it must be.
            match: regular expression for all of it.
            hint: what a text that does not match must be.
        """
        found = self.value(key, default)
        if not isinstance(found, str):
            quoted = f'; put it in quotes: "{found}"' if _is_scalar(found) else ""
            raise self.error(key, f"must be text, not {_kind(found)}{quoted}")
        if key in self._values and not found:
            raise self.error(key, "is empty; write a value, or remove the key")
        if match and found and not re.fullmatch(match, found):
            raise self.error(key, f"must be {hint}, not {found!r}")
        return found

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        low: float = -math.inf,
        high: float = math.inf,
        above: float = -math.inf,
    ) -> float:
        """A finite number from ``low`` to ``high``, greater than ``above``."""
        found = self.value(key, default)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise self.error(key, f"must be a number, not {_kind(found)}")
        self._check_range(key, found, low, high, above)
        return float(found)

    def integer(
        self, key: str, default: int | None = None, *, low: int = 0, high: int = 10**9
    ) -> int:
        """A whole number from ``low`` to ``high``."""
        found = self.value(key, default)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self.error(key, f"must be a whole number, not {_kind(found)}")
        self._check_range(key, found, low, high, -math.inf)
        return found

    def flag(self, key: str, default: bool) -> bool:
        """``true`` or ``false``."""
        found = self.value(key, default)
        if not isinstance(found, bool):
            raise self.error(key, f"must be true or false, not {_kind(found)}")
        return found

    def choice(self, key: str, options: Iterable[str], default: str) -> str:
        """One of some words."""
        known = list(options)
        found = self.text(key, default)
        if found not in known:
            raise self.error(key, f"must be one of {', '.join(known)}, not {found!r}")
        return found

    def gib(self, key: str, default: float | None = None) -> float:
        """An amount of memory or disk, written as ``26Gi``, in GiB."""
        found = self.value(key, default)
        if key not in self._values:
            return float(found)
        size = quantity(found) if isinstance(found, str) else None
        if size is None or size < 2**20 or found[-1] == "m":
            raise self.error(
                key, f'must be a quantity such as 26Gi or 512Mi, not "{_short(found)}"'
            )
        self._check_range(key, size, 0, 2.0**60, -math.inf)
        return size / 2**30

    def cpus(self, key: str) -> float:
        """CPUs as a number, or as ``1500m``."""
        found = self.value(key)
        if isinstance(found, str):
            amount = quantity(found)
            if amount is None or not found.endswith(("m", *"0123456789")):
                raise self.error(
                    key, f"must be a number of CPUs such as 2 or 1500m, not {found!r}"
                )
            self._check_range(key, amount, -math.inf, 10**4, 0)
            return amount
        return self.number(key, above=0, high=10**4)

    def texts(
        self, key: str, default: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """A list of different texts."""
        if key not in self._values and default is not None:
            return default
        found = self.value(key)
        if not isinstance(found, list):
            raise self.error(key, f"must be a list, not {_kind(found)}")
        for n, one in enumerate(found):
            if not isinstance(one, str) or not one:
                raise self.error(f"{key}[{n}]", f"must be text, not {_kind(one)}")
            if one in found[:n]:
                raise self.error(f"{key}[{n}]", f"{one!r} stands in the list twice")
        return tuple(found)

    def words(self, key: str) -> dict[str, str]:
        """A map of texts; empty if it is not there."""
        if key not in self._values:
            return {}
        inner = Reader(self.value(key), self.path(key), self.source)
        for name in inner.names():
            if inner.value(name) != "":
                inner.text(name)
        return {name: inner.value(name) for name in inner.names()}

    def amounts(self, key: str) -> dict[str, float]:
        """A map of numbers or quantities that are not negative; may be absent."""
        if key not in self._values:
            return {}
        inner = Reader(self.value(key), self.path(key), self.source)
        return {name: inner.amount(name) for name in inner.names()}

    def amount(self, key: str) -> float:
        """A number or quantity that is not negative, in its base unit."""
        found = self.value(key)
        if not isinstance(found, str):
            return self.number(key, low=0, high=10**18)
        size = quantity(found)
        if size is None:
            raise self.error(
                key, f"must be a number, or a quantity such as 64Gi, not {found!r}"
            )
        self._check_range(key, size, 0, 10**18, -math.inf)
        return size

    def plain(self, key: str) -> dict[str, Any]:
        """A map of whatever Kubernetes takes there; empty if it is not there."""
        if key not in self._values:
            return {}
        return Reader(self.value(key), self.path(key), self.source)._values

    def plains(self, key: str) -> tuple[dict[str, Any], ...]:
        """A list of such maps."""
        found = self.value(key, ())
        if not isinstance(found, (list, tuple)):
            raise self.error(key, f"must be a list, not {_kind(found)}")
        for n, one in enumerate(found):
            Reader(one, self.path(f"{key}[{n}]"), self.source)
        return tuple(found)

    def child(self, key: str, keys: Iterable[str]) -> Reader:
        """A map below; an empty one if it is not there."""
        found = self.value(key) if key in self._values else {}
        return Reader(found, self.path(key), self.source, keys)

    def children(self, key: str, keys: Iterable[str]) -> dict[str, Reader]:
        """Maps below, by their names; none if there is nothing."""
        known = tuple(keys)
        if key not in self._values:
            return {}
        outer = Reader(self.value(key), self.path(key), self.source)
        return {name: outer.child(name, known) for name in outer.names()}

    def _check_range(
        self, key: str, found: float, low: float, high: float, above: float
    ) -> None:
        if found < low or found > high or found <= above:
            bounds = [
                f"above {above:g}" if math.isfinite(above) else "",
                f"at least {low:g}" if math.isfinite(low) else "",
                f"at most {high:g}" if math.isfinite(high) else "",
            ]
            wanted = " and ".join(filter(None, bounds))
            raise self.error(key, f"must be {wanted}, not {_short(found)}")


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _short(value: Any) -> str:
    try:
        text = str(value)
    except ValueError:  # a whole number with more than 4,300 digits
        return "a huge number"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _kind(value: Any) -> str:
    """What a value is, in words of YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the flag {str(value).lower()}"
    if isinstance(value, (int, float)):
        return f"the number {_short(value)}"
    if isinstance(value, str):
        return f"the text {_short(value)!r}" if value else "an empty text"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    return f"a {type(value).__name__}"
