"""``rayshim why ID``: why an object, call, actor, placement group or node waits."""

from __future__ import annotations

import json
from typing import Any

import click

from rayshim.cli.finding import NothingRuns, Place, places

#: Exit codes, beside 0 and those of click (2 for wrong usage).
NOT_KNOWN, NOTHING_RUNS = 1, 3
#: In what a node says that has no control service (``adapters/raylet/local_requests``).
_NO_CONTROL = "does not answer 'why'"

_COLORS = {
    "ready": "green",
    "alive": "green",
    "created": "green",
    "running": "cyan",
    "waiting": "yellow",
}


@click.command()
@click.argument("id")
@click.option(
    "--address",
    default="",
    metavar="HOST:PORT",
    help="The cluster to ask; default: all sessions of this user on this host.",
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How to print the reasons.",
)
@click.option("--temp-dir", default=None, help="Where sessions are (init(_temp_dir=)).")
def why(id: str, address: str, output: str, temp_dir: str | None) -> None:
    """Say why ID waits, with numbers and what would help.

    ID is that of an object, task, actor, placement group, lease or node: its hex
    digits, of which the first eight are enough. Errors, log lines and repr() show them.

    \b
    Exit codes:
      0  it is explained
      1  nobody knows the id, or it stands for several things
      2  wrong usage
      3  no session or cluster answers
    """
    try:
        where = places(address, temp_dir)
    except NothingRuns as nothing:
        _fail(str(nothing), NOTHING_RUNS, output)
    refusals: list[str] = []
    silent: list[str] = []
    asked: list[str] = []
    for place in where:
        try:
            found = _ask(place, id)
        except RuntimeError as refusal:
            text = str(refusal).removeprefix("why: ValueError: ")
            if _NO_CONTROL in text:
                # A node of a cluster: its head knows, which is asked if it is here.
                silent.append(text)
                continue
            refusals.append(text)
            asked.append(place.name)
        except ConnectionError as error:
            silent.append(str(error))
        else:
            _show(place, found, output)
            return
    if not refusals:
        _fail("\n".join(silent), NOTHING_RUNS, output)
    text = "\n".join(dict.fromkeys(refusals))
    _fail(f"{text} (asked: {', '.join(asked)})", NOT_KNOWN, output)


def _ask(place: Place, id: str) -> list[dict[str, Any]]:
    from rayshim.adapters.wire.oneshot import OneShot

    with OneShot(place.address, place.token) as control:
        answer: list[dict[str, Any]] = control.ask("why", {"id": id or " "})
        return answer


def _fail(text: str, code: int, output: str) -> None:
    if output == "json":
        click.echo(json.dumps({"error": text}))
    else:
        click.echo(f"Error: {text}", err=True)
    raise SystemExit(code)


def _show(place: Place, found: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        click.echo(json.dumps({"session": place.name, "explanations": found}, indent=2))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for one in found:
        state = one["state"]
        head = Text(one["subject"], style="bold")
        head.append(" failed" if state == "failed" else f" is {state}", style="")
        head.stylize(_COLORS.get(state, "red"), len(one["subject"]))
        console.print(head)
        for number, reason in enumerate(one["reasons"], 1):
            line = Text(f"  {number}. ")
            line.append(f"{reason['kind']}: ", style="cyan")
            line.append(reason["text"])
            console.print(line)
            if reason["remedy"]:
                console.print(Text(f"     -> {reason['remedy']}", style="green"))
