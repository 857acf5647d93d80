"""``rayshim get-auth-token``: what lets hosts join a cluster."""

from __future__ import annotations

import os
import sys

import click

from rayshim.cli.finding import address_option, fail, temp_dir_option


@click.command("get-auth-token")
@click.option(
    "--generate",
    is_flag=True,
    help="Make one for all clusters of this user (~/.rayshim/auth_token), if there is "
    "none; what is started from then on has it.",
)
@address_option
@temp_dir_option
def get_auth_token(generate: bool, address: str, temp_dir: str | None) -> None:
    """Print the token of the cluster that runs here, else that of the environment.

    It goes to the hosts that shall join, as RAYSHIM_TOKEN or in a file that
    RAYSHIM_TOKEN_PATH names. Whoever has it can run code in the cluster.
    """
    from rayshim._core import clusters

    try:
        token = None if generate else _of_cluster(address, temp_dir)
        token = token or clusters.token_from_environment()
    except ValueError as error:
        fail(str(error))
    if token is None and generate:
        path = clusters.user_token_path()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        token = os.urandom(32)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            file.write(token.hex() + "\n")
        click.echo(f"made {path}", err=True)
    if token is None:
        fail(
            "no cluster runs here and no token is set; --generate makes one for all "
            "clusters of this user"
        )
    # Without a line's end where a program reads it: $(rayshim get-auth-token).
    click.echo(token.hex(), nl=sys.stdout.isatty())


def _of_cluster(address: str, temp_dir: str | None) -> bytes | None:
    from rayshim._core.clusters import find_cluster

    try:
        return find_cluster(address or None, temp_dir).token
    except ConnectionError as error:
        if address:
            fail(str(error))
        return None
