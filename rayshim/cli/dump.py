"""`rayshim local-dump` and `cluster-dump`: an archive for a report of a fault."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import click

#: Of a session's folder, what goes into the archive; never its token or values.
_FOLDERS = ("logs", "events")
_FLAGS = (
    ("--logs/--no-logs", "logs", "Log and event files of this host's sessions."),
    ("--debug-state/--no-debug-state", "debug_state", "Nodes, actors and demand."),
    ("--pip/--no-pip", "pip", "Installed packages and their versions."),
    ("--processes/--no-processes", "processes", "Processes of this user's sessions."),
    (
        "--processes-verbose/--no-processes-verbose",
        "processes_verbose",
        "Their command lines as well.",
    ),
)


def _options(command: Any) -> Any:
    for names, name, text in reversed(_FLAGS):
        command = click.option(names, name, default=True, help=text)(command)
    command = click.option("--tempfile", "-T", help="Where to write before `output`.")(
        command
    )
    return click.option("--output", "-o", type=click.Path(path_type=Path))(command)


@click.command("local-dump")
@_options
@click.option("--stream", "-s", is_flag=True, help="Write to standard output.")
def local_dump(
    output: Path | None, stream: bool, tempfile: str | None, **wanted: bool
) -> None:
    """Collect logs and facts of this host's sessions in a .tar.gz archive.

    Tokens, values and environment variables are left out.
    """
    data = _archive(**wanted)
    if stream:
        sys.stdout.buffer.write(data)
        return
    path = output or Path(time.strftime("rayshim_logs_%Y-%m-%d_%H-%M-%S.tar.gz"))
    partial = Path(tempfile) if tempfile else path.with_name(path.name + ".part")
    partial.write_bytes(data)
    partial.chmod(0o600)
    partial.replace(path)
    click.echo(f"wrote {path} ({len(data):,} bytes); look at it before you pass it on")


@click.command("cluster-dump")
@click.argument("cluster_config_file", required=False)
@click.option("--host", help="Refused.")
@click.option("--ssh-user", help="Refused.")
@click.option("--ssh-key", help="Refused.")
@click.option("--docker", help="Refused.")
@click.option("--local/--no-local", default=True, help="This host as well.")
@_options
def cluster_dump(
    cluster_config_file: str | None,
    host: str | None,
    ssh_user: str | None,
    ssh_key: str | None,
    docker: str | None,
    local: bool,
    output: Path | None,
    tempfile: str | None,
    **wanted: bool,
) -> None:
    """As `local-dump`; other hosts are not logged in to."""
    if cluster_config_file or host or ssh_user or ssh_key or docker or not local:
        raise click.UsageError(
            "rayshim keeps no SSH sessions to other hosts: run `rayshim local-dump` on "
            "each of them, or read their logs with `rayshim logs`."
        )
    context = click.get_current_context()
    context.invoke(local_dump, output=output, stream=False, tempfile=tempfile, **wanted)


def _archive(
    *,
    logs: bool,
    debug_state: bool,
    pip: bool,
    processes: bool,
    processes_verbose: bool,
) -> bytes:
    from rayshim._core import clusters, session_folders

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        if logs:
            root = session_folders.session_root(None)
            for folder in (*root.glob("s*-*"), *root.glob("history/*")):
                for name in _FOLDERS:
                    if (folder / name).is_dir():
                        place = folder.relative_to(root) / name
                        archive.add(folder / name, str(place), filter=_plain)
        if debug_state:
            for found in clusters.running():
                name = Path(found.session_dir).name
                _add(archive, f"{name}/state.json", _state(found))
        if pip:
            names = sorted(
                f"{one.metadata['Name']}=={one.version}"
                for one in metadata.distributions()
            )
            _add(archive, "packages.json", names)
        if processes:
            _add(archive, "processes.json", _processes(processes_verbose))
    return buffer.getvalue()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return entry if entry.isfile() or entry.isdir() else None


def _add(archive: tarfile.TarFile, name: str, facts: Any) -> None:
    data = json.dumps(facts, indent=2, default=str).encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = len(data), int(time.time())
    archive.addfile(entry, io.BytesIO(data))


def _state(found: Any) -> dict[str, Any]:
    from rayshim.adapters.wire.oneshot import OneShot

    facts: dict[str, Any] = {"address": found.address}
    try:
        with OneShot(found.head_address, found.token) as head:
            facts["nodes"] = head.ask("nodes")
            for kind in ("actors", "placement_groups", "demand", "lease_tasks"):
                facts[kind] = head.ask("state", {"kind": kind})
    except (ConnectionError, RuntimeError) as error:
        facts["error"] = str(error)
    return facts


def _processes(is_verbose: bool) -> list[dict[str, Any]]:
    import psutil

    rows = []
    for process in psutil.process_iter(["pid", "ppid", "name", "memory_info"]):
        try:
            line = " ".join(process.cmdline())
            if "rayshim" not in line:
                continue
            row = {
                "pid": process.pid,
                "ppid": process.ppid(),
                "name": process.name(),
                "resident_bytes": process.memory_info().rss,
            }
        except psutil.Error:
            continue  # it has ended
        rows.append({**row, "command": line} if is_verbose else row)
    return rows
