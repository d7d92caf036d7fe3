"""``toposcope backtest``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.cli.forecast import columns_of, columns_option, finite_or_null
from toposcope.cli.shared import BadUse, bad_use, print_table, progress_bars, workers_option

if TYPE_CHECKING:
    import polars as pl

    from toposcope.forecasting.backtesting import Split
    from toposcope.forecasting.topology.chance import TopologyChance
    from toposcope.report.backtest import Backtested

FRACTIONS = "0.1,0.2,0.3,0.5,0.7"


@click.command()
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--split",
    type=click.Choice(["size", "group", "family"]),
    default="size",
    show_default=True,
    help="Runs that a forecast may not borrow from: those of its size, kind of schedule or family.",
)
@click.option(
    "--fractions", default=FRACTIONS, show_default=True, metavar="F,...", help="Shares of a run that are seen."
)
@workers_option
@columns_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for tables, figures and report.")
def backtest(
    data: Path,
    split: Split,
    fractions: str,
    workers: int | None,
    columns: tuple[str, ...],
    unit: str | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Measure how well the forecasters predict runs whose end is known.

    DATA is a table or a folder of complete training logs, or a study. Each run is forecast from its beginning and from
    the other runs. For a study the report also says what topology adds. Files are written at the end.

    \b
    Example:
      toposcope backtest runs
      toposcope backtest curves.parquet --split family --out backtest
    """
    from toposcope import forecasting
    from toposcope.forecasting.siblings import runs_to_score
    from toposcope.logs import read_logs
    from toposcope.report.backtest import Backtested, lead, write_backtest
    from toposcope.report.topology import topology_sections, topology_tables

    shares = _shares(fractions)
    with bad_use():
        complete = runs_to_score(read_logs(data, columns=columns_of(columns), unit=unit))
    with progress_bars() as progress:
        rows = forecasting.backtest(complete.runs, split=split, fractions=shares, workers=workers, progress=progress)
    found = Backtested.of(rows, split, complete.runs[0].log.unit, complete.remarks)
    topology = _topology(data, workers)
    more = topology_tables(*topology) if topology else {}
    sections = topology_sections(*topology) if topology else []
    page = write_backtest(out, found, sections, more) if out is not None else None
    if as_json:
        tables = {name: getattr(found, name) for name in ("rows", "scores", "skills", "families")}
        values = {name: frame.to_dicts() for name, frame in {**tables, **more}.items()}
        values |= {"summary": lead(found), "remarks": found.remarks, "split": split, "unit": found.unit}
        if topology:
            values |= {"topology_verdict": topology[0].verdict(), "topology_notes": topology[0].notes}
        click.echo(json.dumps(finite_or_null(values), sort_keys=True))
    else:
        _show(found)
        if topology:
            _show_topology(topology[0], more)
    if page is not None:
        click.echo(f"report: {page.resolve()}", err=as_json)


def _topology(data: Path, workers: int | None) -> tuple[TopologyChance, pl.DataFrame] | None:
    """Return what topology adds, if the data are a study with measured checkpoints."""
    from toposcope.forecasting.topology.chance import topology_chance
    from toposcope.forecasting.topology.published_rules import published_rules
    from toposcope.logs.formats.study import claims
    from toposcope.study import Study

    if not claims(data):
        return None
    study = Study.load(data if data.is_dir() else data.parent)
    with progress_bars() as progress:
        return topology_chance(study, workers=workers, progress=progress), published_rules(study)


def _show_topology(chance: TopologyChance, tables: dict[str, pl.DataFrame]) -> None:
    titles = {"topology": "topology's chance", "topology_placebos": "placebos", "rules": "the published rules"}
    for name, frame in tables.items():
        if len(frame):
            print_table(frame.columns, frame.iter_rows(), titles[name])
    click.echo(chance.verdict())
    for note in chance.notes:
        click.echo(f"note: {note}", err=True)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError as error:
        raise BadUse(f"--fractions {text}: expected numbers, such as {FRACTIONS}") from error
    if not all(0 < share < 1 for share in shares):
        raise BadUse(f"--fractions {text}: each must be between 0 and 1")
    return shares


def _show(found: Backtested) -> None:
    from toposcope.report.backtest import SCORES, families_of, lead, shown

    titles = [title for title, _, _ in SCORES]
    for fraction in found.fractions:
        rows = found.scores.filter(fraction=fraction).to_dicts()
        if not rows:
            continue
        cells = [(row["forecaster"], *(shown(row, column, kind) for _, column, kind in SCORES)) for row in rows]
        print_table(("forecaster", *titles), cells, f"{fraction:.3g} seen; MAE and bias in {found.unit}")
    families = families_of(found)
    if families:
        cells = [
            (row["family"], f"{row['fraction']:.3g}", *(shown(row, column, kind) for _, column, kind in SCORES))
            for row in families
        ]
        print_table(("family", "seen", *titles), cells, "the default, by family")
    for sentence in lead(found):
        click.echo(sentence)
    for remark in found.remarks:
        click.echo(f"note: {remark}", err=True)
