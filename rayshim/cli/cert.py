"""`rayshim cert`: certificates for TLS between the hosts of a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import click

#: Name in every certificate, by which the hosts of a cluster know each other.
NAME = "rayshim"
#: Days that certificates last, unless told otherwise.
DAYS = 365
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--days", default=DAYS, show_default=True, type=click.IntRange(1))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Names or addresses of hosts to put in as well; may be repeated.",
)
@click.option("--force", is_flag=True, help="Replace what is there.")
def cert(folder: Path, days: int, hosts: tuple[str, ...], force: bool) -> None:
    """Make an authority and a certificate for a cluster in FOLDER.

    Writes ca.pem, cert.pem and key.pem. Copy the folder to each host of the cluster and
    set the variables that are shown, there and for drivers. The key of the authority is
    not kept: to add a host, copy the folder; to lock one out, make a new one.

    Example: rayshim cert ~/.rayshim/tls
    """
    if shutil.which("openssl") is None:
        raise click.ClickException(
            "openssl is not installed; install it, or make ca.pem, cert.pem and "
            "key.pem with your own authority"
        )
    files = [folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
    if any(path.exists() for path in files) and not force:
        raise click.ClickException(
            f"{folder} has certificates already; --force replaces them, and hosts with "
            "the old ones can no longer join"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder) as work:
            _make(Path(work), days, hosts)
            for path in files:
                os.replace(Path(work) / path.name, path)
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"openssl failed: {error.stderr.strip()}") from None
    click.echo(f"wrote {', '.join(str(path) for path in files)}\n")
    for variable, text in (
        ("RAYSHIM_TLS_CA", files[0].absolute()),
        ("RAYSHIM_TLS_CERT", files[1].absolute()),
        ("RAYSHIM_TLS_KEY", files[2].absolute()),
        ("RAYSHIM_TLS_NAME", NAME),
    ):
        click.echo(f"export {variable}={text}")


def _make(folder: Path, days: int, hosts: tuple[str, ...]) -> None:
    names = [f"DNS:{NAME}", *(_alternative(host) for host in hosts)]
    (folder / "extensions").write_text(
        f"subjectAltName={','.join(names)}\nbasicConstraints=critical,CA:false\n"
        "extendedKeyUsage=serverAuth,clientAuth\n"
    )
    lasting = ("-days", str(days))
    subject = ("-subj", f"/CN={NAME} authority")
    ca = ("-keyout", "ca-key.pem", "-out", "ca.pem")
    _openssl(folder, "req", "-x509", *_CURVE, *lasting, *subject, *ca)
    subject = ("-subj", f"/CN={NAME}")
    asked = ("-keyout", "key.pem", "-out", "request.pem")
    _openssl(folder, "req", "-new", *_CURVE, *subject, *asked)
    signing = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial")
    made = ("-in", "request.pem", "-extfile", "extensions", "-out", "cert.pem")
    _openssl(folder, "x509", "-req", *lasting, *signing, *made)
    os.chmod(folder / "key.pem", 0o600)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["openssl", *arguments], cwd=folder, check=True, capture_output=True, text=True
    )


def _alternative(host: str) -> str:
    import ipaddress

    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"
