"""``toposcope mcp``."""

from pathlib import Path

import click

from toposcope.cli.options import FOLDER, bad_use


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER [FOLDER]...", type=FOLDER)
def mcp(folders: tuple[Path, ...]) -> None:
    """Serve check, forecast, doctor, layers and measure to programs, by the Model Context Protocol.

    The server speaks on standard input and output and ends with them: a client starts it. It reads below the folders
    named here only, follows no link out of them, and writes nothing.

    \b
    Example:
      toposcope mcp runs checkpoints
    """
    from toposcope.extras import require

    require("mcp", "toposcope mcp")
    from toposcope.programs.server import serve

    with bad_use():
        serve(folders)
