"""A platform as files and as the objects that ``up`` applies. Pure.

The files are laid out as below ``k8s/deploy``: ``base/`` (what runs in the namespace,
:mod:`rayshim.k8s.rendering.base` and its neighbours), and the folders of
:data:`MODULES`. Each of these modules has ``files(platform) -> {path: text or objects}``,
or ``objects(platform) -> [object]``, which then is ``<module>/<module>.yaml``.

``python -m rayshim.k8s.render --write`` renews the committed copies of
``k8s/deploy/platform.yaml``, whichever module they come from; without ``--write`` it
lists those that differ and exits with 1.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rayshim.k8s.api import KINDS
from rayshim.k8s.config import Platform
from rayshim.k8s.serializing import to_yaml

Object = dict[str, Any]

#: Modules of ``rendering/`` with files of their own beside ``base/``. Objects of those in
#: the first row are applied before what is in the namespace, of the second after it.
BEFORE: Final = ("eksctl", "karpenter", "device_plugin", "kueue", "operator_values")
AFTER: Final = ("monitoring", "iam")
MODULES: Final = BEFORE + AFTER

HEADER: Final = (
    "# Made from {source} by `rayshim k8s render`; change that file, not this one.\n"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a platform comes to."""

    #: Path below the folder of the render ("base/rbac.yaml") -> objects, or a text.
    files: Mapping[str, tuple[Object, ...] | str]
    #: What ``up`` applies, in this order. A DaskWorkerGroup that is there already must
    #: be applied as :func:`for_update` says.
    objects: tuple[Object, ...]
    #: Secrets that ``up`` makes once and never changes, without what is in them:
    #: :func:`rayshim.k8s.rendering.secrets.filled` fills one.
    secrets: tuple[Object, ...] = ()
    #: File that it came from.
    source: str = "platform.yaml"

    def texts(self) -> dict[str, str]:
        """Path -> bytes of the file, as text."""
        header = HEADER.format(source=self.source)
        return {
            path: content if isinstance(content, str) else header + to_yaml(content)
            for path, content in self.files.items()
        }


def render(platform: Platform) -> Rendered:
    """Everything that follows from a platform file.

    The same platform gives the same bytes in every process.

    Raises:
        ConfigError: a value does not fit what the pods can be told.
    """
    raise NotImplementedError


def for_update(made: Object) -> Object:
    """An object as it may be applied to one that is there.

    ``replicas`` of a DaskWorkerGroup belongs to the autoscaler: it is given when the
    group is created (with a plain create, not an apply: a field that was applied once
    and then left out is removed, and the CRD's default is 1 worker), and never again.
    """
    if made["kind"] != "DaskWorkerGroup":
        return made
    changed = copy.deepcopy(made)
    changed["spec"]["worker"].pop("replicas", None)
    return changed
