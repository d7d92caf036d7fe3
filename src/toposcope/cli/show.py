"""``toposcope show``."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from toposcope.cli.options import INTERRUPTED, bad_use
from toposcope.errors import ToposcopeError

TOKEN = "TOPOSCOPE_TOKEN"  # environment variable with the token of a server, so that the token survives a restart

WILDCARDS = ("0.0.0.0", "::")  # hosts that mean all addresses of this machine; the printed URL then has its name


@click.command()
@click.argument("directory", metavar="DIRECTORY", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; a reader needs a token unless only this machine can reach it.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on (default: the first free one from 8473)."
)
def show(directory: Path, host: str, port: int | None) -> None:
    """Serve a live page of a study, or of a folder of studies side by side.

    The page is the one of `toposcope report`. The loss, its forecast, alerts and measurements appear as they are
    stored, and the analyses follow in the background. On a machine with a screen, it opens in the browser. Only this
    machine can read it; to allow others, choose another --host, and share the URL with the token that is printed.

    \b
    Example:
      toposcope show runs/mine
      toposcope show runs
    """
    serve_and_print(directory, host, port)
    raise click.exceptions.Exit(INTERRUPTED)  # only Ctrl-C ends it


def serve_and_print(directory: Path, host: str = "127.0.0.1", port: int | None = None) -> None:
    """Serve a directory until interrupted; print the URL and how to reach it from another machine."""
    from toposcope.report.live.security import is_loopback, new_token
    from toposcope.report.live.server import bound_socket, serve

    token = "" if is_loopback(host) else os.environ.get(TOKEN) or new_token()
    with bad_use():
        bound = bound_socket(host, port)
    number = bound.getsockname()[1]
    reached = socket.gethostname() if host in WILDCARDS else host
    name = f"[{reached}]" if ":" in reached else reached
    address = f"http://{name}:{number}/{f'?token={token}' if token else ''}"

    def started() -> None:
        from toposcope.cli.output import is_at_a_screen

        click.echo(f"live page: {address}")
        if not token:
            tunnel = f"ssh -L {number}:127.0.0.1:{number} {socket.gethostname()}"
            click.echo(f"from another machine: {tunnel}, then open the same URL")
        if not any(directory.glob("study.db")) and not any(directory.glob("*/study.db")):
            click.echo(f"{directory}: no run here yet; the page updates when one starts.")
        click.echo("Stop with Ctrl-C.")
        if is_at_a_screen():
            import webbrowser

            webbrowser.open(address)

    serve(directory, bound, host, token, started)


@contextmanager
def shown_meanwhile(directory: Path) -> Iterator[None]:
    """Serve a directory from another process while the context writes to it; in a terminal, until interrupted."""
    directory.mkdir(parents=True, exist_ok=True)
    program = "import sys; from toposcope.cli.show import serve_until_stdin_ends; serve_until_stdin_ends(sys.argv[1])"
    server = subprocess.Popen([sys.executable, "-c", program, str(directory)], stdin=subprocess.PIPE)
    try:
        yield
        if sys.stdout.isatty():
            click.echo("The live page stays open; stop with Ctrl-C.")
            try:
                server.wait()
            except KeyboardInterrupt:
                raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        server.communicate()  # the server stops when its standard input ends


def serve_until_stdin_ends(directory: str) -> None:
    """Serve until standard input ends, as it does when the parent process exits for any reason."""

    def stop_at_end() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock a thread must not hold when Python exits
            pass
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=stop_at_end, daemon=True).start()
    try:
        serve_and_print(Path(directory))
    except KeyboardInterrupt:  # before the server handles signals
        return
    except (click.ClickException, ToposcopeError) as error:
        sys.exit(f"Error: no live page: {error}")
