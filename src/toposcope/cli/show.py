"""``toposcope show``."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from toposcope.cli.shared import BadUse, bad_use
from toposcope.errors import ToposcopeError

TOKEN = "TOPOSCOPE_TOKEN"
"""Environment variable: the token of a server that others can reach, so that it stays when the server is restarted."""

ANY = ("0.0.0.0", "::")
"""All addresses of this machine: others then reach it by its name."""


@click.command()
@click.argument("directory", metavar="DIRECTORY", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen at; other machines then need a token."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen at (default: the first free one from 8473)."
)
def show(directory: Path, host: str, port: int | None) -> None:
    """Serve the page of a study while it grows, or of a folder of studies side by side.

    The page is that of `toposcope report`: the loss, its forecast, alerts and measurements arrive as they are stored,
    and the analyses follow in the background. It opens in the browser if the command is typed at a machine with a
    screen. Only this machine can read it; for others, --host prints an address with a token.

    \b
    Example:
      toposcope show runs/mine
      toposcope show runs
    """
    serve_and_print(directory, host, port)


def serve_and_print(directory: Path, host: str = "127.0.0.1", port: int | None = None) -> None:
    """Serve a directory until interrupted; print the address and how to reach it from another machine."""
    check_installed()
    from toposcope.report.live.security import is_loopback, new_token
    from toposcope.report.live.server import bound_socket, serve

    token = "" if is_loopback(host) else os.environ.get(TOKEN) or new_token()
    with bad_use():
        bound = bound_socket(host, port)
    number = bound.getsockname()[1]
    reached = socket.gethostname() if host in ANY else host
    name = f"[{reached}]" if ":" in reached else reached
    address = f"http://{name}:{number}/{f'?token={token}' if token else ''}"

    def started() -> None:
        from toposcope.cli.browser import is_at_a_screen

        click.echo(f"live page: {address}")
        if not token:
            tunnel = f"ssh -L {number}:127.0.0.1:{number} {socket.gethostname()}"
            click.echo(f"from another machine: {tunnel}, then the same address")
        click.echo("Ctrl-C ends it.")
        if is_at_a_screen():
            import webbrowser

            webbrowser.open(address)

    serve(directory, bound, host, token, started)


@contextmanager
def shown_meanwhile(directory: Path) -> Iterator[None]:
    """Serve a directory from a process of its own while something fills it; at a terminal, until interrupted."""
    check_installed()
    directory.mkdir(parents=True, exist_ok=True)
    program = "import sys; from toposcope.cli.show import serve_while_fed; serve_while_fed(sys.argv[1])"
    server = subprocess.Popen([sys.executable, "-c", program, str(directory)], stdin=subprocess.PIPE)
    try:
        yield
        if sys.stdout.isatty():
            click.echo("The live page stays until Ctrl-C.")
            with suppress(KeyboardInterrupt):
                server.wait()
    finally:
        server.communicate()  # its input ends, and so does it


def serve_while_fed(directory: str) -> None:
    """Serve until standard input ends: when the process that writes to it does, however it ends."""

    def stop_at_end() -> None:
        while os.read(0, 1):  # not through sys.stdin, which a thread must not hold when Python ends
            pass
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=stop_at_end, daemon=True).start()
    try:
        serve_and_print(Path(directory))
    except KeyboardInterrupt:  # before the server takes signals
        return
    except (click.ClickException, ToposcopeError) as error:
        sys.exit(f"Error: no live page: {error}")


def check_installed() -> None:
    """Refuse to go on without the libraries of the live page."""
    from importlib.util import find_spec

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise BadUse("the live page needs Starlette and uvicorn: pip install 'toposcope[live]'")
