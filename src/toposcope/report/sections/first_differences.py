"""Where runs of one shape first differ by more than noise."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.first_difference import LEVEL, MIN_CHECKPOINTS, first_differences
from toposcope.analysis.trajectories import Features, Trajectory
from toposcope.probes.feature import NETWORK
from toposcope.report.document import Block, Picture, linked, paragraph
from toposcope.report.formats import missing
from toposcope.report.headline import H0, NP, named, uncapitalised
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Column, Row, Spec, numbers, table, text_of
from toposcope.typing import Vector
from toposcope.wording import counted, joined

TABLE = "first_differences"
MAX_SENTENCES = 6
LEVELS = (NETWORK, "group", "layer")
SCHEMA = {
    **dict.fromkeys(("run", "run_b", "level", "part", "quantity"), pl.String), "n": pl.Int64,
    "differs_from": pl.Int64, "step": pl.Int64, "from_start": pl.Boolean,
    **dict.fromkeys(("units", "largest", "threshold"), pl.Float64),
}  # fmt: skip

Pair = tuple[Trajectory, Trajectory]
Names = tuple[str, str]


def first_differences_frame(pairs: Sequence[Pair]) -> pl.DataFrame:
    """Compare pairs of runs at their common checkpoints.

    Layers and groups of layers are compared where both runs have the same layers.
    """
    rows = [row for a, b in pairs for row in _rows(a, b)]
    return pl.DataFrame(rows, schema=SCHEMA)


def _rows(a: Trajectory, b: Trajectory) -> Iterator[dict[str, Any]]:
    steps = np.intersect1d(a.steps, b.steps)
    if len(steps) < MIN_CHECKPOINTS:
        return
    at = [np.searchsorted(t.steps, steps) for t in (a, b)]
    same_layers = list(a.roles) == list(b.roles)
    levels = LEVELS if same_layers else (NETWORK,)
    for level in levels:
        first, second = (
            {name: values[i] for name, values in _series(t, level)} for t, i in zip((a, b), at, strict=True)
        )
        # a sentence picks the first difference over all levels, so that they share the probability of a false alarm
        found = first_differences(steps, first, second, LEVEL / len(levels))
        for (part, quantity), each in found.items():
            n = int((np.isfinite(first[part, quantity]) & np.isfinite(second[part, quantity])).sum())
            yield {
                "run": a.run, "run_b": b.run, "level": level, "part": part, "quantity": quantity, "n": n,
                **{name: getattr(each, name) for name in SCHEMA if hasattr(each, name)},
            }  # fmt: skip


def _series(run: Trajectory, level: str) -> Iterator[tuple[tuple[str, str], Vector]]:
    """Yield the series of a level by part and quantity: neural persistence, H0 total, and of the network the losses."""
    if level == NETWORK:
        yield from (((NETWORK, name), values) for name, values in list(run.targets.items())[:1])
        yield from (((NETWORK, key), values) for key, values in _topology(run.features))
        return
    for part, features in (run.groups if level == "group" else run.layers).items():
        yield from (((part, key), values) for key, values in _topology(features))


def _topology(features: Features) -> Iterator[tuple[str, Vector]]:
    by_name = {str(feature): values for feature, values in features.items()}
    return ((headline.key, by_name[headline.key]) for headline in (NP, H0) if headline.key in by_name)


def pairs_of_equal_shape(runs: Sequence[Trajectory], sizes: Mapping[str, int | None]) -> list[Pair]:
    """Return the first run of each shape, the same layers and number of parameters, with each later one of it."""
    first: dict[tuple[Any, ...], Trajectory] = {}
    pairs: list[Pair] = []
    for run in runs:
        start = first.setdefault((sizes.get(run.run), *run.roles.items()), run)
        if start is not run and run.roles:
            pairs.append((start, run))
    return pairs


def earliest(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each pair, level and quantity: the part that differs first, and of several most."""
    keys = ["run", "run_b", "level", "quantity"]
    ordered = frame.sort("step", "units", descending=[False, True], nulls_last=True, maintain_order=True)
    first = ordered.unique(keys, keep="first", maintain_order=True)
    rank = {level: i for i, level in enumerate(LEVELS)}
    order = frame.select(keys).unique(maintain_order=True)
    return order.join(first, on=keys, maintain_order="left").sort(
        pl.col("level").replace_strict(rank, return_dtype=pl.Int64), maintain_order=True
    )


def sentence_of(pair: pl.DataFrame, names: Names | None = None) -> str:
    """Say which part of a pair of runs differs first, where, and by how much."""
    row = pair.row(0, named=True)
    who = " and ".join(dict.fromkeys((row["run"], row["run_b"])))
    if names is not None:
        who = f"{who} in {names[0]} and {names[1]}"
    unequal, beyond = pair.drop_nulls("differs_from"), pair.drop_nulls("step")
    if not len(unequal):
        series = list(dict.fromkeys(uncapitalised(named(quantity)) for quantity in pair.get_column("quantity")))
        are = "is" if len(series) == 1 else "are"
        return f"{who}: {joined(series)} {are} the same at every common checkpoint."
    if not len(beyond):
        return f"{who}: no difference beyond the noise."
    step = beyond.get_column("step").min()
    first = beyond.filter(step=step).sort("units", descending=True).row(0, named=True)
    part = "" if first["level"] == NETWORK else f" of {first['part']}"
    start = ", the first common checkpoint" if first["from_start"] else ""
    others = beyond.filter(step=step).height - 1
    more = f" ({counted(others, 'other series', 'other series')} at the same step)" if others else ""
    return (
        f"{who}: {uncapitalised(named(first['quantity']))}{part} differs first{more}, at step {first['step']:,}{start}."
    )


def difference_blocks(frame: pl.DataFrame, names: Names | None = None) -> list[Block | None]:
    """Return the sentences and the table of a section."""
    if not len(frame):
        return []
    pairs = [pair for _, pair in frame.group_by("run", "run_b", maintain_order=True)]
    sentences = [paragraph(sentence_of(pair, names)) for pair in pairs[:MAX_SENTENCES]]
    if more := len(pairs) - len(sentences):
        sentences.append(paragraph(f"And {counted(more, 'more pair')} in the table."))
    specs: list[Spec] = [
        text_of("run", "run", names_row=True),
        *([text_of("and", "run_b", names_row=True)] if (frame["run"] != frame["run_b"]).any() else []),
        text_of("level", "level"),
        (Column("quantity", True), lambda row: named(row["quantity"])),
        text_of("first part to differ", "part"),
        (Column("from step"), _from_step),
        *numbers(tenths={"noise units": "units", "must exceed": "threshold"}),
        *numbers(whole={"not equal from step": "differs_from"}),
    ]
    note = linked(
        "A difference is beyond the noise at the first of three neighbouring checkpoints that exceed the threshold on "
        "the same side; the unit is the standard deviation of the noise of a difference. Equal series are left "
        f"away. All: {TABLE}.csv.",
        note=True,
    )  # fmt: skip
    rows = earliest(frame).drop_nulls("differs_from").sort(pl.col("step").is_null(), maintain_order=True).to_dicts()
    return [*sentences, table(TABLE.replace("_", "-"), "Where pairs of runs part", specs, rows), note]


def _from_step(row: Row) -> str:
    if missing(row["step"]):
        return "within noise"
    return f"{row['step']:,}" + (" (start)" if row["from_start"] else "")


MAX_PAIRS = 12


def _pairs(data: StudyData) -> list[Pair]:
    sizes = dict(data.runs.select("run", "n_parameters").iter_rows())
    return pairs_of_equal_shape(data.trajectories, sizes)


def _frame(data: StudyData) -> pl.DataFrame:
    pairs = _pairs(data)[:MAX_PAIRS]
    return first_differences_frame(pairs) if pairs else pl.DataFrame()


def _blocks(data: StudyData, _: Sequence[Picture]) -> Iterable[Block | None]:
    blocks, n_pairs = difference_blocks(data.tables[TABLE]), len(_pairs(data))
    if blocks and n_pairs > MAX_PAIRS:
        blocks.append(
            paragraph(f"Compared are the first {MAX_PAIRS} of {n_pairs:,} pairs of runs of one shape.", note=True)
        )
    return blocks


def _finding(data: StudyData) -> str:
    frame = data.tables[TABLE]
    if not len(frame):
        return ""
    pairs = frame.group_by("run", "run_b").agg(pl.col("step").is_not_null().any())
    return f"{pairs['step'].sum()} of {counted(len(pairs), 'pair')} of runs of one shape differ beyond the noise"


SECTION = ReportSection(
    anchor="differences",
    title="First differences",
    position=450,
    tables={TABLE: _frame},
    blocks=_blocks,
    finding=_finding,
)
