"""How many basins the architecture of a model of the family allows, next to how many its planes have."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import polars as pl

from toposcope.extend import NETWORK, Block, Picture, ReportSection, StudyData, paragraph
from toposcope_experiments.betti_bounds.betti_bounds import BettiBound, betti_bound
from toposcope_experiments.betti_bounds.network_formats import transformer_format

PROBE = "landscape"  # of the core: planes of the loss around each checkpoint


def basin_bound(size: Any, windows: Sequence[int], *, n: int) -> BettiBound:
    """Bound the number of basins of the loss of a model of the family with n weights, by the tokens of each window."""
    form = transformer_format(
        layers=size.layers,
        width=size.hidden,
        heads=size.heads,
        context=size.context,
        vocabulary=size.vocabulary,
        tokens=windows,
    )
    return betti_bound(replace(form, n=n))


def bound_line(bound: BettiBound, tokens: str, minima: str) -> str:
    """Say how many basins an architecture allows, how little that is, and how many were found."""
    verb = "was" if minima == "1" else "were"
    return (
        f"by Khovanskii's theorem a loss of this architecture on {tokens} tokens has fewer than 10^{bound.digits:,} "
        f"basins, a number of that many digits, which says nothing: {minima} {verb} found on a plane"
    )


def last_minima(data: StudyData, options: str) -> dict[str, float]:
    """Return the minima on a plane of the last checkpoint of each run, as one declared probe measured them."""
    rows = data.frame.filter(pl.col("value").is_finite(), probe=PROBE, layer=NETWORK, options=options)
    last = rows.filter(pl.col("step") == pl.col("step").max().over("run"), statistic="minima")
    return dict(last.select("run", "value").iter_rows())


def _blocks(data: StudyData, _pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Say how many basins the smallest model of the family may have by its architecture, and how many it has."""
    for options in data.labels.filter(probe=PROBE).sort("label").get_column("options"):
        found = last_minima(data, options)
        runs = [run for run in data.declaration.resolved_runs() if run.name in found]
        if not runs:
            continue
        run = min(runs, key=lambda run: run.size.n_parameters)
        declared = msgspec.json.decode(options)
        windows = [min(declared["length"], run.size.context) - 1] * declared["sequences"]
        bound = basin_bound(run.size, windows, n=run.size.n_parameters)
        line = bound_line(bound, f"up to {sum(windows):,}", f"{found[run.name]:.3g}")
        return [paragraph(f"{run.name}: {line}.", note=True)]
    return []


SECTION = ReportSection(anchor="betti-bounds", title="Bounds by architecture", position=84, blocks=_blocks)
