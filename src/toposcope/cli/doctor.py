"""``toposcope doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toposcope.cli.shared import Opening, print_table, progress_bars, series_options

if TYPE_CHECKING:
    from toposcope.integrity import Evidence, Finding


@click.command()
@click.argument("spec")
@click.option("--deep", is_flag=True, help="Read every tensor: finds what names, headers and hashes cannot tell.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@series_options
def doctor(spec: str, deep: bool, as_json: bool, opening: Opening) -> None:
    """Tell whether a series of checkpoints is what it claims to be.

    Looks for checkpoints or tensors that are the same under two steps, final weights under early steps, missing and
    extra steps, shards that are missing or disagree with their index, files that are truncated or unsafe, and tensors
    that change shape or dtype. With --deep also for values that are not finite, dead layers, checkpoints that do not
    lie on the way of the training, and a step 0 that is no initialisation.

    Exits with 1 if there is a fault; notes are no faults.

    \b
    Example:
      toposcope doctor checkpoints/
      toposcope doctor 'hf:EleutherAI/pythia-14m@step*'
      toposcope doctor checkpoints/ --deep --json
    """
    from toposcope.integrity import examined, judge_series

    series = opening.open(spec)
    with progress_bars() as progress:
        evidence = examined(series, deep=deep, progress=progress)
    found = judge_series(series, evidence)
    _show(series.spec, evidence, found, deep, as_json)
    if any(finding.severity == "fault" for finding in found):
        raise click.exceptions.Exit(1)


def _show(spec: str, evidence: list[Evidence], found: list[Finding], deep: bool, as_json: bool) -> None:
    n_tensors = sum(len(item.tensors) for item in evidence)
    n_faults = sum(finding.severity == "fault" for finding in found)
    n_notes = len(found) - n_faults
    if as_json:
        import msgspec

        told = {"series": spec, "deep": deep, "checkpoints": len(evidence), "tensors": n_tensors}
        click.echo(msgspec.json.encode({**told, "faults": n_faults, "notes": n_notes, "findings": found}).decode())
        return
    if found:
        from toposcope.integrity.finding import short_steps

        rows = [(f.check, f.severity, short_steps(f.steps), f.layer, f.message) for f in found]
        print_table(("check", "severity", "steps", "layer", "message"), rows, spec)
    click.echo(
        f"{_count(len(evidence), 'checkpoint')}, {_count(n_tensors, 'tensor')}: "
        f"{_count(n_faults, 'fault')}, {_count(n_notes, 'note')}" + ("" if deep else " (names, headers, hashes)")
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
