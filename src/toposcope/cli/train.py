"""``toposcope train``."""

from pathlib import Path

import click

from toposcope.cli.options import PLACE, bad_use, defaulted_option, parse_options, repeated_option, workers_option
from toposcope.cli.output import print_errors
from toposcope.cli.progress_bars import progress_bars


@click.command()
@click.argument("sizes", nargs=-1, required=True)
@defaulted_option("--out", type=PLACE, default=Path("trained"), help="Folder to write to.")
@defaulted_option(
    "--corpus", "source", default="python-docs", help="Text to train on: a file, a folder, or hf:owner/name."
)
@repeated_option("--set", "settings", metavar="FIELD=VALUE", help="Field of [training], such as steps=500.")
@workers_option
def train(sizes: tuple[str, ...], out: Path, source: str, settings: tuple[str, ...], workers: int | None) -> None:
    """Train members of the family: tiny-3k, small-7k, med-21k, large-46k, xl-97k.

    \b
    Example:
      toposcope train tiny-3k small-7k --out trained --set steps=1000 --set seed=7
    """
    import msgspec

    from toposcope.errors import ToposcopeError
    from toposcope.family import Corpus, TrainingOptions
    from toposcope.study import Declaration, run_study
    from toposcope.study.declaration import check_declaration
    from toposcope.study.declared_runs import DeclaredRun, readable

    with bad_use():
        fields = {k: v for setting in settings for k, v in parse_options(setting, "--set").items()}
        try:
            training = msgspec.convert(fields, TrainingOptions)
        except msgspec.ValidationError as error:
            raise ToposcopeError(f"--set: {readable(error, TrainingOptions, '[training]')}") from error
        is_name = source == "python-docs" or source.startswith("hf:")
        corpus = Corpus(source=source if is_name else str(Path(source).resolve()))
        runs = [DeclaredRun(size=size) for size in sizes]
        declaration = Declaration(name=out.resolve().name, corpus=corpus, training=training, runs=runs, probes=[])
        check_declaration(declaration)
    with progress_bars() as progress:
        errors = run_study(declaration, out, workers=workers, progress=progress)
    print_errors(errors, out)
    for run in declaration.resolved_runs():
        click.echo(out / "runs" / run.name)
