"""``toposcope measure``."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.cli import options
from toposcope.cli.output import print_errors, print_notes, print_table
from toposcope.cli.progress_bars import progress_bars

if TYPE_CHECKING:
    import polars as pl

    from toposcope.study import Study
    from toposcope.study.tables import Unit

SUMMARY_STATISTICS = ("np_mean", "H0.total", "H1.total", "frobenius_norm", "effective_rank", "loss")


class _WithProbes(click.Command):
    """A command whose help lists the probes, which takes their packages to be imported."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        import msgspec

        from toposcope.probes import probe_types
        from toposcope.study.declaration import DEFAULT_PROBES

        default = [probe["name"] for probe in DEFAULT_PROBES]
        rows = []
        for name, kind in probe_types().items():
            if "training" in kind.REQUIRES:
                continue  # measured by a monitor alone
            options = msgspec.to_builtins(kind())
            listed = [f"{key}={_as_toml(value)}" for key, value in options.items() if key != "name"]
            rows.append((f"{name} *" if name in default else name, ", ".join(listed) or "no options"))
        with formatter.section("Probes and the defaults of their options (* measured without --probe)"):
            formatter.write_dl(rows, col_max=24)


def _as_toml(value: Any) -> str:
    return "none" if value is None else json.dumps(value).strip('"')


@click.command(cls=_WithProbes)
@click.argument("series", nargs=-1, required=True)
@click.option("--out", type=options.PLACE, help="Table to write, .csv or .parquet; makes the work resumable.")
@options.repeated_option(
    "--probe", "probes", metavar="NAME[:OPTION=VALUE,...]", help="Probe to use instead of the default ones."
)
@click.option(
    "--text",
    default="",
    metavar="FILE",
    help="Text that the models read, for hidden states and losses, or python-docs.",
)
@options.tokenizer_option
@click.option("--json", "as_json", is_flag=True, help="Print every row as JSON.")
@options.selection_options
@options.engine_option
@options.workers_option
def measure(
    series: tuple[str, ...],
    out: Path | None,
    probes: tuple[str, ...],
    text: str,
    tokenizer: str,
    as_json: bool,
    opening: options.Opening,
    engine: str,
    workers: int | None,
) -> None:
    """Measure checkpoints, as a table: run, step, layer, role, probe, options, statistic, kind, value, flag.

    A series is a folder of checkpoints (.safetensors, .pt, model folders such as checkpoint-500), one checkpoint, a
    URL, or revisions of a model on the Hugging Face hub.
    The layer "network" holds the values of the whole checkpoint. With --out, what is measured is kept in the study
    OUT.study: the same command measures only what is missing there, and `toposcope study run` takes it over.

    \b
    Example:
      toposcope measure checkpoints/ --out features.csv
      toposcope measure checkpoints/ --probe neural_persistence --probe rips:pooled=true,threshold=2.0
      toposcope measure 'hf:EleutherAI/pythia-14m@step*' --log-spaced 20 --out pythia.csv
      toposcope measure checkpoints/ --text book.txt --probe language_modelling --probe 'hidden_states:layers=[0,0.5]'
    """
    import polars as pl

    from toposcope.csv_file import write_table
    from toposcope.files import extended
    from toposcope.models import Text
    from toposcope.study.declaration import DEFAULT_PROBES
    from toposcope.study.measuring import check_probes, measure_series

    with options.bad_use():
        declared = options.named_series(
            series, opening, options.resolved_place(tokenizer, "--tokenizer", ("characters",))
        )
        read = Text(source=options.resolved_place(text, "--text", ("python-docs",)))
        wanted = [_probe(text) for text in probes] or DEFAULT_PROBES
        if out is not None and out.suffix not in (".csv", ".parquet"):
            raise click.BadParameter(f"--out {out}: expected a name that ends in .csv or .parquet")
        from toposcope.probes import make_probes

        check_probes(make_probes(wanted), text, tokenizer)
    directory = extended(out, "", ".study") if out else Path(tempfile.mkdtemp(prefix="toposcope-"))
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
        n_rows = 0
        parts: list[pl.DataFrame] = []
        for part in study.frames():
            n_rows += len(part)
            parts.append(part if out or as_json else part.filter(_is_printed()))
        frame = pl.concat(parts)
        if out is not None and not (errors and frame.is_empty()):
            write_table(frame, out)
        _print(study, frame, n_rows, out, as_json)
        if not as_json and (coverage := study.coverage()):
            click.echo(f"{coverage}.")
        _print_landmark_note(frame)
        print_notes(study.notes())
    finally:
        if out is None:
            shutil.rmtree(directory, ignore_errors=True)
    print_errors(errors, directory if out else None)


def _probe(text: str) -> dict[str, Any]:
    name, _, given = text.partition(":")
    return {"name": name, **options.parse_options(given, f"--probe {name}")}


def _is_printed() -> pl.Expr:
    """Return which rows the summary and the note on landmarks are of: few, where layers are very many."""
    import polars as pl

    return pl.col("layer").is_in(["network", "pooled"]) | (pl.col("statistic") == "H1.cover_radius")


def _print(study: Study, frame: pl.DataFrame, n_rows: int, out: Path | None, as_json: bool) -> None:
    if as_json:
        click.echo(frame.write_json())
    if as_json or not n_rows:
        return
    import polars as pl

    from toposcope.probes import probe_types

    shown = pl.col("statistic").is_in(SUMMARY_STATISTICS)
    for name, kind in probe_types().items():
        shown |= (pl.col("probe") == name) & pl.col("statistic").is_in(kind.SUMMARY)
    summary = frame.filter(pl.col("layer").is_in(["network", "pooled"]) & shown)
    labelled = summary.join(study.labels(), on=["probe", "options"], maintain_order="left")
    # a long label wraps to a column of letters; it is needed where a probe is measured with several options
    short = pl.when(pl.col("label").n_unique().over("probe") == 1).then("probe").otherwise("label")
    named = labelled.with_columns(column=short + " " + pl.col("statistic"))
    wide = named.pivot("column", index=["run", "step"], values="value", aggregate_function="first")
    if wide.width == 2:  # run and step alone: no statistic of the summary was measured
        click.echo(f"{n_rows} rows in {out}" if out else f"{n_rows} rows; see them with --out or --json")
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
