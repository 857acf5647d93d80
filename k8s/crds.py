"""The CRDs of the installed operator, and what they would refuse or drop.

The API server drops fields that a CRD's schema does not know without a word. Those of
the operator know pods as they were in Kubernetes 1.21.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in an object that the operator's CRDs do not take.

    Attributes:
        subject: kind and name of the object.
        path: as ``spec.worker.spec.containers[0].image``.
        text: what is wrong and what to do, for people.
    """

    subject: str
    path: str
    text: str


def crd_objects() -> list[Object]:
    """The CustomResourceDefinitions in the wheel of dask-kubernetes, by name.

    Raises:
        FileNotFoundError: the installed operator has none where they should be.
    """
    raise NotImplementedError


def validate(made: Mapping[str, Any]) -> list[Problem]:
    """What the API server would refuse: types, required fields, enumerations.

    Raises:
        KeyError: no CRD of the operator has this kind.
    """
    raise NotImplementedError


def dropped_fields(made: Mapping[str, Any]) -> list[str]:
    """Paths of fields that the API server would drop in silence."""
    raise NotImplementedError


def check(objects: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Both, of all objects among these whose kinds are the operator's; for ``plan``."""
    raise NotImplementedError
