"""What ``rayshim doctor`` looks at. Each check gives findings, each with its fix."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rayshim._core import session_folders

if TYPE_CHECKING:
    from rayshim._core.clusters import Found

#: Bytes of shared memory below which large values go to disk all the time.
SMALL_SHM_BYTES = 1 << 30
#: Descriptors that some thousand executors and channels need.
MANY_DESCRIPTORS = 65_536
MIN_DESCRIPTORS = 4_096
MIN_PROCESSES = 4_096
#: Share of a disk above which nothing is spilled to it.
FULL_DISK = 0.95
#: Seconds that clocks may differ.
CLOCK_S = 5.0
#: Days before the end of a certificate that it is said.
SOON_DAYS = 30
#: Modules that have to be there.
NEEDED = ("cloudpickle", "msgspec", "psutil", "pyarrow", "distributed")


class Finding(NamedTuple):
    """One thing that was looked at."""

    #: "ok", "warning" or "error".
    state: str
    subject: str
    #: What it is like, with numbers.
    text: str
    #: What to do; empty if it is well.
    fix: str = ""


def check_all(address: str, temp_dir: str | None) -> list[Finding]:
    """All findings, of this host first.

    Args:
        address: of the cluster to look at, too; empty: the newest one here, if any.
        temp_dir: where sessions are, if not in the usual folder.
    """
    found = [
        *check_shared_memory(),
        *check_limits(),
        *check_folders(temp_dir),
        *check_modules(),
        *check_token(),
        *check_tls(),
        *check_ports(),
    ]
    return [*found, *check_cluster(address, temp_dir)]


def check_shared_memory() -> Iterator[Finding]:
    """How large /dev/shm is."""
    subject = "shared memory"
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.access(shm, os.W_OK):
        yield Finding(
            "warning",
            subject,
            "/dev/shm is missing or not writable: stores lie in the session folder",
            "mount a tmpfs at /dev/shm (docker run --shm-size=8g; in Kubernetes an "
            "emptyDir with medium: Memory)",
        )
        return
    usage = shutil.disk_usage(shm)
    text = f"{_gib(usage.free)} of {_gib(usage.total)} free in /dev/shm"
    if usage.total < SMALL_SHM_BYTES:
        yield Finding(
            "warning",
            subject,
            text + ": large values will be spilled to disk",
            "give it more: docker run --shm-size=8g, an emptyDir with medium: Memory "
            "in Kubernetes, or mount -o remount,size=50% /dev/shm",
        )
    elif usage.free < usage.total / 20:
        yield Finding(
            "warning",
            subject,
            text,
            "see with `ls -lh /dev/shm` who fills it; what rayshim left there is "
            "removed by the next init() or `rayshim start`",
        )
    else:
        yield Finding("ok", subject, text)


def check_limits() -> Iterator[Finding]:
    """Limits of descriptors and processes."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    text = f"up to {_limit(hard)} open files a process"
    if hard != resource.RLIM_INFINITY and hard < MIN_DESCRIPTORS:
        yield Finding(
            "error",
            "open files",
            text,
            f"raise the hard limit: ulimit -Hn {MANY_DESCRIPTORS}, "
            "LimitNOFILE= in a systemd unit, or docker run --ulimit nofile=...",
        )
    elif hard != resource.RLIM_INFINITY and hard < MANY_DESCRIPTORS:
        yield Finding(
            "warning",
            "open files",
            text + ": enough for some hundred executors",
            f"raise the hard limit: ulimit -Hn {MANY_DESCRIPTORS}",
        )
    else:
        yield Finding("ok", "open files", text)
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    text = f"up to {_limit(most)} processes and threads of this user"
    if most != resource.RLIM_INFINITY and most < MIN_PROCESSES:
        yield Finding(
            "warning", "processes", text, f"raise the limit: ulimit -u {MIN_PROCESSES}"
        )
    else:
        yield Finding("ok", "processes", text)


def check_folders(temp_dir: str | None) -> Iterator[Finding]:
    """Where sessions have their files."""
    subject = "session folder"
    try:
        root = session_folders.session_root(temp_dir)
    except (OSError, ValueError) as error:
        yield Finding("error", subject, str(error), "set TMPDIR to a short path")
        return
    mode = stat.S_IMODE(root.stat().st_mode)
    if mode & 0o077:
        yield Finding(
            "error",
            subject,
            f"{root} has mode {mode:o}: others could read tokens",
            f"chmod 700 {root}",
        )
    elif not os.access(root, os.W_OK):
        yield Finding("error", subject, f"{root} is not writable", "set TMPDIR")
    else:
        yield Finding("ok", subject, f"{root} is this user's alone")
    usage = shutil.disk_usage(root)
    used = 1 - usage.free / usage.total
    text = f"{_gib(usage.free)} of {_gib(usage.total)} free for spilled values"
    if used > FULL_DISK:
        yield Finding(
            "warning",
            "disk",
            text + ": nothing more is spilled there",
            "free some, or set spill_dir to a folder on another disk",
        )
    else:
        yield Finding("ok", "disk", text)


def check_modules() -> Iterator[Finding]:
    """Versions of Python and of what rayshim needs."""
    from importlib import metadata

    from rayshim.adapters.wire import versions

    own = versions.own()
    yield Finding(
        "ok", "versions", ", ".join(f"{name} {value}" for name, value in own.items())
    )
    missing = []
    for name in NEEDED:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding(
            "error",
            "modules",
            f"{', '.join(missing)} missing",
            f"{sys.executable} -m pip install {' '.join(missing)}",
        )


def check_token() -> Iterator[Finding]:
    """Whether the token that the environment names is one, and private."""
    from rayshim._core import clusters

    path = os.environ.get("RAYSHIM_TOKEN_PATH") or clusters.user_token_path()
    try:
        token = clusters.token_from_environment()
    except ValueError as error:
        yield Finding(
            "error", "token", str(error), "copy it anew from `rayshim get-auth-token`"
        )
        return
    if token is None:
        yield Finding("ok", "token", "none is set: each cluster makes its own")
        return
    if not os.environ.get("RAYSHIM_TOKEN"):
        from rayshim.adapters.wire.tls import is_open_to_others

        about = os.stat(path)
        mode = stat.S_IMODE(about.st_mode)
        if is_open_to_others(about):
            yield Finding(
                "error",
                "token",
                f"{path} has mode {mode:o}: others can read it, and run code as you",
                f"chmod 600 {path}",
            )
            return
    yield Finding("ok", "token", "one is set in the environment")


def check_tls() -> Iterator[Finding]:
    """Whether the certificates that the settings name work, and for how long."""
    import ssl

    from rayshim.adapters.wire import tls

    new = "rayshim cert FOLDER --force, and copy it to each host"
    try:
        credentials = tls.of_environment()
        if credentials is not None:
            credentials.check()
    except ValueError as error:
        yield Finding("error", "TLS", str(error), "rayshim cert FOLDER makes a set")
        return
    if credentials is None:
        yield Finding("ok", "TLS", "off: fine on loopback and on trusted networks")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(credentials.ca)
    ends = min(
        ssl.cert_time_to_seconds(str(one["notAfter"]))
        for one in context.get_ca_certs()
        if "notAfter" in one
    )
    days = (ends - time.time()) / 86_400
    if days < 0:
        yield Finding("error", "TLS", f"the authority ended {-days:.0f} days ago", new)
    elif days < SOON_DAYS:
        yield Finding("warning", "TLS", f"the authority ends in {days:.0f} days", new)
    else:
        yield Finding("ok", "TLS", f"on; the authority is good for {days:.0f} days")


def check_ports() -> Iterator[Finding]:
    """Whether the usual ports are free."""
    from rayshim._core.clusters import running
    from rayshim.adapters.wire.address import listen_tcp

    own = " ".join(f"{one.address} {one.dashboard_url}" for one in running())
    for port, what in ((6379, "a head"), (8265, "a dashboard")):
        try:
            listen_tcp("127.0.0.1", port).close()
        except OSError:
            if f":{port}" in own:
                yield Finding("ok", f"port {port}", "in use by a session of this user")
            else:
                yield Finding(
                    "warning",
                    f"port {port}",
                    f"in use by another program: {what} takes another one",
                    f"see with `ss -ltnp 'sport = :{port}'` by which",
                )
        else:
            yield Finding("ok", f"port {port}", "free")


def check_cluster(address: str, temp_dir: str | None) -> Iterator[Finding]:
    """Whether a cluster answers, and is like this host."""
    from rayshim._core.clusters import address_from_environment, find_cluster

    try:
        found = find_cluster(address or None, temp_dir)
    except (ConnectionError, ValueError) as error:
        if address or address_from_environment():
            yield Finding("error", "cluster", str(error), "see docs/clusters.md")
        else:
            yield Finding("ok", "cluster", "none runs here")
        return
    yield from _asked(found)


def _asked(found: Found) -> Iterator[Finding]:
    from rayshim.adapters.wire import versions
    from rayshim.adapters.wire.oneshot import OneShot

    try:
        before = time.time()
        with OneShot(found.head_address, found.token) as head:
            info: dict[str, Any] = head.ask("cluster_info")
            rows = head.ask("node_table")
            theirs = float(head.ask("demand")["time_s"])
    except (ConnectionError, RuntimeError) as error:
        yield Finding(
            "error",
            "cluster",
            str(error),
            "is its host up, is a firewall between, is the token that of the cluster "
            "(`rayshim get-auth-token` there)?",
        )
        return
    alive = [row for row in rows if row["alive"] and not row["is_client"]]
    yield Finding("ok", "cluster", f"{found.address} answers; {len(alive)} nodes live")
    for row in rows:
        if row["alive"] and not row["usable"] and not row["is_client"]:
            note = row["drain_note"] or "it drains, or has not been heard for a while"
            yield Finding(
                "warning",
                f"node {row['node_id'][:8]}",
                f"gets no new work: {note}",
                "see `rayshim status -v`",
            )
    try:
        versions.check(info.get("versions", {}), "this host")
    except RuntimeError as error:
        yield Finding(
            "error", "cluster versions", str(error), "use the same on both sides"
        )
    else:
        yield Finding("ok", "cluster versions", "the same as here")
    apart = max(before - theirs, theirs - time.time(), 0.0)
    if apart > CLOCK_S:
        yield Finding(
            "warning",
            "clock",
            f"{apart:.0f} s apart from the head's: times in lists and logs mislead",
            "set both by NTP (timedatectl set-ntp true)",
        )
    else:
        yield Finding("ok", "clock", "the same as the head's")
    host = found.address.rpartition(":")[0]
    yield from _check_encryption("" if found.is_local else host)


def _check_encryption(host: str) -> Iterator[Finding]:
    from rayshim.adapters.wire import tls

    try:
        credentials = tls.of_environment()
        if credentials is not None:
            credentials.check()
    except (OSError, ValueError) as error:
        yield Finding("error", "TLS", str(error), "make a new set with `rayshim cert`")
        return
    if credentials is not None:
        yield Finding("ok", "TLS", f"certificates of {credentials.ca}")
    elif host and host not in ("127.0.0.1", "[::1]", "localhost"):
        yield Finding(
            "warning",
            "TLS",
            f"the cluster listens at {host} and its traffic is not encrypted",
            "set up TLS (`rayshim cert`), or use a private network or a tunnel",
        )


def _limit(number: int) -> str:
    return "any number of" if number == resource.RLIM_INFINITY else f"{number}"


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
