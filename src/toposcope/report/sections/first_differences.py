"""Where runs of one shape first differ by more than noise."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.wording import counted
from toposcope.report.document import Block, Picture, say
from toposcope.report.first_differences import (
    TABLE,
    Pair,
    difference_blocks,
    first_differences_frame,
    pairs_of_equal_shape,
)
from toposcope.report.material import Material
from toposcope.report.section import ReportSection

MAX_PAIRS = 12


def _pairs(material: Material) -> list[Pair]:
    sizes = dict(material.runs.select("run", "n_parameters").iter_rows())
    return pairs_of_equal_shape(material.trajectories, sizes)


def _frame(material: Material) -> pl.DataFrame:
    pairs = _pairs(material)[:MAX_PAIRS]
    return first_differences_frame(pairs) if pairs else pl.DataFrame()


def _blocks(material: Material, _: Sequence[Picture]) -> Iterable[Block | None]:
    blocks, n_pairs = difference_blocks(material.tables[TABLE]), len(_pairs(material))
    if blocks and n_pairs > MAX_PAIRS:
        blocks.append(say(f"Compared are the first {MAX_PAIRS} of {n_pairs:,} pairs of runs of one shape.", note=True))
    return blocks


def _finding(material: Material) -> str:
    frame = material.tables[TABLE]
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
