"""Entry point of the `rayshim` command.

Commands are loaded when they are called (or listed), so that each costs the imports of
its own module only.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import click

from rayshim import RAYSHIM_VERSION

#: Command -> "module:name" of its click command or group.
_COMMANDS = {
    "check-open-ports": "rayshim.cli.open_ports:check_open_ports",
    "sanity-check": "rayshim.cli.doctor:doctor",
    "cert": "rayshim.cli.cert:cert",
    "cluster-dump": "rayshim.cli.dump:cluster_dump",
    "compat": "rayshim.cli.compat:compat",
    "debug": "rayshim.cli.debug:debug",
    "disable-usage-stats": "rayshim.cli.usage_stats:disable_usage_stats",
    "doctor": "rayshim.cli.doctor:doctor",
    "drain-node": "rayshim.cli.drain_node:drain_node",
    "enable-usage-stats": "rayshim.cli.usage_stats:enable_usage_stats",
    "get": "rayshim.cli.get:get",
    "get-auth-token": "rayshim.cli.auth_token:get_auth_token",
    "get-head-ip": "rayshim.cli.node_ips:get_head_ip",
    "get-worker-ips": "rayshim.cli.node_ips:get_worker_ips",
    "global-gc": "rayshim.cli.global_gc:global_gc",
    "health-check": "rayshim.cli.health_check:health_check",
    "job": "rayshim.cli.job:job",
    "k8s": "rayshim.cli.k8s:k8s",
    "kill-actor": "rayshim.cli.kill_actor:kill_actor",
    "kill-random-node": "rayshim.cli.kill_random_node:kill_random_node",
    "list": "rayshim.cli.list:list_",
    "local-dump": "rayshim.cli.dump:local_dump",
    "logs": "rayshim.cli.logs:logs",
    "memory": "rayshim.cli.memory:memory",
    "metrics": "rayshim.cli.metrics:metrics",
    "microbenchmark": "rayshim.cli.microbenchmark:microbenchmark",
    "replay": "rayshim.cli.replay:replay",
    "run": "rayshim.cli.run:run",
    "stack": "rayshim.cli.stack:stack",
    "start": "rayshim.cli.start:start",
    "status": "rayshim.cli.status:status",
    "stop": "rayshim.cli.stop:stop",
    "summary": "rayshim.cli.summary:summary",
    "timeline": "rayshim.cli.timeline:timeline",
    "version": "rayshim.cli.run:version",
    "why": "rayshim.cli.why:why",
}


class LazyGroup(click.Group):
    """A group whose commands are imported at their first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the alphabet; not of refused ones."""
        return sorted([*_COMMANDS, *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None if there is none."""
        place = _COMMANDS.get(cmd_name)
        if place is None:
            from rayshim.cli import refused

            known = super().get_command(ctx, cmd_name)
            return known or refused.commands.get(cmd_name)
        module, _, name = place.partition(":")
        command: Any = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is asked for; the error names those that are near."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """The commands, and Ray's that are refused."""
        super().format_commands(ctx, formatter)
        from rayshim.cli import refused

        with formatter.section("Commands of Ray that are refused, with a reason"):
            formatter.write_dl(
                [(name, one.get_short_help_str()) for name, one in _sorted(refused)]
            )


def _sorted(refused: Any) -> list[tuple[str, click.Command]]:
    return sorted(refused.commands.items())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(RAYSHIM_VERSION, prog_name="rayshim")
@click.option(
    "--logging-level",
    default="info",
    show_default=True,
    type=click.Choice(
        ["debug", "info", "warning", "error", "critical"], case_sensitive=False
    ),
    help="Level of the command's own log.",
)
@click.option(
    "--logging-format",
    default="%(asctime)s\t%(levelname)s %(filename)s:%(lineno)s -- %(message)s",
    help="Format of the command's own log, as of Python's logging.",
)
def main(logging_level: str, logging_format: str) -> None:
    """Run and look after rayshim programs and clusters."""
    logging.basicConfig(level=logging_level.upper(), format=logging_format)
