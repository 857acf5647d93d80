"""``rayshim start``: a head with a node on this host, or a node that joins one."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayshim.cli.start_refusals import refused_options

if TYPE_CHECKING:
    from rayshim._core.clusters import Found
    from rayshim._core.keeper import Plan

DEFAULT_PORT = 6379
LOOPBACK = "127.0.0.1"
#: Options of a head -> what is wrong with them on a host that joins one.
_OF_HEAD = ("port", "include_dashboard", "dashboard_port", "ray_client_server_port")


@click.command()
@click.option("--head", is_flag=True, help="Start a cluster: its head and a node here.")
@click.option(
    "--address",
    default="",
    metavar="HOST:PORT",
    help="Start a node that joins the cluster there; 'auto': the one of this host.",
)
@click.option(
    "--node-ip-address",
    default="",
    metavar="IP",
    help="Address of this host to listen at, and by which the others reach it. "
    "[default: 127.0.0.1 of a head; else the one that leads to the head]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Port of the head; 0: any that is free.  [default: 6379]",
)
@click.option("--node-name", default="", help="A name, seen as a label of the node.")
@click.option(
    "--token-path",
    default="",
    metavar="FILE",
    help="File with the cluster's token. [default: RAYSHIM_TOKEN, "
    "RAYSHIM_TOKEN_PATH, ~/.rayshim/auth_token, or a new one for a head]",
)
@click.option(
    "--node-manager-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the node; 0: any that is free.",
)
@click.option(
    "--object-manager-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port over which the node sends values (Flight); 0: any that is free.",
)
@click.option(
    "--min-worker-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Lowest port of executors.  [default: any port]",
)
@click.option(
    "--max-worker-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Highest port of executors.  [default: any port]",
)
@click.option(
    "--worker-port-list", default="", metavar="PORT,...", help="Ports of executors."
)
@click.option(
    "--ray-client-server-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Second port of the head, for ray://HOST:PORT; 0: none.  "
    "[default: 10001 if it is free]",
)
@click.option("--num-cpus", type=click.IntRange(min=0), default=None, help="CPUs.")
@click.option("--num-gpus", type=click.IntRange(min=0), default=None, help="GPUs.")
@click.option(
    "--memory", type=click.IntRange(min=0), default=None, help="Bytes for executors."
)
@click.option(
    "--object-store-memory",
    type=int,
    default=None,
    help="Bytes of the store, at least 75 MiB.  [default: 60 % of the free memory]",
)
@click.option(
    "--resources",
    default="{}",
    help="Custom resources as JSON, such as '{\"licence\": 2}'.",
)
@click.option("--labels", default="", help="Labels, as key1=value1,key2=value2.")
@click.option(
    "--labels-file", default="", metavar="FILE", help="YAML or JSON file with labels."
)
@click.option(
    "--include-dashboard", type=bool, default=None, help="Whether to have a dashboard."
)
@click.option(
    "--dashboard-host",
    default=LOOPBACK,
    show_default=True,
    help="Address that the dashboard listens at.",
)
@click.option(
    "--dashboard-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Port of the dashboard.  [default: 8265, or the next one that is free]",
)
@click.option("--block", is_flag=True, help="Stay, and end everything at the end.")
@click.option(
    "--stay-when-drained",
    is_flag=True,
    help="With --block: once the node was drained, wait for SIGTERM instead of ending, "
    "so that what starts containers again does not bring a new node.",
)
@click.option(
    "--object-spilling-directory",
    default="",
    metavar="FOLDER",
    help="Where values go when the store is full: a folder or a URL.",
)
@click.option(
    "--temp-dir", default=None, metavar="FOLDER", help="Where sessions have files."
)
@click.option(
    "--system-config", default="{}", help="Settings as JSON (docs/settings.md)."
)
@click.option(
    "--metrics-export-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Port of the node's metrics, for Prometheus.",
)
@click.option(
    "--disable-usage-stats",
    is_flag=True,
    help="Always so: rayshim reports to nobody.",
)
@click.option(
    "--enable-object-reconstruction",
    is_flag=True,
    help="Always so: lost values are made again.",
)
@click.option(
    "--no-monitor", is_flag=True, help="Always so: there is no monitor process."
)
@click.option("-v", "--verbose", is_flag=True, help="Say more of what is started.")
@click.option(
    "--log-style",
    type=click.Choice(["auto", "record", "pretty"]),
    default="auto",
    help="'record': no colours.",
)
@click.option(
    "--log-color",
    type=click.Choice(["auto", "false", "true"]),
    default="auto",
    help="Whether to use colours.",
)
@refused_options
def start(**options: Any) -> None:
    """Start a cluster on this host, or a node of one.

    With --head it is a new cluster. It listens on loopback only, unless
    --node-ip-address says otherwise: then whoever has its token can join it and run
    code here. On the other hosts, run this with --address=HOST:PORT and the token.

    What is started stays until `rayshim stop`; with --block, as long as this command.
    """
    _check_usage(options)
    from rayshim._core import keeper, session_folders
    from rayshim.adapters.raylet.config import DRAINED_CODE

    try:
        plan = _plan(options)
        root = session_folders.session_root(options["temp_dir"])
    except (ConnectionError, RuntimeError, OSError) as error:
        _fail(str(error))
    except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
        raise click.UsageError(str(error)) from None
    lifeline = -1
    told_to_end = threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: object) -> None:
        told_to_end.set()
        for one in started:
            one.send_signal(signal.SIGTERM)

    if options["block"]:
        # Before anything is started: a signal may come while it starts.
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        plan.lifeline_fd, lifeline = os.pipe()
    try:
        process, facts = keeper.launch(plan, root)
    except RuntimeError as error:
        _fail(_explained(str(error), plan))
    _tell(options, facts, plan)
    if options["block"]:
        assert lifeline >= 0
        os.close(plan.lifeline_fd)
        started.append(process)
        if told_to_end.is_set():
            process.send_signal(signal.SIGTERM)
        code = process.wait()
        if code == DRAINED_CODE:
            if options["stay_when_drained"]:
                click.echo(
                    "The node was drained and has left the cluster. This command waits "
                    "for SIGTERM (--stay-when-drained); stop its host or container."
                )
                told_to_end.wait()
            code = 0
        if code:
            click.echo("Error: what was started here ended by itself.", err=True)
        raise SystemExit(code)


def _check_usage(options: dict[str, Any]) -> None:
    if options["head"] and options["address"]:
        raise click.UsageError(
            "--head starts a cluster and --address joins one: give one of them"
        )
    if not options["head"] and not options["address"]:
        raise click.UsageError(
            "give --head to start a cluster here, or --address=HOST:PORT to join one"
        )
    if not options["head"]:
        for name in _OF_HEAD:
            if options[name] is not None:
                flag = "--" + name.replace("_", "-")
                raise click.UsageError(f"{flag} is for --head: a node has none")
    if options["stay_when_drained"] and (options["head"] or not options["block"]):
        raise click.UsageError(
            "--stay-when-drained is for a node that joins a cluster, with --block"
        )
    low, high = options["min_worker_port"], options["max_worker_port"]
    if (low is None) != (high is None) or (low or 0) > (high or 0):
        raise click.UsageError(
            "--min-worker-port and --max-worker-port are the ends of one range: give "
            "both, the lower one first"
        )


def _plan(options: dict[str, Any]) -> Plan:
    from rayshim._core.init_options import InitOptions
    from rayshim._core.keeper import Plan

    temp_dir = options["temp_dir"]
    node = _node_arguments(options)
    checked = InitOptions.validate(address="local", configure_logging=False, **node)
    for name in ("tls_ca", "tls_cert", "tls_key", "tls_name"):
        # Also for the questions that the keeper asks.
        if value := getattr(checked.settings, name):
            os.environ[f"RAYSHIM_{name.upper()}"] = value
    more: dict[str, Any] = {
        "port": options["node_manager_port"],
        "flight_port": options["object_manager_port"],
    }
    if options["head"]:
        token = _token(options) or os.urandom(32)
        node_ip = _own_ip(options["node_ip_address"]) or LOOPBACK
        settings = checked.settings
        include = options["include_dashboard"]
        settings = replace(
            settings,
            dashboard_host=options["dashboard_host"],
            dashboard_port=-1 if include is False else options["dashboard_port"] or 0,
        )
        port = DEFAULT_PORT if options["port"] is None else options["port"]
        head = {
            "port": port,
            "client_port": _client_port(options, node_ip),
            "dashboard_at_once": True,
            "settings": asdict(settings),
        }
        _check_port(node_ip, port)
        if settings.dashboard_port > 0:
            _check_dashboard(settings.dashboard_host, settings.dashboard_port)
        return Plan(head, "", token.hex(), node_ip, node, more, temp_dir=temp_dir)
    found, info = _cluster(options)
    from rayshim.adapters.wire.address import lasting, own_ip_towards, parse_tcp

    head_address = lasting(found.head_address, str(info["address"]))
    place = parse_tcp(found.head_address)
    node_ip = _own_ip(options["node_ip_address"]) or own_ip_towards(
        place.host, place.port
    )
    return Plan(
        None, head_address, found.token.hex(), node_ip, node, more, temp_dir=temp_dir
    )


def _cluster(options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
    """The cluster to join, and what its head says of itself."""
    from rayshim._core.clusters import Found, find_cluster
    from rayshim.adapters.wire import versions
    from rayshim.adapters.wire.oneshot import OneShot

    address = options["address"].removeprefix("ray://")
    token = _token_of_path(options)
    if token is not None and address != "auto":
        found = Found(address, f"tcp:{address}/head/head", token)
    else:
        found = find_cluster(address, options["temp_dir"])
    if found.is_local:
        raise ConnectionError(
            f"{found.address} is a session of init(), which no other node can join; "
            "start a cluster with `rayshim start --head`"
        )
    with OneShot(found.head_address, found.token) as head:
        info = head.ask("cluster_info")
    versions.check(info.get("versions", {}), "this node")
    return found, info


def _node_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """What ``init`` would be called with."""
    config = _json_object(options["system_config"], "--system-config")
    if options["metrics_export_port"] is not None:
        config["metrics_port"] = options["metrics_export_port"]
    low, high = options["min_worker_port"], options["max_worker_port"]
    if options["worker_port_list"]:
        config["worker_ports"] = options["worker_port_list"]
    elif low:
        config["worker_ports"] = f"{low}-{high}"
    labels = _labels(options)
    arguments: dict[str, Any] = {
        "num_cpus": options["num_cpus"],
        "num_gpus": options["num_gpus"],
        "resources": _json_object(options["resources"], "--resources") or None,
        "labels": labels or None,
        "object_store_memory": options["object_store_memory"],
        "_memory": options["memory"],
        "_node_name": options["node_name"] or None,
        "_temp_dir": options["temp_dir"],
        "_system_config": config or None,
        "include_dashboard": False,
    }
    if options["object_spilling_directory"]:
        arguments["object_spilling_directory"] = options["object_spilling_directory"]
    return arguments


def _json_object(text: str, flag: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(
            f"{flag} must be a JSON object, not {text!r}: {error}"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{flag} must be a JSON object, not {text!r}")
    return value


def _labels(options: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = {}
    if options["labels_file"]:
        import yaml

        try:
            with open(options["labels_file"]) as file:
                read = yaml.safe_load(file) or {}
        except (OSError, yaml.YAMLError) as error:
            raise ValueError(f"--labels-file cannot be read: {error}") from None
        if not isinstance(read, dict):
            raise ValueError("--labels-file must hold a map of labels to values")
        labels.update({str(key): str(value) for key, value in read.items()})
    for pair in filter(None, options["labels"].split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"--labels must be key=value,..., not {pair!r}")
        labels[key.strip()] = value.strip()
    return labels


def _own_ip(host: str) -> str:
    """The IP address of a name of this host, as it was given if it is one."""
    if not host:
        return ""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        try:
            return str(socket.getaddrinfo(host, None)[0][4][0])
        except OSError as error:
            raise ValueError(f"--node-ip-address {host!r}: {error}") from None


def _token_of_path(options: dict[str, Any]) -> bytes | None:
    from rayshim._core.clusters import read_token

    path = options["token_path"]
    return read_token(Path(path)) if path else None


def _token(options: dict[str, Any]) -> bytes | None:
    from rayshim._core.clusters import token_from_environment

    return _token_of_path(options) or token_from_environment()


def _client_port(options: dict[str, Any], ip: str) -> int:
    from rayshim._core.clusters import CLIENT_PORT

    asked = options["ray_client_server_port"]
    if asked is not None:
        return int(asked)
    return CLIENT_PORT if _is_free(ip, CLIENT_PORT) else 0


def _is_free(ip: str, port: int) -> bool:
    from rayshim.adapters.wire.address import listen_tcp

    try:
        listen_tcp(ip, port).close()
    except OSError:
        return False
    return True


def _check_port(ip: str, port: int) -> None:
    """See that a head can listen there.

    Raises:
        ConnectionError: it cannot; the text says what to do.
    """
    from rayshim.adapters.wire.address import listen_tcp

    try:
        listen_tcp(ip, port).close()
    except OSError as error:
        raise ConnectionError(
            f"a head cannot listen at {ip}:{port}: {error.strerror or error}. If a "
            "cluster runs there, `rayshim status` shows it and `rayshim stop` ends "
            "it; else give another --port (0: any), or as --node-ip-address one of "
            "this host."
        ) from None


def _check_dashboard(host: str, port: int) -> None:
    """See that the dashboard can listen where it is asked to.

    Raises:
        ConnectionError: it cannot; the text says what to do.
    """
    from rayshim.adapters.wire.address import listen_tcp

    try:
        listen_tcp(host, port).close()
    except OSError as error:
        raise ConnectionError(
            f"the dashboard cannot listen at {host}:{port}: {error.strerror or error}; "
            "give another --dashboard-port, or none for the next one that is free"
        ) from None


def _explained(text: str, plan: Plan) -> str:
    return f"it could not be started at {plan.node_ip}: {text}"


def _fail(text: str) -> Any:
    click.echo(f"Error: {text}", err=True)
    raise SystemExit(1)


def _tell(options: dict[str, Any], facts: dict[str, Any], plan: Plan) -> None:
    """What was started, and what to do with it."""
    color = options["log_color"]
    bold = color == "true" or (
        color == "auto" and options["log_style"] != "record" and sys.stdout.isatty()
    )

    def title(text: str) -> None:
        click.secho(text, bold=bold)

    def step(what: str, *commands: str) -> None:
        click.echo(f"  {what}")
        for command in commands:
            click.echo(f"    {click.style(command, fg='cyan') if bold else command}")

    address, ip = facts["address"], plan.node_ip
    is_open = not _is_loopback(ip)
    kind = "head" if facts["is_head"] else "node"
    title(f"The {kind} runs at {ip} (keeper: pid {facts['pid']}).")
    if options["verbose"]:
        click.echo(f"  node {facts['node_id']}, files in {facts['session_dir']}")
    url = facts["dashboard_url"]
    head_host = address.rpartition(":")[0]
    # The dashboard of another host that listens there on loopback.
    is_far = not facts["is_head"] and head_host != ip and "://127.0.0.1:" in url
    if url:
        click.echo(
            f"  Dashboard: {url}"
            + (f" on {head_host}, which this host cannot reach" if is_far else "")
        )
    click.echo("")
    title("Next steps")
    if facts["is_head"]:
        if is_open:
            step(
                "To add a node, run on its host, with the token of this cluster "
                "(`rayshim get-auth-token`):",
                f"RAYSHIM_TOKEN=... rayshim start --address='{address}'",
            )
        else:
            step(
                "To add another node on this host:",
                f"rayshim start --address='{address}'",
            )
            step(
                "Other hosts cannot reach it: it listens on loopback. To let those in "
                "that have its token, start it with an address of this host:",
                "rayshim stop && rayshim start --head --node-ip-address=IP",
            )
        if is_open:
            click.echo(
                "  Whoever can reach this host and has the token can run code here."
            )
            if not os.environ.get("RAYSHIM_TLS_CA"):
                click.echo(
                    "  The traffic is not encrypted: set up TLS (`rayshim cert`), or "
                    "use a network that you trust."
                )
    step(
        "To connect a program to the cluster:",
        "import rayshim as ray",
        "ray.init()" if facts["is_head"] else f"ray.init(address={address!r})",
    )
    if facts["is_head"] and is_open:
        host = address.rpartition(":")[0]
        place = f"{host}:{facts['client_port']}" if facts["client_port"] else address
        if not facts["client_port"]:
            click.echo(
                "  Port 10001 is taken, so that `ray://HOST` without a port does not "
                "lead here; --ray-client-server-port chooses another."
            )
        step("From another host, with the token:", f"ray.init('ray://{place}')")
    if url and not is_far:
        step(
            "To submit a job:",
            f"RAY_ADDRESS='{url}' rayshim job submit "
            "--working-dir . -- python my_script.py",
        )
    step("To look at the cluster:", "rayshim status")
    step("To end what runs on this host:", "rayshim stop")
    if options["block"]:
        click.echo("")
        title("--block: this command stays. Ctrl-C ends all of it.")


def _is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip).is_loopback
