"""The command line: one file a command, no logic of its own. Heavy packages are imported inside the commands."""

import sys

import click

from toposcope.cli.backtest import backtest
from toposcope.cli.decide import decide
from toposcope.cli.demo import demo
from toposcope.cli.doctor import doctor
from toposcope.cli.export import export
from toposcope.cli.forecast import forecast
from toposcope.cli.layers import layers
from toposcope.cli.measure import measure
from toposcope.cli.report import report
from toposcope.cli.study import study
from toposcope.cli.train import train
from toposcope.errors import ToposcopeError
from toposcope.experiments.early_stopping.command import stopping
from toposcope.version import __version__

EPILOG = "Begin with: toposcope demo. Each command has --help with an example."


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toposcope")
def toposcope() -> None:
    """An instrument for the topology of language-model training: exact, fast, and honest about drift."""


for _command in (demo, train, doctor, layers, measure, study, report, forecast, backtest, stopping, decide, export):
    toposcope.add_command(_command)


def main() -> None:
    """Run the command line; exit with 0, 1 (work failed) or 2 (bad use)."""
    try:
        # Click hands back the code of a command that stopped early; commands themselves return nothing.
        sys.exit(toposcope(standalone_mode=False))
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; run the same command again to go on", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ToposcopeError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
