"""The command line: one file per command, without logic. Heavy packages are imported inside the commands."""

import os
import sys
import threading
from contextlib import suppress
from types import ModuleType

import click

from toposcope.cli.group import Commands
from toposcope.cli.options import INTERRUPTED, BadUse
from toposcope.errors import ToposcopeError
from toposcope.extras import missing
from toposcope.plugins import collect, fault_of_package
from toposcope.version import __version__

GRACE_SECONDS = 0.5  # time that an interrupted task has to end by itself
EPILOG = "Start with: toposcope demo. The --help of each command has an example."


def _command_of(module: ModuleType) -> dict[str, click.Command]:
    """Return the command of a module, which has its name, and dashes for the underscores of it."""
    name = module.__name__.rpartition(".")[2]
    command = getattr(module, name, None)
    return {name.replace("_", "-"): command} if isinstance(command, click.Command) else {}


def _all_commands() -> dict[str, click.Command]:
    return collect(__name__, "toposcope.commands", _command_of)


@click.group(
    cls=Commands, collect=_all_commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__)
def toposcope() -> None:
    """Measure the topology of language models as they train, and forecast their loss."""


def main() -> None:
    """Run the command line; exit with 0, 1 (a fault or failure was found), 2 (cannot be done) or 130 (interrupted)."""
    try:
        # Click returns the exit code of a command that stopped early; commands themselves return nothing.
        sys.exit(toposcope(prog_name="toposcope", standalone_mode=False))
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; run the same command again to continue", err=True)
        _leave_long_tasks()
        sys.exit(INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"Error: {_one_line(error)}", err=True)
        sys.exit(error.exit_code)
    except ToposcopeError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(BadUse.exit_code)
    except ModuleNotFoundError as error:
        if not (advice := missing(error)):
            raise
        click.echo(f"Error: {' '.join(['toposcope', *sys.argv[1:2]])}: {advice}", err=True)
        sys.exit(BadUse.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            click.echo(f"Error: {error.filename}: {(error.strerror or str(error)).lower()}", err=True)
            sys.exit(BadUse.exit_code)
        if not (fault := fault_of_package(error)):
            raise
        click.echo(f"Error: {fault}", err=True)
        sys.exit(1)


def _leave_long_tasks() -> None:
    """Exit at once if another thread still computes, for which Python would wait, and it does not end soon."""
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in others:
        thread.join(GRACE_SECONDS)
    if any(thread.is_alive() for thread in others):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or none
                stream.flush()
        os._exit(INTERRUPTED)


def _one_line(error: click.ClickException) -> str:
    """Return what is wrong with the use of a command, and where its use is described."""
    message = " ".join(error.format_message().split()).removeprefix("Invalid value: ").rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message} (see {context.command_path} --help)" if context else message
