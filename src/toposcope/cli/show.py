"""``toposcope show``."""

import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.cli.options import INTERRUPTED, PLACE, BadUse, bad_use, defaulted_option
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from toposcope.report.live.server import Alarm, Tell

TOKEN = "TOPOSCOPE_TOKEN"  # environment variable with the token of a server, so that the token survives a restart
WILDCARDS = ("0.0.0.0", "::")  # hosts that mean all addresses of this machine; the printed URL then has its name


STUDY_FILES = ("study.db", "study.toml")
FIRST_SECONDS = 15  # for a first look at a file, after which it is taken to be a log
LOOKS_FOR = (
    "a study, trainer_state.json, lightning_logs, TensorBoard events, W&B, MLflow, CSV, JSON lines or a console log"
)


@click.command()
@click.argument("path", metavar="PATH", type=PLACE)
@defaulted_option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; a reader needs a token unless only this machine can reach it.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on (default: the first free one from 8473)."
)
@click.option(
    "--webhook",
    metavar="URL",
    envvar="TOPOSCOPE_WEBHOOK",
    help="Post to this URL when a run comes to need a person: https, or http on this machine; it is never printed.",
)
def show(path: Path, host: str, port: int | None, webhook: str | None) -> None:
    """Serve a live page of a run, or of a folder of runs side by side.

    PATH may be a study, the output folder of a Hugging Face Trainer, lightning_logs, TensorBoard events, a CSV, what a
    script prints into a file, or a folder of these; nothing needs to be attached to the run, and nothing is written
    there. It may also be what a run will write: the page waits for it. The loss, its forecast and its health appear as
    the run goes on, of a monitored run also alerts and measurements. On a machine with a screen, the page opens in the
    browser. Only this machine can read it; to allow others, choose another --host, and share the URL with the token
    that is printed.

    \b
    Example:
      toposcope show runs/mine
      toposcope show train.log
      toposcope show runs
    """
    if sys.stderr.isatty():
        click.echo(f"starting the page of {path}", err=True)
    serve_and_print(path.parent if path.name in STUDY_FILES and path.is_file() else path, host, port, webhook=webhook)
    raise click.exceptions.Exit(INTERRUPTED)  # only Ctrl-C ends it


def serve_and_print(path: Path, host: str = "127.0.0.1", port: int | None = None, webhook: str | None = None) -> None:
    """Serve what lies at a path until interrupted; print the URL and how to reach it from another machine.

    The webhook learns which runs need a person.
    """
    from toposcope.report.live.logs import LogReader
    from toposcope.report.live.security import is_loopback, new_token
    from toposcope.report.live.server import bound_socket, serve

    token = "" if is_loopback(host) else os.environ.get(TOKEN) or new_token()
    with bad_use():
        tell = _poster(webhook) if webhook else None
        bound = bound_socket(host, port)
    reader = LogReader(path)
    found = reader.first(FIRST_SECONDS) if path.is_file() else reader.ask()
    if found.refused:
        raise BadUse(found.refused)
    _print_address(path, host, bound.getsockname()[1], token)
    serve(path, bound, host, token, reader, tell)


def _poster(address: str) -> "Tell":
    """Return a function that posts the runs which came to need a person since it was last called."""
    from toposcope.monitor.sinks.webhook import Webhook

    webhook, known, stopped = Webhook(address), set[str](), threading.Event()

    def tell(alarms: "Mapping[str, Alarm]") -> None:
        for run in alarms.keys() - known:
            webhook.add("attention", run, *alarms[run])
        known.clear()
        known.update(alarms)
        try:
            if not stopped.is_set():
                webhook.send()
        except ToposcopeError as error:
            stopped.set()
            click.echo(f"webhook: nothing more is sent: {error}", err=True)

    return tell


def _print_address(path: Path, host: str, number: int, token: str) -> None:
    from toposcope.cli.output import is_at_a_screen
    from toposcope.report.live.assets import are_made

    reached = socket.gethostname() if host in WILDCARDS else host
    name = f"[{reached}]" if ":" in reached else reached
    address = f"http://{name}:{number}/{f'?token={token}' if token else ''}"
    click.echo(f"live page: {address}")
    if not token:
        tunnel = f"ssh -L {number}:127.0.0.1:{number} {socket.gethostname()}"
        click.echo(f"from another machine: {tunnel}, then open the same URL")
    if not path.exists():
        click.echo(f"{path}: does not exist yet; the page waits for it.")
    elif path.is_dir() and not any(path.iterdir()):
        click.echo(f"{path}: empty; the page waits for {LOOKS_FOR}.")
    if not are_made():
        click.echo("The page opens in a few seconds: its charts are made, once for this version.")
    click.echo("Stop with Ctrl-C.")
    if is_at_a_screen():
        import webbrowser

        webbrowser.open(address)
