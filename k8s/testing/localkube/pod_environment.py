"""From a container of a pod to a command line and environment on this machine."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.quantities import quantity
from rayshim.k8s.testing.localkube.volumes import (
    Mount,
    NotStartable,
    Volumes,
    field_of,
)

_VARIABLE = re.compile(r"\$(\$|\(([A-Za-z_.-][A-Za-z0-9_.-]*)\))")
_ANY_ADDRESS = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d.])|\[::\]")
#: Where the interpreter's and the machine's programs are.
PATH = os.pathsep.join(
    dict.fromkeys(
        [
            str(Path(sys.executable).parent),
            *"/usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin".split(),
        ]
    )
)
_RAYSHIM = (
    "import sys; sys.argv[0] = 'rayshim'; from rayshim.cli.main import main; main()"
)
#: Name of a program -> command of this interpreter.
_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "rayshim": ("-c", _RAYSHIM),
    "ray": ("-c", _RAYSHIM),
    "python": (),
    "python3": (),
    "dask": ("-m", "dask"),
    "dask-worker": ("-m", "distributed.cli.dask_worker"),
    "dask-scheduler": ("-m", "distributed.cli.dask_scheduler"),
}
#: Programs of which a machine has one or the other.
_SAME = {
    "valkey-server": "redis-server",
    "redis-server": "valkey-server",
    "valkey-cli": "redis-cli",
    "redis-cli": "valkey-cli",
}
#: Word in an image's name -> what it runs if the pod names only arguments for it.
_ENTRYPOINTS = {"valkey": "valkey-server", "redis": "redis-server"}
#: Programs started by others in images: they run what follows them.
_WRAPPERS = ("tini", "/usr/bin/tini", "dumb-init")


@dataclass(frozen=True, slots=True)
class Command:
    """What is executed for a container."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]

    def inside(self, argv: Sequence[str]) -> list[str]:
        """A command line that runs in the container, with paths as they are here."""
        return [rewritten(one, self.mounts) for one in argv]


async def command_of(
    pod: Object,
    container: Object,
    volumes: Volumes,
    base: Mapping[str, str],
    allocatable: Mapping[str, str],
) -> Command:
    """What to execute for a container.

    Args:
        pod: with its address in ``status.podIP``.
        container: of it.
        volumes: of the pod, made.
        base: variables that every container has.
        allocatable: of the pod's node, for limits that are not given.

    Raises:
        NotStartable: something that it needs is not there, or is not supported.
    """
    mounts = tuple(volumes.mounts(container))
    given = await _environment(pod, container, volumes, allocatable)
    address = str(pod["status"]["podIP"])
    words = [
        expanded(one, {**base, **given})
        for one in [*(container.get("command") or ()), *(container.get("args") or ())]
    ]

    def here(text: str) -> str:
        return _ANY_ADDRESS.sub(address, rewritten(text, mounts))

    # Before this machine's programs are put in: theirs may lie below a mount's path.
    argv = program([here(one) for one in words], container, address)
    env = {**base, **{name: here(value) for name, value in given.items()}}
    return Command(tuple(argv), env, mounts)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced by variables; unknown ones stay, ``$$`` is a dollar.

    Source: https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/

    Example:
        >>> expanded("--ip=$(IP) $(NONE) $$(IP)", {"IP": "10.0.0.1"})
        '--ip=10.0.0.1 $(NONE) $(IP)'
    """

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _VARIABLE.sub(value, text)


def rewritten(text: str, mounts: Sequence[Mount]) -> str:
    """Paths below mounts, as they are on this machine.

    Example:
        >>> token = Mount("/etc/token", Path("/tmp/p/1"))
        >>> rewritten("--file=/etc/token/token /etc/tokens", [token])
        '--file=/tmp/p/1/token /etc/tokens'
    """
    if not mounts:
        return text
    real = {mount.path: str(mount.real) for mount in mounts}
    longest_first = sorted(real, key=len, reverse=True)
    # Begins a word, or follows the slashes of a URL: sqlite:///state/db, or four.
    pattern = re.compile(
        r"(?:(?<=://)|(?<=:///)|(?<![\w./~-]))("
        + "|".join(map(re.escape, longest_first))
        + r")(?![\w.-])"
    )
    return pattern.sub(lambda match: real[match[1]], text)


def program(words: list[str], container: Object, address: str) -> list[str]:
    """The command line with programs of images replaced by those of this machine.

    Servers that would listen at all addresses are told to take the pod's.

    Raises:
        NotStartable: nothing is named, or this machine has no such program.
    """
    while words and words[0] in _WRAPPERS:
        words = words[1:]
        while words and words[0].startswith("-"):
            words = words[1:]
    image = str(container.get("image", "")).rpartition("/")[2]
    if not words or (words[0].startswith("-") and not container.get("command")):
        for word, entrypoint in _ENTRYPOINTS.items():
            if word in image:
                words = [entrypoint, *words]
                break
        else:
            raise NotStartable(
                f"container {container['name']} names no program and images are not "
                "pulled here: give its command"
            )
    name, rest = words[0], words[1:]
    if name in _PROGRAMS:
        if name in ("dask-worker", "dask-scheduler"):
            rest = [*rest, *_host(rest, address)]
        elif name == "dask" and rest[:1] in (["worker"], ["scheduler"]):
            rest = [*rest, *_host(rest, address)]
        return [sys.executable, *_PROGRAMS[name], *rest]
    if name in ("valkey-server", "redis-server") and not any(
        one == "--bind" for one in rest
    ):
        rest = [*rest, "--bind", address]
    found = shutil.which(name, path=PATH)
    if found is None and name in _SAME:
        found = shutil.which(_SAME[name], path=PATH)
    if found is None:
        raise NotStartable(
            f'exec: "{name}": executable file not found in $PATH: images are not '
            "pulled here, so it has to be on this machine",
            "RunContainerError",
        )
    return [found, *rest]


def _host(arguments: list[str], address: str) -> list[str]:
    given = any(one == "--host" or one.startswith("--host=") for one in arguments)
    return [] if given else ["--host", address]


async def _environment(
    pod: Object,
    container: Object,
    volumes: Volumes,
    allocatable: Mapping[str, str],
) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix", "")
        if "secretRef" in source:
            ref = source["secretRef"]
            data = await volumes.secret(ref["name"], bool(ref.get("optional")))
        else:
            ref = source["configMapRef"]
            data = await volumes.config_map(ref["name"], bool(ref.get("optional")))
        found.update({prefix + key: value.decode() for key, value in data.items()})
    for variable in container.get("env") or ():
        name = variable["name"]
        if "valueFrom" not in variable:
            found[name] = expanded(str(variable.get("value") or ""), found)
            continue
        value = await _value_from(
            pod, container, volumes, variable["valueFrom"], allocatable
        )
        if value is not None:
            found[name] = value
    return found


async def _value_from(
    pod: Object,
    container: Object,
    volumes: Volumes,
    source: Object,
    allocatable: Mapping[str, str],
) -> str | None:
    if ref := source.get("fieldRef"):
        return field_of(pod, ref["fieldPath"])
    if ref := source.get("resourceFieldRef"):
        return str(_resource(container, ref, allocatable))
    if ref := source.get("secretKeyRef"):
        data = await volumes.secret(ref["name"], bool(ref.get("optional")))
        return _key(data, ref, "Secret", pod)
    if ref := source.get("configMapKeyRef"):
        data = await volumes.config_map(ref["name"], bool(ref.get("optional")))
        return _key(data, ref, "ConfigMap", pod)
    raise NotStartable(f"env.valueFrom: {', '.join(source)} is not supported")


def _key(data: Mapping[str, bytes], ref: Object, kind: str, pod: Object) -> str | None:
    if ref["key"] in data:
        return data[ref["key"]].decode()
    if ref.get("optional"):
        return None
    namespace = pod["metadata"].get("namespace", "default")
    raise NotStartable(
        f"couldn't find key {ref['key']} in {kind} {namespace}/{ref['name']}"
    )


def _resource(container: Object, ref: Object, allocatable: Mapping[str, str]) -> int:
    """Rounded up, in units of the divisor."""
    where, _, name = str(ref["resource"]).partition(".")
    resources = container.get("resources") or {}
    given = (resources.get(where) or {}).get(name)
    if given is None and where == "requests":
        given = (resources.get("limits") or {}).get(name)
    if given is None:
        given = allocatable.get(name, "0") if where == "limits" else "0"
    divisor = quantity(ref.get("divisor") or "1") or 1.0
    return int(-(-quantity(given) // divisor))
