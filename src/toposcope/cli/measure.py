"""``toposcope measure``."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from toposcope.cli.shared import (
    BadUse,
    Opening,
    bad_use,
    engine_option,
    parse_options,
    print_table,
    progress_bars,
    refuse_absent,
    selection_options,
    tell_errors,
    workers_option,
)

if TYPE_CHECKING:
    import polars as pl

    from toposcope.study import Study
    from toposcope.study.declaration import DeclaredSeries
    from toposcope.study.store import Unit

SHOWN = ("np_mean", "H0.total", "H1.total", "frobenius_norm", "effective_rank", "loss")


@click.command()
@click.argument("series", nargs=-1, required=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Table to write: .csv or .parquet. Makes the work resumable."
)
@click.option(
    "--probe", "probes", multiple=True, metavar="NAME[:OPTION=VALUE,...]", help="Instead of the default probes."
)
@click.option("--text", default="", metavar="FILE", help="What the models read, for their hidden states and losses.")
@click.option(
    "--tokenizer",
    default="",
    metavar="PLACE",
    help="A tokenizer.json, a folder with one, hf:owner/name, or characters, in place of what is with the checkpoints.",
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
    The layer "network" holds what a probe says of the whole checkpoint. With --out, what was measured when the work
    was stopped or failed is kept in OUT.partial, and the same command goes on from there.

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
        declared = _named(series, opening, _place(tokenizer, "--tokenizer", ("characters",)))
        read = Text(source=_place(text, "--text", ("python-docs",)))
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
        _tell(study, frame, out, as_json)
        _note_landmarks(frame)
        for note in study.notes():
            click.echo(f"note: {note}", err=True)
        if not errors:
            shutil.rmtree(directory)
    finally:
        if out is None:
            shutil.rmtree(directory, ignore_errors=True)
    tell_errors(errors, directory if out else None)


def _probe(text: str) -> dict[str, Any]:
    name, _, options = text.partition(":")
    return {"name": name, **parse_options(options, f"--probe {name}")}


def _place(spec: str, option: str, names: tuple[str, ...]) -> str:
    """Return what an option names, a path from its root; refuse one that is not there."""
    from toposcope.checkpoints.sources import is_remote

    if not spec or spec in names or is_remote(spec):
        return spec
    path = Path(spec).expanduser()
    if not path.exists():
        raise BadUse(f"{option} {spec}: no such file or folder")
    return str(path.absolute())


def _named(specs: tuple[str, ...], opening: Opening, tokenizer: str) -> list[DeclaredSeries]:
    """Name each series by the end of what names it, with as many parts as tell them apart."""
    from toposcope.checkpoints.sources import is_remote, local_path

    for spec in specs:
        refuse_absent(spec)
    # A link goes by its own name, not by its target's.
    absolute = [spec if is_remote(spec) else os.path.abspath(local_path(spec)) for spec in specs]  # noqa: PTH100
    parts = [[unquote(part) for part in spec.replace("*", "").split("/") if part] for spec in absolute]
    longest = max(map(len, parts))
    for depth in range(1, longest + 1):
        names = ["-".join(found[-depth:]).replace(":", "-") or "root" for found in parts]
        if len(set(names)) == len(names):
            break
    else:
        raise click.BadParameter("the same series is named twice")
    return [opening.declared(spec, name, tokenizer) for name, spec in zip(names, absolute, strict=True)]


def _write(frame: pl.DataFrame, out: Path) -> None:
    from toposcope.files import write_whole

    write_whole(out, frame.write_parquet if out.suffix == ".parquet" else frame.write_csv)


def _tell(study: Study, frame: pl.DataFrame, out: Path | None, as_json: bool) -> None:
    if as_json:
        click.echo(frame.write_json())
    if as_json or frame.is_empty():
        return
    import polars as pl

    summary = frame.filter(pl.col("layer").is_in(["network", "pooled"]) & pl.col("statistic").is_in(SHOWN))
    labelled = summary.join(study.labels(), on=["probe", "options"], maintain_order="left")
    named = labelled.with_columns(column=pl.col("label") + " " + pl.col("statistic"))
    wide = named.pivot("column", index=["run", "step"], values="value", aggregate_function="first")
    if wide.width == 2:  # run and step alone: nothing of what is shown was measured
        click.echo(f"{len(frame)} rows; see them with --out or --json")
        return
    print_table(wide.columns, wide.iter_rows(), "Over the network" + (f"; all rows in {out}" if out else ""))


def _note_landmarks(frame: pl.DataFrame) -> None:
    """Say which layers have too many points for an exact H1."""
    import polars as pl

    bounded = frame.filter((pl.col("statistic") == "H1.cover_radius") & (pl.col("value") > 0))
    names = bounded.filter(~pl.col("flag").str.contains("random"))["layer"].unique(maintain_order=True).to_list()
    if len(names) > 1:
        names = [name for name in names if name != "network"]
    if names:
        named = names[0] if len(names) == 1 else f"{len(names)} layers ({names[0]}, ...)"
        click.echo(
            f"note: {named}: H1 is of landmarks, its bars within 2 x cover_radius of those of all points; H0 is exact, "
            "and so are births and count of H1 if no threshold is set",
            err=True,
        )
