"""Volumes of pods as folders below the pod's own."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.connection import Connection, Informer, Key, key_of


class NotStartable(Exception):
    """A container cannot be made, now or ever; the text is Kubernetes' message.

    Attributes:
        reason: as in a waiting container's state.
    """

    def __init__(
        self, message: str, reason: str = "CreateContainerConfigError"
    ) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a container sees a folder or file, and where that really is."""

    path: str
    real: Path


#: (namespace, ServiceAccount) -> token.
TokenOf = Callable[[str, str], Awaitable[str]]


class Volumes:
    """Makes the volumes of one pod.

    Args:
        pod: as the API server has it.
        folder: of the pod.
        claims: folder of all PersistentVolumeClaims.
        connection: to read Secrets and ConfigMaps.
        token_of: tokens of ServiceAccounts.
    """

    def __init__(
        self,
        pod: Object,
        folder: Path,
        claims: Path,
        connection: Connection,
        token_of: TokenOf,
    ) -> None:
        self._pod = pod
        self._folder = folder / "v"
        self._claims = claims
        self._connection = connection
        self._token_of = token_of
        self._namespace: str = pod["metadata"].get("namespace", "default")
        #: Name of a volume -> its folder.
        self._made: dict[str, Path] = {}

    async def make(self) -> None:
        """Make all volumes.

        Raises:
            NotStartable: something that they are made of is not there.
        """
        for volume in self._pod["spec"].get("volumes") or ():
            self._made[volume["name"]] = await self._make(volume)

    def mounts(self, container: Object) -> list[Mount]:
        """What a container sees where, the longest paths first."""
        found = []
        for mount in container.get("volumeMounts") or ():
            name = mount["name"]
            if name not in self._made:
                raise NotStartable(f'volumeMounts: volume "{name}" is not in the pod')
            if "subPathExpr" in mount:
                raise NotStartable("volumeMounts.subPathExpr is not supported here")
            real: Path = self._made[name]
            if sub := mount.get("subPath"):
                real = real / str(sub)
                if not real.exists():
                    real.mkdir(parents=True)
            found.append(Mount(mount["mountPath"].rstrip("/") or "/", real))
        return sorted(found, key=lambda one: -len(one.path))

    async def _make(self, volume: Object) -> Path:
        folder: Path = self._folder / volume["name"]
        kinds = [key for key in volume if key != "name"]
        kind = kinds[0] if kinds else "emptyDir"
        source = volume.get(kind) or {}
        if kind == "persistentVolumeClaim":
            return await self._claim(source["claimName"])
        folder.mkdir(parents=True, exist_ok=True)
        if kind == "emptyDir":
            pass
        elif kind == "projected":
            for part in source.get("sources") or ():
                for name, value in part.items():
                    await self._project(folder, name, value or {})
        else:
            await self._project(folder, kind, source)
        return folder

    async def _claim(self, name: str) -> Path:
        claim = await self._connection.get(
            "PersistentVolumeClaim", (self._namespace, name)
        )
        if claim is None:
            raise NotStartable(f'persistentvolumeclaim "{name}" not found')
        folder = claim_folder(self._claims, claim)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    async def _project(self, folder: Path, kind: str, source: Object) -> None:
        if kind == "secret":
            name = source.get("secretName") or source["name"]
            files = await self.secret(name, bool(source.get("optional")))
        elif kind == "configMap":
            files = await self.config_map(source["name"], bool(source.get("optional")))
        elif kind == "serviceAccountToken":
            account = self._pod["spec"].get("serviceAccountName") or "default"
            token = await self._token_of(self._namespace, account)
            files = {source["path"]: token.encode()}
        elif kind == "downwardAPI":
            files = {
                one["path"]: self._field(one["fieldRef"]["fieldPath"]).encode()
                for one in source.get("items") or ()
            }
            source = {}
        else:
            raise NotStartable(
                f"volumes: a {kind} volume is not supported by the local cluster; use "
                "emptyDir, secret, configMap, projected, downwardAPI or "
                "persistentVolumeClaim",
                "FailedMount",
            )
        if items := source.get("items"):
            files = {one["path"]: _item(files, one["key"], kind) for one in items}
        for path, data in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(0o600)

    def _field(self, path: str) -> str:
        return field_of(self._pod, path)

    async def secret(self, name: str, is_optional: bool = False) -> dict[str, bytes]:
        """The keys of a Secret."""
        found = await self._connection.get("Secret", (self._namespace, name))
        if found is None:
            if is_optional:
                return {}
            raise NotStartable(f'secret "{name}" not found')
        data = {
            key: base64.b64decode(value)
            for key, value in (found.get("data") or {}).items()
        }
        plain = found.get("stringData") or {}
        return {**data, **{key: value.encode() for key, value in plain.items()}}

    async def config_map(
        self, name: str, is_optional: bool = False
    ) -> dict[str, bytes]:
        """The keys of a ConfigMap."""
        found = await self._connection.get("ConfigMap", (self._namespace, name))
        if found is None:
            if is_optional:
                return {}
            raise NotStartable(f'configmap "{name}" not found')
        binary = {
            key: base64.b64decode(value)
            for key, value in (found.get("binaryData") or {}).items()
        }
        data = found.get("data") or {}
        return {**binary, **{key: value.encode() for key, value in data.items()}}


def _item(files: dict[str, bytes], key: str, kind: str) -> bytes:
    if key not in files:
        raise NotStartable(f"{kind}: references non-existent key: {key}", "FailedMount")
    return files[key]


def claim_folder(claims: Path, claim: Object) -> Path:
    """Where the data of a PersistentVolumeClaim is; another claim has other data."""
    return claims / str(claim["metadata"]["uid"])


_MAP_FIELD = re.compile(r"^metadata\.(labels|annotations)\['(.*)'\]$")


def field_of(pod: Object, path: str) -> str:
    """The value of a ``fieldRef``.

    Raises:
        NotStartable: pods have no such field for this purpose.
    """
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    if match := _MAP_FIELD.match(path):
        return str((meta.get(match[1]) or {}).get(match[2], ""))
    known = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta.get("namespace", "default"),
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": "127.0.0.1",
        "status.hostIPs": "127.0.0.1",
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": status.get("podIP", ""),
    }
    if path not in known:
        raise NotStartable(f"fieldRef: fieldPath {path} is not supported")
    return str(known[path])


class ClaimBinder:
    """Gives each PersistentVolumeClaim its volume, and removes it with the claim.

    Args:
        claims: all PersistentVolumeClaims.
        folder: where their folders are.
        connection: to write their status.
    """

    def __init__(self, claims: Informer, folder: Path, connection: Connection) -> None:
        self._claims = claims
        self._folder = folder
        self._connection = connection
        folder.mkdir(parents=True, exist_ok=True)
        claims.listeners.append(self._hear)

    def _hear(self, kind: str, claim: Object) -> None:
        if kind == "DELETED":
            shutil.rmtree(claim_folder(self._folder, claim), ignore_errors=True)

    async def bind(self, key: Key) -> None:
        """Bind a claim."""
        claim = self._claims.get(key)
        if claim is None or (claim.get("status") or {}).get("phase") == "Bound":
            return
        folder = claim_folder(self._folder, claim)
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        spec = claim["spec"]
        change: Object = {
            "status": {
                "phase": "Bound",
                "accessModes": spec.get("accessModes", []),
                "capacity": dict(spec.get("resources", {}).get("requests", {})),
            }
        }
        self._claims.remember(
            await self._connection.patch(
                "PersistentVolumeClaim", key_of(claim), change, "status"
            )
        )
