"""``toposcope show``."""

import os
from pathlib import Path

import click

from toposcope.cli.shared import BadUse, bad_use

TOKEN = "TOPOSCOPE_TOKEN"
"""Environment variable: the token of a server that others can reach, so that it stays when the server is restarted."""


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
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{number}/{f'?token={token}' if token else ''}"

    def started() -> None:
        from toposcope.cli.browser import is_at_a_screen

        click.echo(f"live page: {address}")
        if not token:
            click.echo(
                f"from another machine: ssh -L {number}:127.0.0.1:{number} {_this_machine()}, then the same address"
            )
        click.echo("Ctrl-C ends it.")
        if is_at_a_screen():
            import webbrowser

            webbrowser.open(address)

    serve(directory, bound, host, token, started)


def check_installed() -> None:
    """Refuse to go on without the libraries of the live page."""
    from importlib.util import find_spec

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise BadUse("the live page needs Starlette and uvicorn: pip install 'toposcope[live]'")


def _this_machine() -> str:
    import getpass
    import socket

    return f"{getpass.getuser()}@{socket.gethostname()}"
