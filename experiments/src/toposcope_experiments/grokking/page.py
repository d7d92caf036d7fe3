"""What the page of the experiment is made from, and the sentences at its top."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import TOPOLOGY, UNDETERMINED, Tables, counted, joined, p_value, plain
from toposcope.probes import Kind
from toposcope_experiments.grokking.comparison import (
    ELSEWHERE,
    NOT_SHOWN,
    SIGN,
    Comparison,
    compare,
    in_all_architectures,
)
from toposcope_experiments.grokking.design import TREATED
from toposcope_experiments.grokking.experiment import CLAIMED, MeasuredRuns
from toposcope_experiments.grokking.features import FOURIER, KINDS

VERBS = {
    SIGN: "is a sign of generalisation",
    ELSEWHERE: "changes without generalisation too",
    NOT_SHOWN: "is not shown to be a sign of generalisation",
    UNDETERMINED: "cannot be judged",
}


class GrokkingData:
    """The measured runs of every architecture, how they compare, and the tables of the page."""

    def __init__(
        self,
        measured: Sequence[MeasuredRuns],
        makers: "Mapping[str, Callable[[GrokkingData], pl.DataFrame]]",
        kinds: Callable[[MeasuredRuns], Mapping[str, Kind]] = lambda _: KINDS,
    ) -> None:
        self.measured = list(measured)
        self.comparisons: list[Comparison] = [compare(m, kinds(m)) for m in measured]
        self.tables: Mapping[str, pl.DataFrame] = Tables(self, makers)

    def both(self) -> list[tuple[MeasuredRuns, Comparison]]:
        """Return the runs of each architecture with their comparison."""
        return list(zip(self.measured, self.comparisons, strict=True))


def lead(data: GrokkingData) -> list[str]:
    """Return the sentences at the top of the page."""
    named = [feature for feature, kind in KINDS.items() if kind == TOPOLOGY]
    verdicts = in_all_architectures(data.comparisons)
    signs = [feature for feature in named if verdicts[feature] == SIGN]
    judged = [feature for feature in named if verdicts[feature] != UNDETERMINED]
    are = "is a sign" if len(signs) < 2 else "are signs"
    topology = (
        f"Of {len(judged)} topological features {len(signs) or 'none'} {are} of generalisation in "
        f"{joined([f'the {m.architecture}' for m in data.measured])}{f': {joined(signs)}' if signs else ''}"
        f"{''.join(_alone(m, c, signs) for m, c in data.both())}."
    )
    return [
        *([topology] if judged else []),
        *(f"{_say(feature, data)}." for feature in (*CLAIMED, FOURIER)),
        *(_outcome(m) for m in data.measured),
    ]


def _alone(measured: MeasuredRuns, comparison: Comparison, elsewhere: Sequence[str]) -> str:
    """Name the topological features that are signs in this architecture, but not in all."""
    signs = comparison.verdicts.filter(verdict=SIGN, kind=TOPOLOGY).get_column("feature").to_list()
    alone = [feature for feature in signs if feature not in elsewhere]
    return f"; in the {measured.architecture} alone {joined(alone)}" if alone else ""


def _outcome(measured: MeasuredRuns) -> str:
    """Say how many runs of an architecture generalise."""
    treated = measured.places(TREATED.name)
    others = np.setdiff1d(np.arange(len(measured.runs)), treated)
    steps = measured.generalised
    n = int(np.isfinite(steps[treated]).sum())
    when = f", the last of them by step {plain(np.nanmax(steps[treated]))}" if n else ""
    return (
        f"In the {measured.architecture} {n} of {counted(len(treated), 'run')} with true labels generalise{when}; "
        f"{int(np.isfinite(steps[others]).sum())} of {len(others)} others do."
    )


def _say(feature: str, data: GrokkingData) -> str:
    """Say what the verdict on a feature is in each architecture, with its change in each condition."""
    by_verdict: dict[str, list[str]] = {}
    for m, c in data.both():
        row = c.verdicts.row(by_predicate=pl.col("feature") == feature, named=True)
        text = f"in the {m.architecture} ({_numbers(row, c)})"
        by_verdict.setdefault(row["verdict"], []).append(text)
    name = f"The {feature}" if feature == FOURIER else feature
    return f"{name} {joined([f'{VERBS[verdict]} {joined(texts)}' for verdict, texts in by_verdict.items()])}"


def _numbers(row: Mapping[str, Any], comparison: Comparison) -> str:
    if row["reason"]:
        return str(row["reason"])
    controls = comparison.differences.filter(feature=row["feature"]).select("control", "control_change").iter_rows()
    changes = [(TREATED.name, row["change"]), *controls]
    numbers = ", ".join(f"{signed_plain(change)} with {condition}" for condition, change in changes)
    return f"{numbers}; adjusted p {p_value(row['p_adjusted'])}"


def signed_plain(value: float | None) -> str:
    """Write a change to three significant digits, with its sign."""
    text = plain(value, 3)
    return f"+{text}" if value is not None and value > 0 else text


def left_out(data: GrokkingData) -> list[str]:
    """Return what was not compared, one line each."""
    notes = [
        f"{m.architecture}: the condition {name!r} is no control: {n} of its {total} runs generalise"
        for m, c in data.both()
        for name, (n, total) in c.left_out.items()
    ]
    for m in data.measured:
        treated = m.places(TREATED.name)
        lacking = int(np.isnan(m.generalised[treated]).sum())
        if lacking:
            which = f"{lacking} of {counted(len(treated), 'run')} with true labels"
            notes.append(f"{m.architecture}: left out, since they do not generalise: {which}")
    return notes
