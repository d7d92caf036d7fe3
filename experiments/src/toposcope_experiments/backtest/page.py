"""The report of a backtest: errors of the forecasters, coverage of their intervals, skill against simpler ones."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import (
    COVERAGE,
    DEFAULT,
    LEVEL,
    Block,
    Page,
    Picture,
    Progress,
    ReportSection,
    Spec,
    fixed,
    interval_of,
    linked,
    number_of,
    p_value,
    percent_of,
    plain,
    remarks_section,
    signed,
    silent,
    table,
    text_of,
    whole,
)
from toposcope.study import Study
from toposcope_experiments.backtest.backtesting import Split
from toposcope_experiments.backtest.result import BacktestData, BacktestResult
from toposcope_experiments.topology_gain import backtest_section as topology_gain

STUDY_FILES = ("study.toml", "study.db")
HELD_OUT: dict[Split, str] = {
    "size": "all runs of its family and size",
    "group": "all runs of its family and kind of schedule",
    "family": "all runs of its family",
}
SCORES: tuple[tuple[str, str, str], ...] = (
    ("runs", "n", "count"),
    ("refused", "refused", "count"),
    ("MAE", "mae", "loss"),
    ("median, %", "relative_median", "percent"),
    ("p90, %", "relative_p90", "percent"),
    ("bias", "bias", "loss"),
    ("worst, %", "worst", "percent"),
    ("coverage, %", "coverage", "percent"),
    ("width, %", "width", "percent"),
    ("interval score, %", "interval_score", "percent"),
    ("rank corr.", "rank_correlation", "loss"),
)
"""Title, column of `scores` and kind of number."""


def lead(backtest: BacktestResult) -> list[str]:
    """Return the sentences at the top of the page."""
    families = f" of {backtest.n_families} families" if backtest.n_families > 1 else ""
    sentences = [
        f"{backtest.n_runs:,} runs{families} in {backtest.n_groups} groups (by family and, where known, size), each "
        f"forecast without {HELD_OUT[backtest.split]}."
    ]
    for row in backtest.scores.filter(forecaster=DEFAULT).sort("fraction").to_dicts():
        sentences.append(
            f"{seen(row['fraction'])} the default is off by {100 * row['relative_median']:.2f}% at the median, 9 of "
            f"10 runs by less than {100 * row['relative_p90']:.2f}%; its {COVERAGE:.0%} intervals hold "
            f"{100 * row['coverage']:.0f}% and are {100 * row['width']:.1f}% wide.{_better(backtest, row)}"
        )
    for fraction in sorted(set(backtest.fractions) - set(backtest.scores["fraction"])):
        why = str(backtest.rows.filter(fraction=fraction).item(0, "refused"))
        sentences.append(f"{seen(fraction)} no run can be forecast: {why}.")
    return [*sentences, *_against(backtest)]


def shown(value: float | None, kind: str) -> str:
    """Write a score: losses to four decimals, shares in percent."""
    if kind == "count":
        return whole(value)
    return fixed(value, 4) if kind == "loss" or value is None else fixed(100 * value, 2)


def families_of(backtest: BacktestResult) -> list[dict[str, Any]]:
    """Return the scores of the default, one row per family and fraction; empty if there is only one family."""
    if backtest.n_families < 2:
        return []
    return backtest.families.filter(forecaster=DEFAULT).sort("family", "fraction").to_dicts()


def _better(backtest: BacktestResult, row: dict[str, Any]) -> str:
    """Name the forecaster with the lowest median error, if it is not the default and forecast as many runs."""
    comparable = backtest.scores.filter(pl.col("fraction") == row["fraction"], pl.col("n") >= row["n"])
    best = comparable.sort("relative_median").to_dicts()[0]
    if best["relative_median"] >= row["relative_median"]:
        return ""
    return f" {best['forecaster']} has the lower median error, {100 * best['relative_median']:.2f}%."


def _against(backtest: BacktestResult) -> list[str]:
    """Compare the default with simpler forecasters, one sentence per baseline."""
    sentences = []
    for (baseline,), part in backtest.skills.filter(forecaster=DEFAULT).group_by("baseline", maintain_order=True):
        rows = part.sort("fraction").to_dicts()
        each = "; ".join(
            f"{100 * row['skill']:+.0f}% at {100 * row['fraction']:.3g}% seen".replace("-", "−")
            + f" ({row['n_groups']} groups, p {p_value(row['p_adjusted'])})"
            for row in rows
        )
        sentences.append(f"Skill of the default against {baseline}: {each}.")
    # The lowest p that n groups allow is 2 / 2^n, before adjustment.
    min_groups = int(np.ceil(np.log2(2 / LEVEL)))
    if backtest.n_groups < min_groups:
        sentences.append(
            f"{backtest.n_groups} group{'s'[: backtest.n_groups != 1]} cannot show that one forecaster is better than "
            f"another: at least {min_groups} are needed for p < {LEVEL:g}, more after correction."
        )
    return sentences


def seen(fraction: float) -> str:
    """Write how much of a run was seen."""
    return f"With {plain(100 * fraction)}% of a run seen"


def score_columns() -> list[Spec]:
    """Return the columns of a table of scores."""
    return [number_of(title, column, partial(shown, kind=kind)) for title, column, kind in SCORES]


def _errors(data: BacktestData, _: Sequence[Picture]) -> Iterable[Block | None]:
    backtest = data.backtest
    specs: tuple[Spec, ...] = (text_of("forecaster", "forecaster", names_row=True), *score_columns())
    tables = [
        table(f"scores-{i}", seen(fraction), specs, backtest.scores.filter(fraction=fraction).to_dicts())
        for i, fraction in enumerate(backtest.fractions)
    ]
    note = linked(
        f"MAE and bias in {backtest.unit}; all other columns relative to the final loss. The target is the mean of the "
        "last 2% of a run's logged steps. All forecasts: forecasts.csv, scores: scores.csv.",
        note=True,
    )
    return (*tables, note)


def _families(data: BacktestData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        text_of("family", "family", names_row=True),
        percent_of("seen, %", "fraction"),
        *score_columns(),
    )
    note = linked("The same for every forecaster: families.csv.", note=True)
    rows = families_of(data.backtest)
    return (table("families", "The default forecast in each family", specs, rows), note) if rows else ()


def _skills(data: BacktestData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        percent_of("seen, %", "fraction"),
        text_of("forecaster", "forecaster", names_row=True),
        text_of("against", "baseline"),
        number_of("runs", "n", whole),
        number_of("groups", "n_groups", whole),
        number_of("skill", "skill", signed),
        interval_of("95% interval", "skill_low", "skill_high", 3),
        number_of("p-value", "p", p_value),
        number_of("p, adjusted", "p_adjusted", p_value),
    )
    rule = linked(
        "Skill is 1 - MAE / MAE of the simpler forecaster, on the runs that both forecast. p: signs of the groups' "
        "mean differences flipped at random; adjusted by Holm over the forecasters at one fraction and baseline. "
        "skills.csv.",
        note=True,
    )
    rows = data.backtest.skills.to_dicts()
    return (table("skills", "Against simpler forecasters", specs, rows), rule)


SECTIONS = (
    ReportSection[BacktestData](
        anchor="errors",
        title="Errors",
        position=10,
        tables={"forecasts": lambda data: data.backtest.rows, "scores": lambda data: data.backtest.scores},
        blocks=_errors,
        summary=lambda data: lead(data.backtest),
        summary_position=10,
    ),
    ReportSection[BacktestData](
        anchor="families",
        title="Families",
        position=20,
        tables={"families": lambda data: data.backtest.families},
        blocks=_families,
    ),
    ReportSection[BacktestData](
        anchor="skills",
        title="Skills",
        position=30,
        tables={"skills": lambda data: data.backtest.skills},
        blocks=_skills,
    ),
    topology_gain.SECTION,
    remarks_section(lambda data: data.backtest.remarks, "Assumptions", 900),
)


def backtest_page(
    backtest: BacktestResult, data: Path, *, workers: int | None = None, progress: Progress = silent
) -> Page[BacktestData]:
    """Return the page of a backtest of the runs at a path; of those of a study it says what topology adds."""
    folder = data if data.is_dir() else data.parent
    is_study = (data.is_dir() or data.name in STUDY_FILES) and all((folder / name).is_file() for name in STUDY_FILES)
    study = Study.load(folder) if is_study else None
    return Page(SECTIONS, BacktestData(backtest, SECTIONS, study, workers=workers, progress=progress))
