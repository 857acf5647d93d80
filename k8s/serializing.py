"""Objects as YAML, the same bytes each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import yaml

Object = dict[str, Any]


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Repeats what occurs twice, and writes texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> Any:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """One YAML document for each object, keys in the order that they were put in.

    Args:
        objects: made of maps, lists, texts, numbers, booleans and None.

    Example:
        >>> print(to_yaml([{"kind": "A", "spec": {"ports": [1, 2]}}]), end="")
        ---
        kind: A
        spec:
          ports:
            - 1
            - 2
    """
    documents = [
        yaml.dump(
            plain(one),
            Dumper=_Dumper,
            sort_keys=False,
            default_flow_style=False,
            allow_unicode=True,
            width=2**16,
        )
        for one in objects
    ]
    return "".join(f"---\n{text}" for text in documents)


def from_yaml(text: str) -> list[Object]:
    """The objects of a text with any number of documents."""
    return [cast(Object, one) for one in yaml.safe_load_all(text) if one is not None]


def plain(value: Any) -> Any:
    """Maps and sequences of any class as dicts and lists, which YAML can write."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value
