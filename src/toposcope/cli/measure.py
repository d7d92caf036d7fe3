"""``toposcope measure``."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from toposcope.cli.shared import (
    BadUse,
    Opening,
    bad_use,
    check_exists,
    engine_option,
    parse_options,
    print_errors,
    print_table,
    progress_bars,
    selection_options,
    workers_option,
)

if TYPE_CHECKING:
    import polars as pl

    from toposcope.study import Study
    from toposcope.study.declaration import DeclaredSeries
    from toposcope.study.store import Unit

SUMMARY_STATISTICS = ("np_mean", "H0.total", "H1.total", "frobenius_norm", "effective_rank", "loss")


@click.command()
@click.argument("series", nargs=-1, required=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Table to write, .csv or .parquet; makes the work resumable."
)
@click.option(
    "--probe",
    "probes",
    multiple=True,
    metavar="NAME[:OPTION=VALUE,...]",
    help="Probe to use instead of the default ones; repeatable.",
)
@click.option("--text", default="", metavar="FILE", help="Text that the models read, for hidden states and losses.")
@click.option(
    "--tokenizer",
    default="",
    metavar="PLACE",
    help="Tokenizer to use instead of the model's: a tokenizer.json, its folder, hf:owner/name, or characters.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every row as JSON.")
@selection_options
@engine_option
@workers_option
def measure(
    series: tuple[str, ...],
    out: Path | None,
    probes: tuple[str, ...],
    text: str,
    tokenizer: str,
    as_json: bool,
    opening: Opening,
    engine: str,
    workers: int | None,
) -> None:
    """Measure checkpoints, as a table: run, step, layer, role, probe, options, statistic, kind, value, flag.

    A series is a folder of checkpoints (.safetensors, .pt, model folders such as checkpoint-500), one checkpoint, a
    URL, or revisions of a model on the Hugging Face hub.
    The layer "network" holds the values of the whole checkpoint. With --out, the rows measured before an interruption
    or a failure are kept in OUT.partial, and the same command continues from there.

    \b
    Example:
      toposcope measure checkpoints/ --out features.csv
      toposcope measure checkpoints/ --probe neural_persistence --probe rips:pooled=true,threshold=2.0
      toposcope measure 'hf:EleutherAI/pythia-14m@step*' --log-spaced 20 --out pythia.csv
      toposcope measure checkpoints/ --text book.txt --probe language_modelling --probe 'hidden_states:layers=[0,0.5]'
    """
    from toposcope.models import Text
    from toposcope.study.declaration import DEFAULT_PROBES
    from toposcope.study.measuring import check_probes, measure_series

    with bad_use():
        declared = _name_series(series, opening, _resolve(tokenizer, "--tokenizer", ("characters",)))
        read = Text(source=_resolve(text, "--text", ("python-docs",)))
        wanted = [_probe(text) for text in probes] or DEFAULT_PROBES
        if out is not None and out.suffix not in (".csv", ".parquet"):
            raise click.BadParameter(f"--out {out}: expected a name that ends in .csv or .parquet")
        from toposcope.probes import make_probes

        check_probes(make_probes(wanted), text, tokenizer)
    directory = out.with_name(out.name + ".partial") if out else Path(tempfile.mkdtemp(prefix="toposcope-"))
    errors: dict[Unit, str] = {}
    try:
        with progress_bars() as progress:
            study, errors = measure_series(
                declared,
                directory,
                wanted,
                text=read,
                workers=workers,
                engine=engine,
                access=opening.access,
                progress=progress,
            )
        frame = study.frame()
        if out is not None:
            _write(frame, out)
        _print(study, frame, out, as_json)
        _print_landmark_note(frame)
        for note in study.notes():
            click.echo(f"note: {note}", err=True)
        if not errors:
            shutil.rmtree(directory)
    finally:
        if out is None:
            shutil.rmtree(directory, ignore_errors=True)
    print_errors(errors, directory if out else None)


def _probe(text: str) -> dict[str, Any]:
    name, _, options = text.partition(":")
    return {"name": name, **parse_options(options, f"--probe {name}")}


def _resolve(spec: str, option: str, names: tuple[str, ...]) -> str:
    """Return the value of an option, with a path made absolute; refuse a path that does not exist."""
    from toposcope.checkpoints.sources import is_remote

    if not spec or spec in names or is_remote(spec):
        return spec
    path = Path(spec).expanduser()
    if not path.exists():
        raise BadUse(f"{option} {spec}: no such file or folder")
    return str(path.absolute())


def _name_series(specs: tuple[str, ...], opening: Opening, tokenizer: str) -> list[DeclaredSeries]:
    """Name each series by the last parts of its path or address, as many as make the names differ."""
    from toposcope.checkpoints.sources import is_remote, local_path

    for spec in specs:
        check_exists(spec)
    # A link has its own name, not its target's.
    absolute = [spec if is_remote(spec) else os.path.abspath(local_path(spec)) for spec in specs]  # noqa: PTH100
    parts = [[unquote(part) for part in spec.replace("*", "").split("/") if part] for spec in absolute]
    longest = max(map(len, parts))
    for depth in range(1, longest + 1):
        names = ["-".join(names_of_spec[-depth:]).replace(":", "-") or "root" for names_of_spec in parts]
        if len(set(names)) == len(names):
            break
    else:
        raise click.BadParameter("the same series is given twice; drop one")
    return [opening.declared(spec, name, tokenizer) for name, spec in zip(names, absolute, strict=True)]


def _write(frame: pl.DataFrame, out: Path) -> None:
    from toposcope.csv_file import write_csv
    from toposcope.files import write_whole

    write_whole(out, frame.write_parquet if out.suffix == ".parquet" else partial(write_csv, frame))


def _print(study: Study, frame: pl.DataFrame, out: Path | None, as_json: bool) -> None:
    if as_json:
        click.echo(frame.write_json())
    if as_json or frame.is_empty():
        return
    import polars as pl

    summary = frame.filter(pl.col("layer").is_in(["network", "pooled"]) & pl.col("statistic").is_in(SUMMARY_STATISTICS))
    labelled = summary.join(study.labels(), on=["probe", "options"], maintain_order="left")
    named = labelled.with_columns(column=pl.col("label") + " " + pl.col("statistic"))
    wide = named.pivot("column", index=["run", "step"], values="value", aggregate_function="first")
    if wide.width == 2:  # run and step alone: no statistic of the summary was measured
        click.echo(f"{len(frame)} rows; see them with --out or --json")
        return
    print_table(wide.columns, wide.iter_rows(), "Over the network" + (f"; all rows in {out}" if out else ""))


def _print_landmark_note(frame: pl.DataFrame) -> None:
    """Print which layers have too many points for an exact H1."""
    import polars as pl

    bounded = frame.filter((pl.col("statistic") == "H1.cover_radius") & (pl.col("value") > 0))
    names = bounded.filter(~pl.col("flag").str.contains("random"))["layer"].unique(maintain_order=True).to_list()
    if len(names) > 1:
        names = [name for name in names if name != "network"]
    if names:
        named = names[0] if len(names) == 1 else f"{len(names)} layers ({names[0]}, ...)"
        click.echo(
            f"note: {named}: H1 is computed from landmarks, its bars within 2 x cover_radius of the exact ones; H0 is "
            "exact, and so are the births and the count of H1 if no threshold is set",
            err=True,
        )
