"""Commands of Ray that rayshim refuses: each says why, and what to do instead.

They take Ray's flags, so that a script fails with that reason and not over a flag.
"""

from __future__ import annotations

from collections.abc import Iterable

import click

#: Exit code of a command that is refused.
REFUSED = 2

_LOOK = ("--log-style=", "--log-color=", "--verbose")
_SHELL = ("--start", "--screen", "--tmux", "--cluster-name=", "--no-config-cache")
_TABLE = ("--sort=", "--output=", "--filter=", "--columns=", "--limit=", "--desc")
_ENV = ("--runtime-env=", "--runtime-env-json=", "--working-dir=")
_GRPC = ("--grpc-servicer-functions=", "--grpc-enable-reflection")

_NO_LAUNCHER = (
    "rayshim starts no machines and keeps no SSH sessions to them. Start nodes with "
    "`rayshim start --head` on one host and `rayshim start --address=HOST:PORT` on the "
    "others, or let your platform do so; nodes by demand are in docs/autoscaling.md."
)
_NO_SHELL = (
    "rayshim keeps no SSH sessions to the nodes of a cluster. Log in with ssh or "
    "kubectl exec; to run a program in the cluster, `rayshim job submit -- COMMAND`."
)
_NO_SERVE = (
    "rayshim.serve is not part of this version: deployments cannot be run. Models can "
    "be served from actors; run an HTTP server in one."
)
_NO_TUNE = (
    "rayshim.tune is not part of this version, and reads no experiments. Ray's own "
    "command reads the folders that Ray wrote."
)

#: Why it is refused, its arguments ("*": any number), its flags ("=": with a value).
_Row = tuple[str, tuple[str, ...], tuple[str, ...]]
_TOP: dict[str, _Row] = {
    "up": (
        _NO_LAUNCHER,
        ("cluster_config_file",),
        (
            "--min-workers=",
            "--max-workers=",
            "--no-restart",
            "--restart-only",
            "--yes",
            "--cluster-name=",
            "--no-config-cache",
            "--redirect-command-output",
            "--use-login-shells",
            "--disable-usage-stats",
            *_LOOK,
        ),
    ),
    "down": (
        _NO_LAUNCHER + " `rayshim stop` ends what `rayshim start` started on a host.",
        ("cluster_config_file",),
        ("--yes", "--workers-only", "--cluster-name=", "--keep-min-workers", *_LOOK),
    ),
    "exec": (
        _NO_SHELL,
        ("cluster_config_file", "cmd"),
        (
            "--run-env=",
            "--stop",
            *_SHELL,
            "--port-forward=",
            "--disable-usage-stats",
            *_LOOK,
        ),
    ),
    "attach": (
        _NO_SHELL,
        ("cluster_config_file",),
        (*_SHELL, "--new", "--port-forward=", "--node-ip=", *_LOOK),
    ),
    "submit": (
        _NO_SHELL,
        ("cluster_config_file", "script", "script_args*"),
        (
            "--stop",
            *_SHELL,
            "--port-forward=",
            "--args=",
            "--disable-usage-stats",
            "--extra-screen-args=",
            *_LOOK,
        ),
    ),
    "rsync-down": (
        _NO_SHELL,
        ("cluster_config_file", "source", "target"),
        ("--cluster-name=", *_LOOK),
    ),
    "rsync-up": (
        _NO_SHELL + " Files go along with a job: `rayshim job submit --working-dir`.",
        ("cluster_config_file", "source", "target"),
        ("--cluster-name=", "--all-nodes", *_LOOK),
    ),
    "dashboard": (
        "rayshim opens no tunnels. `rayshim status` shows where the dashboard listens "
        "(127.0.0.1:8265); from elsewhere: ssh -L 8265:localhost:8265 HOST, or kubectl "
        "port-forward.",
        ("cluster_config_file",),
        ("--cluster-name=", "--port=", "--remote-port=", "--no-config-cache"),
    ),
    "monitor": (
        "there is no monitor process whose log could be shown. `rayshim status -v` "
        "shows what the autoscaler does and why.",
        ("cluster_config_file",),
        ("--lines=", "--cluster-name=", *_LOOK),
    ),
    "cpp": (
        "rayshim has no C++ API.",
        (),
        (
            "--show-library-path",
            "--generate-bazel-project-template-to=",
            "--bazel-version=",
            *_LOOK,
        ),
    ),
    "symmetric-run": (
        "rayshim does not start one program on all hosts. Run `rayshim start --head` "
        "on one and `rayshim start --address=HOST:PORT` on the others, then the "
        "program once, with RAY_ADDRESS=auto.",
        ("ray_args_and_entrypoint*",),
        ("--address=", "--min-nodes="),
    ),
    "kuberay-autoscaler": (
        "rayshim is no container of KubeRay. Its planner reads the demand that "
        "`GET /api/demand` gives (docs/autoscaling.md).",
        (),
        ("--cluster-name=", "--cluster-namespace=", "--gcs-address="),
    ),
}
_SERVE: dict[str, _Row] = {
    "run": (
        _NO_SERVE,
        ("config_or_import_path", "arguments*"),
        (
            *_ENV,
            "--app-dir=",
            "--address=",
            "--blocking",
            "--reload",
            "--route-prefix=",
            "--name=",
        ),
    ),
    "deploy": (
        _NO_SERVE,
        ("config_or_import_path", "arguments*"),
        (*_ENV, "--name=", "--address="),
    ),
    "start": (
        _NO_SERVE,
        (),
        (
            "--address=",
            "--http-host=",
            "--http-port=",
            "--proxy-location=",
            "--grpc-port=",
            *_GRPC,
        ),
    ),
    "shutdown": (_NO_SERVE, (), ("--address=", "--yes")),
    "status": (_NO_SERVE, (), ("--address=", "--name=")),
    "config": (_NO_SERVE, (), ("--address=", "--name=")),
    "build": (_NO_SERVE, ("import_paths*",), ("--app-dir=", "--output-path=", *_GRPC)),
    "controller-health": (_NO_SERVE, (), ("--address=", "--json")),
}
_TUNE: dict[str, _Row] = {
    "list-experiments": (_NO_TUNE, ("project_path",), _TABLE),
    "list-trials": (_NO_TUNE, ("experiment_path",), _TABLE),
    "ls": (_NO_TUNE, ("experiment_path",), _TABLE),
    "lsx": (_NO_TUNE, ("project_path",), _TABLE),
    "add-note": (_NO_TUNE, ("path",), ("--filename=",)),
}


def _command(
    path: str, reason: str, arguments: Iterable[str], flags: Iterable[str]
) -> click.Command:
    """A command that takes what Ray's does, and refuses."""

    def refuse(**values: object) -> None:
        click.echo(f"rayshim {path}: {reason}", err=True)
        raise SystemExit(REFUSED)

    parameters: list[click.Parameter] = [
        click.Argument(
            [name.rstrip("*")], nargs=-1 if name.endswith("*") else 1, required=False
        )
        for name in arguments
    ]
    for flag in flags:
        is_flag = not flag.endswith("=")
        parameters.append(click.Option([flag.rstrip("=")], is_flag=is_flag))
    return click.Command(
        path.rpartition(" ")[2],
        callback=refuse,
        params=parameters,
        help=f"Refused: {reason}",
        short_help="Refused; says what to do instead.",
    )


def _group(path: str, table: dict[str, _Row]) -> click.Group:
    reason = next(iter(table.values()))[0]
    commands = {name: _command(f"{path} {name}", *row) for name, row in table.items()}
    return click.Group(path, commands=commands, help=reason, short_help="Refused.")


commands: dict[str, click.Command] = {
    **{name: _command(name, *row) for name, row in _TOP.items()},
    "serve": _group("serve", _SERVE),
    "tune": _group("tune", _TUNE),
}
