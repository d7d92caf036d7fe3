"""``toposcope doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.cli.options import Opening, bad_use, json_option, series_options
from toposcope.cli.output import print_table
from toposcope.cli.progress_bars import progress_bars
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    import polars as pl


@click.command()
@click.argument("spec")
@click.option("--deep", is_flag=True, help="Also read every tensor and check its values.")
@json_option
@series_options
def doctor(spec: str, deep: bool, as_json: bool, opening: Opening) -> None:
    """Check whether a series of checkpoints is what it claims to be.

    Looks for checkpoints or tensors that are the same under two steps, final weights under early steps, missing and
    extra steps, shards that are missing or disagree with their index, files that are truncated or unsafe, and tensors
    that change shape or dtype. With --deep also for values that are not finite or absurd, tensors of zeros, checksums
    of .pt files that do not match, tensors that are replaced, scaled or stale, checkpoints that are off the path of
    training, and a step 0 that is not an initialisation.

    Of the study of a monitored run it prints what was found in the checkpoints as they were saved.

    The exit code is 1 if there is a fault; notes are not faults. It is 2 if there are no checkpoints to examine.

    \b
    Example:
      toposcope doctor checkpoints/
      toposcope doctor 'hf:EleutherAI/pythia-14m@step*'
      toposcope doctor checkpoints/ --deep --json
    """
    import msgspec

    from toposcope.integrity import doctor as examine
    from toposcope.integrity.finding import short_steps

    if (recorded := recorded_findings(spec)) is not None:
        _print_recorded(recorded, as_json)
        return
    with bad_use():
        series = opening.open(spec)
    with progress_bars() as progress:
        diagnosis = examine(series, deep=deep, progress=progress)
    if as_json:
        click.echo(msgspec.json.encode(diagnosis).decode())
    else:
        rows = [(f.check, f.severity, short_steps(f.steps), f.layer, f.message) for f in diagnosis.findings]
        if rows:
            print_table(("check", "severity", "steps", "layer", "message"), rows, diagnosis.series)
        if diagnosis.coverage:
            click.echo(f"{diagnosis.coverage}.")
        for remark in diagnosis.remarks:
            click.echo(f"note: {remark}")
        click.echo(diagnosis.summary)
    if diagnosis.faults:
        raise click.exceptions.Exit(1)


def recorded_findings(spec: str) -> pl.DataFrame | None:
    """Return what a monitor's doctor found in checkpoints as they were saved; None if this is no monitored study."""
    if not (Path(spec) / "study.db").is_file():
        return None
    from toposcope.study import Study

    study = Study.load(spec)
    if not any(series.live for series in study.declaration.series):
        return None
    if not study.examined():
        raise ToposcopeError(f"{spec}: no checkpoint was examined while it trained; name the folder with checkpoints")
    return study.findings()


def _print_recorded(findings: pl.DataFrame, as_json: bool) -> None:
    if as_json:
        click.echo(findings.write_json())
    else:
        rows = [
            (f["run"], f["check"], f["severity"], " ".join(map(str, f["steps"])), f["layer"], f["message"])
            for f in findings.to_dicts()
        ]
        if rows:
            print_table(("run", "check", "severity", "steps", "layer", "message"), rows, "as they were saved")
        n_faults = sum(severity == "fault" for severity in findings["severity"])
        click.echo(f"checkpoints as they were saved: {n_faults} faults, {len(findings) - n_faults} notes")
    if (findings["severity"] == "fault").any():
        raise click.exceptions.Exit(1)
