"""``toposcope export``."""

from pathlib import Path

import click

from toposcope.cli.options import FOLDER, PLACE, choice_option


@click.command()
@click.argument("directory", type=FOLDER)
@click.option("--out", type=PLACE, help="Folder to write to (default: DIRECTORY/export).")
@choice_option("--format", "kind", choices=["parquet", "csv"], help="File format.")
def export(directory: Path, out: Path | None, kind: str) -> None:
    """Write a study's tables (features, log, checkpoints, runs, errors, findings, alerts, forecasts) for other tools.

    \b
    Example:
      toposcope export paper --format csv
    """
    from toposcope.csv_file import write_table
    from toposcope.study import Study
    from toposcope.study.study import with_flat_steps

    study = Study.load(directory)
    folder = out or directory / "export"
    for name in ("frame", "log", "checkpoints", "runs", "errors", "findings", "alerts", "forecasts"):
        frame = getattr(study, name)()
        if name == "findings" and kind == "csv":
            frame = with_flat_steps(frame)
        path = folder / f"{'features' if name == 'frame' else name}.{kind}"
        write_table(frame, path)
        click.echo(f"{path} ({len(frame)} rows)")
