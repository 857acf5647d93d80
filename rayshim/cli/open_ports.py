"""`rayshim check-open-ports`: which ports of this host's sessions others can reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import click


@click.command("check-open-ports")
@click.option("--yes", "-y", is_flag=True, help="Accepted as in Ray; nothing is asked.")
@click.option("--service-url", help="Refused: nobody outside is asked.")
@click.option("--log-style", hidden=False, help="Accepted as in Ray.")
@click.option("--log-color", help="Accepted as in Ray.")
@click.option("--verbose", "-v", is_flag=True, help="Loopback ports as well.")
def check_open_ports(
    yes: bool,
    service_url: str | None,
    log_style: str | None,
    log_color: str | None,
    verbose: bool,
) -> None:
    """List the TCP ports of rayshim on this host that other hosts may reach.

    Looks at this host only, and asks no service outside. The exit code is 1 if there is
    one that is not on loopback.
    """
    if service_url:
        raise click.UsageError(
            "--service-url is refused: rayshim asks nobody outside what they can "
            "reach; it lists what listens here"
        )
    reachable = 0
    for name, pid, ip, port in _listeners():
        is_open = not _is_loopback(ip)
        reachable += is_open
        if is_open or verbose:
            click.echo(f"{'open ' if is_open else 'local'} {ip}:{port} {name} {pid}")
    if reachable:
        raise click.ClickException(
            f"{reachable} ports can be reached from other hosts; those who reach them "
            "need the token (docs/security.md)"
        )
    click.echo("no port of rayshim can be reached from another host")


def _is_loopback(ip: str) -> bool:
    """Also of an IPv4 address in the shape of an IPv6 one, as gRPC's are."""
    address = ipaddress.ip_address(ip)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _listeners() -> Iterator[tuple[str, int, str, int]]:
    """``(program, pid, address, port)`` of each listener of this user's sessions."""
    import psutil

    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if not any("rayshim" in word for word in line):
                continue
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    yield process.name(), process.pid, one.laddr.ip, one.laddr.port
        except psutil.Error:
            continue  # it has ended, or is another user's
