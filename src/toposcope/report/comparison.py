"""A comparison of two studies: verdicts, correlations and final values run by run, figures, declarations."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from toposcope.analysis.adjustment import Method, adjusted
from toposcope.analysis.comparison import fisher_z
from toposcope.analysis.trajectories import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.charts.vega import Kind
from toposcope.probes.feature import NETWORK
from toposcope.progress import Progress, silent
from toposcope.report import formats
from toposcope.report.association_tables import measured, primary
from toposcope.report.composing import render_all, rendering_engine
from toposcope.report.document import Block, Document, Picture, details, linked, paragraph, section
from toposcope.report.headline import HEADLINES, TARGETS, named, uncapitalised
from toposcope.report.own_run import opening
from toposcope.report.sections.first_differences import TABLE, Names, Pair, difference_blocks, first_differences_frame
from toposcope.report.study_data import StudyData
from toposcope.report.tables import (
    Column,
    Spec,
    feature_of,
    headline_rows,
    interval_of,
    number_of,
    numbers,
    table,
    text_of,
)
from toposcope.report.writing import PAGE, study_page, write_document
from toposcope.study import Study
from toposcope.typing import Vector
from toposcope.wording import capitalised, joined, sentence

Both = list[tuple[Trajectory, Trajectory, Vector, Vector]]
MAX_CHARTS = 10


class Quantity(NamedTuple):
    """A quantity of both studies, with the pairs of runs that have it."""

    key: str
    name: str
    axis: str
    both: Both

    def ends(self) -> list[tuple[float, float]]:
        """Return the last known values of each pair."""
        return [(float(x[np.isfinite(x)][-1]), float(y[np.isfinite(y)][-1])) for _, _, x, y in self.both]

    def is_equal(self) -> bool:
        """Whether no common checkpoint of any pair differs."""
        return all(np.array_equal(*_at_common_steps(*pair), equal_nan=True) for pair in self.both)

    def gap(self) -> float:
        """Return the largest difference of last values, relative to them."""
        return max(abs(y - x) / (max(abs(x), abs(y)) or 1.0) for x, y in self.ends())


def _at_common_steps(a: Trajectory, b: Trajectory, x: Vector, y: Vector) -> tuple[Vector, Vector]:
    _, first, second = np.intersect1d(a.steps, b.steps, return_indices=True)
    return x[first], y[second]


def quantities(pairs: Sequence[Pair]) -> list[Quantity]:
    """Return the loss, then the quantities that the report names, as far as both studies have them."""
    targets = list(dict.fromkeys(name for a, _ in pairs for name in a.targets))
    found = [
        Quantity(target, capitalised(TARGETS[target]), f"{TARGETS[target]} (nats per token)",
                 [(a, b, a.targets[target], b.targets[target]) for a, b in pairs
                  if target in a.targets and target in b.targets])
        for target in targets
    ][:1]  # fmt: skip
    for headline in HEADLINES:
        f = headline.feature
        both = [(a, b, a.features[f], b.features[f]) for a, b in pairs if f in a.features and f in b.features]
        found.append(Quantity(headline.key, headline.name, headline.axis or uncapitalised(headline.name), both))
    known = [q._replace(both=[pair for pair in q.both if all(np.isfinite(v).any() for v in pair[2:])]) for q in found]
    return [quantity for quantity in known if quantity.both]


def overlaid_charts(names: Names, found: Sequence[Quantity], differences: pl.DataFrame) -> list[Chart]:
    """Draw both runs of each pair on the same axes, those of the second study dashed: the loss, then what differs."""

    def place(quantity: Quantity) -> tuple[bool, bool, float]:
        beyond = differences.filter(level=NETWORK, quantity=quantity.key).drop_nulls("step")
        return quantity.key not in TARGETS, not len(beyond), -quantity.gap()

    shown = [quantity for quantity in found if quantity.key in TARGETS or not quantity.is_equal()]
    shown = sorted(shown, key=place)[:MAX_CHARTS]
    return [_overlaid(names, quantity, differences) for quantity in shown]


def _overlaid(names: Names, quantity: Quantity, differences: pl.DataFrame) -> Chart:
    rows = pl.concat(
        pl.DataFrame({"run": a.run, "series": study, "step": run.steps, "value": values})
        for a, b, *found in quantity.both
        for run, study, values in zip((a, b), names, found, strict=True)
    )
    title = _title(names, quantity, differences.filter(level=NETWORK, quantity=quantity.key))
    runs = list(dict.fromkeys(a.run for a, *_ in quantity.both))
    colours = " One colour is one pair of runs." if len(runs) > 1 else ""
    caption = f"Solid: {names[0]}; dashed: {names[1]}.{colours}"
    figure = training_lines(rows, quantity.axis, runs, dashes=names)
    stem = "loss" if quantity.key in TARGETS else re.sub("[^a-z0-9]+", "-", quantity.name.lower()).strip("-")
    return Chart(f"both-{stem}", title, caption, f"Line chart over training. {title}.", figure)


def _title(names: Names, quantity: Quantity, rows: pl.DataFrame) -> str:
    """Say in how many pairs of runs the quantity differs beyond the noise; without a test, where it ends."""
    name, beyond = quantity.name, rows.drop_nulls("step")
    if len(rows) > 1:
        return f"{name} differs beyond the noise in {len(beyond) or 'none'} of {len(rows)} pairs of runs"
    if len(beyond):
        return f"{name} first differs beyond the noise at step {beyond.item(0, 'step'):,}"
    if len(rows):
        return f"{name} does not differ beyond the noise"
    return _ends(names, quantity)


def _ends(names: Names, quantity: Quantity) -> str:
    """Say where a quantity ends in both studies, or in how many pairs of runs it ends lower or higher in the second."""
    ends = quantity.ends()
    if len(ends) == 1:
        first, second = map(formats.plain, ends[0])
        return f"{quantity.name} ends at {first} in {names[0]} and {second} in {names[1]}"
    lower, higher = sum(y < x for x, y in ends), sum(y > x for x, y in ends)
    n, how = (lower, "lower") if lower >= higher else (higher, "higher")
    return f"{quantity.name} ends {how} in {names[1]} than in {names[0]} in {n or 'none'} of {len(ends)} pairs of runs"


def answer(names: Names, found: Sequence[Quantity]) -> list[str]:
    """Return the sentences that say how the studies differ: the loss first, then what is the same."""
    losses = [_ends(names, quantity) for quantity in found if quantity.key in TARGETS]
    same = [uncapitalised(quantity.name) for quantity in found if quantity.is_equal()]
    first = (
        sentence(losses[0]) if losses else "The losses of the two studies cannot be compared: no pair of runs has one."
    )
    return [first, *([f"The same at every common checkpoint: {joined(same)}."] if same else [])]


RHO = {"rho": "rho", "step's": "rho_step", "given step": "rho_given_step"}
SAME_RUN = "the same run: not two samples"


def write_comparison(
    first: Study,
    second: Study,
    folder: Path,
    progress: Progress = silent,
    adjust: Method = "holm",
    kinds: Sequence[Kind] = ("svg",),
    workers: int = 1,
) -> tuple[Path, list[tuple[str, list[str]]]]:
    """Write a page that compares two studies side by side, with its Markdown, figures and tables.

    Parameters
    ----------
    first, second : Study
    folder : Path
        Where it is written.
    progress : callable
        Called with ``report``.
    adjust : "holm", "bonferroni" or "bh"
        How p-values are adjusted for the number of rows.
    kinds : sequence of "svg", "png", "pdf"
        As what the figures are written.
    workers : int
        Processes that render figures; with 1, this one does.

    Returns
    -------
    page : Path
    verdicts : list of (str, list of str)
        How they differ, without a name; then the name of each study and its verdict, in two sentences.
    """
    progress("report", 0, 3)
    studies = (first, second)
    pages = [study_page(study, adjust) for study in studies]
    materials = [page.data for page in pages]
    progress("report", 1, 3)
    names = names_of(first, second)
    runs = trajectory_pairs(*materials)
    frames = {
        TABLE: first_differences_frame(runs),
        "correlations": correlations(*materials),
        "finals": finals(*materials),
        "declarations": differences(first, second),
    }
    screens = [opening(data, {}).answer for data in materials]
    found = quantities(runs)
    leads = [("", answer(names, found))]
    same = screens[0] == screens[1]
    for name, screen in zip(["Both studies"] if same else names, screens, strict=False):
        leads.append((name, [screen.first, screen.second]))
    overlaid = (Picture(chart) for chart in overlaid_charts(names, found, frames[TABLE]))
    parting = difference_blocks(frames[TABLE], names)
    declared = _declaration_blocks(names, frames["declarations"])
    none = paragraph("No runs can be compared checkpoint by checkpoint.")
    sections = [
        section("curves", "Both on the same axes", *overlaid),
        section("differences", "Where do they part?", *(parting or [none])),
        section("finals", "Final values", *_final_blocks(names, frames["finals"])),
        section("declarations", "Differences between the declarations", *declared),
        section("correlations", "Correlations with the loss", *_correlation_blocks(names, frames["correlations"])),
    ]
    document = Document(f"{names[0]} and {names[1]}", leads, [part for part in sections if part is not None])
    progress("report", 2, 3)
    with rendering_engine(workers) as engine:
        rendered = render_all(document.charts(), kinds, engine)
    write_document(folder, document, frames, rendered)
    progress("report", 3, 3)
    return folder / PAGE, leads


def names_of(first: Study, second: Study) -> tuple[str, str]:
    """Return the names of the studies, or of their folders where both studies have the same name."""
    names = (first.declaration.name, second.declaration.name)
    if names[0] != names[1]:
        return names
    folders = (first.directory.resolve(), second.directory.resolve())
    if folders[0].name != folders[1].name:
        return folders[0].name, folders[1].name
    return str(folders[0]), str(folders[1])


def correlations(first: StudyData, second: StudyData) -> pl.DataFrame:
    """Compare every feature's correlation with the loss, by run or, with one run each, by that."""
    columns = ["run", "feature", "target", "rho", "rho_step", "rho_given_step", "n_eff", "verdict"]
    a, b = (measured(primary(data).filter(pl.col("group") == NETWORK)).select(columns) for data in (first, second))
    pairs = pl.DataFrame(_pairs(first, second), schema={"run": pl.String, "run_b": pl.String}, orient="row")
    rows = (
        pairs.join(a, on="run", maintain_order="left")
        .join(b, left_on=["run_b", "feature"], right_on=["run", "feature"], suffix="_b", maintain_order="left")
        .rename({name: f"{name}_a" for name in columns[2:]})
    )
    same = {(x, y) for x, y in pairs.iter_rows() if _same(first, second, x, y)}
    tested = [
        (row["rho_b"] - row["rho_a"], math.nan, math.nan, math.nan, SAME_RUN)
        if (row["run"], row["run_b"]) in same
        else (*fisher_z(row["rho_a"], row["n_eff_a"], row["rho_b"], row["n_eff_b"]), "")
        for row in rows.iter_rows(named=True)
    ]
    floats = dict.fromkeys(("difference", "low", "high", "p"), pl.Float64)
    added = pl.DataFrame(tested, schema={**floats, "note": pl.String}, orient="row")
    rows = rows.hstack(added)
    return rows.with_columns(p_adjusted=pl.Series(adjusted(rows.get_column("p").to_numpy()), dtype=pl.Float64))


def _pairs(first: StudyData, second: StudyData) -> list[tuple[str, str]]:
    """Return the runs to compare: those of one name, or the one run of each."""
    a, b = ([t.run for t in data.trajectories] for data in (first, second))
    common = [(run, run) for run in a if run in b]
    return common or ([(a[0], b[0])] if len(a) == len(b) == 1 else [])


def trajectory_pairs(first: StudyData, second: StudyData) -> list[Pair]:
    """Return the runs to compare checkpoint by checkpoint: as `_pairs`, else the first runs of equal size."""
    a, b = ({t.run: t for t in data.trajectories} for data in (first, second))
    pairs = _pairs(first, second)
    if not pairs:
        of_size = [
            {size: run for run, size in data.runs.select("run", "n_parameters").reverse().iter_rows() if run in runs}
            for data, runs in ((first, a), (second, b))
        ]
        sizes = [size for size in reversed(of_size[0]) if size is not None and size in of_size[1]]
        pairs = [(of_size[0][size], of_size[1][size]) for size in sizes]
    return [(a[x], b[y]) for x, y in pairs]


def _same(first: StudyData, second: StudyData, run_a: str, run_b: str) -> bool:
    """Return whether two runs have the same losses at the same steps, so that one is a copy of the other."""
    a, b = (next(t for t in data.trajectories if t.run == run) for data, run in ((first, run_a), (second, run_b)))
    shared = [name for name in a.targets if name in b.targets]
    return (
        bool(shared)
        and np.array_equal(a.steps, b.steps)
        and all(np.array_equal(a.targets[name], b.targets[name], equal_nan=True) for name in shared)
    )


def finals(first: StudyData, second: StudyData) -> pl.DataFrame:
    """Return the last value of targets and features of both: ``run, run_b, quantity, first, second, difference``."""
    by_run = [{t.run: t for t in data.trajectories} for data in (first, second)]
    rows = []
    for run_a, run_b in _pairs(first, second):
        a, b = (t.named_values() for t in (by_run[0][run_a], by_run[1][run_b]))
        for name in a:
            if name in b and np.isfinite(a[name][-1]) and np.isfinite(b[name][-1]):
                x, y = float(a[name][-1]), float(b[name][-1])
                rows.append((run_a, run_b, name, x, y, y - x))
    texts = dict.fromkeys(("run", "run_b", "quantity"), pl.String)
    floats = dict.fromkeys(("first", "second", "difference"), pl.Float64)
    return pl.DataFrame(rows, schema={**texts, **floats}, orient="row")


def differences(first: Study, second: Study) -> pl.DataFrame:
    """Return ``field, first, second`` where the declarations differ; empty if a declaration lacks the field."""
    a, b = (_declared(study) for study in (first, second))
    fields = [key for key in dict.fromkeys((*a, *b)) if key != "name" and a.get(key, "") != b.get(key, "")]
    rows = [(key, a.get(key, ""), b.get(key, "")) for key in fields]
    return pl.DataFrame(rows, schema=dict.fromkeys(("field", "first", "second"), pl.String), orient="row")


def _declared(study: Study) -> dict[str, str]:
    """Return what a study declares, by field; a probe is a field of its own, whatever its place in the list."""
    probes = {f"probe {label}": "measured" for label in study.labels().get_column("label")}
    return {**dict(_fields({**msgspec.to_builtins(study.declaration), "probes": None}, "")), **probes}


def _fields(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Flatten a declaration; items of a list are named by their name or their position."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _fields(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for i, inner in enumerate(value):
            name = inner.get("name") or inner.get("size") or inner.get("path")
            yield from _fields(inner, f"{path}[{name if isinstance(name, str) else i + 1}]")
    elif value is not None:
        yield path, value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _runs(rows: list[dict[str, Any]]) -> list[Spec]:
    """Return the columns that say which runs; one where they have the same names."""
    same_names = all(row["run"] == row["run_b"] for row in rows)
    columns: list[Spec] = [text_of("run", "run", names_row=True)]
    return columns if same_names else [*columns, text_of("and", "run_b", names_row=True)]


def _correlation_blocks(names: tuple[str, str], frame: pl.DataFrame) -> list[Block | None]:
    if not len(frame):
        return [paragraph("No runs can be compared: no run has the same name in both studies and a known loss.")]
    rows = headline_rows(frame)
    specs = [feature_of(), *_runs(rows)]
    for side, name in zip("ab", names, strict=True):
        specs += [
            *numbers(name, signed={title: f"{column}_{side}" for title, column in RHO.items()}),
            *numbers(name, tenths={"n eff.": f"n_eff_{side}"}),
            text_of("verdict", f"verdict_{side}", group=name),
        ]
    difference = f"{names[1]} − {names[0]}"
    specs += [
        number_of("rho", "difference", group=difference),
        interval_of("95% interval of z", "low", "high", group=difference),
        number_of("Holm p", "p_adjusted", formats.p_value, group=difference),
        text_of("note", "note", group=difference),
    ]
    return [
        linked(
            "Differences are tested by Fisher's z for independent correlations, with the variance 1.06 / (n − 3) of "
            "ranks (Fieller, Hartley & Pearson 1957) on effective numbers of checkpoints; – stands for an effective "
            "number of at most 3, or a correlation of 1. All features: correlations.csv.",
        ),
        table("correlations", "Correlation of each feature with the loss", specs, rows),
    ]  # fmt: skip


def _final_blocks(names: tuple[str, str], frame: pl.DataFrame) -> list[Block | None]:
    rows = [{**row, "difference": formats.settled(row["difference"], row["first"], row["second"])}
            for row in headline_rows(frame, "quantity")]  # fmt: skip
    specs = [
        feature_of("quantity", "quantity"),
        *_runs(rows),
        number_of(names[0], "first", formats.plain),
        number_of(names[1], "second", formats.plain),
        number_of(
            "difference", "difference", lambda x: formats.plain(x) if x is None or x <= 0 else f"+{formats.plain(x)}"
        ),
    ]
    differing = [row for row in rows if row["difference"]]
    same = list(dict.fromkeys(named(row["quantity"]) for row in rows if not row["difference"]))
    return [
        table("finals", "Values at the last measured checkpoint", specs, differing),
        paragraph(f"The same in both: {joined(same)}.") if same else None,
        linked("All: finals.csv.", note=True) if rows else None,
    ]


def _declaration_blocks(names: tuple[str, str], frame: pl.DataFrame) -> list[Block | None]:
    if not len(frame):
        return [paragraph("Nothing: the declarations are the same.")]
    specs: tuple[Spec, ...] = (
        text_of("field", "field", names_row=True),
        (Column(names[0], True, prose=True), lambda row: formats.word(row["first"])),
        (Column(names[1], True, prose=True), lambda row: formats.word(row["second"])),
    )
    fields = table("declarations", "Fields of the declarations that differ", specs, frame.to_dicts())
    return [fields if len(frame) <= 40 else details(f"{len(frame)} fields differ", fields)]
