"""The report of a backtest: how far off each forecaster is, how sure, and how much better than what is simpler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl

from toposcope.analysis.verdict import LEVEL as SIGNIFICANT
from toposcope.forecasting.backtesting import Split
from toposcope.forecasting.forecaster_set import DEFAULT
from toposcope.forecasting.scores import scores, skills
from toposcope.report.document import Document, Picture, Section, csv, say, section
from toposcope.report.figures import NAMELESS, STYLE
from toposcope.report.figures.backtest import coverage, error
from toposcope.report.rendering import render_all
from toposcope.report.tables import NOTHING, Column, Spec, interval_of, number_of, p_value, plain, table, text_of, whole
from toposcope.report.writing import write_document

LEFT_OUT: dict[Split, str] = {
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


@dataclass(frozen=True, eq=False)
class Backtested:
    """A backtest and its numbers.

    Attributes
    ----------
    rows : polars.DataFrame
        From `toposcope.forecasting.backtest`.
    split : str
    unit : str
        Of the losses.
    remarks : tuple of str
        Of the runs that were read.
    scores, skills, families : polars.DataFrame
        `toposcope.forecasting.scores`, over all runs; ``families`` has the scores of each family, with ``family``.
    """

    rows: pl.DataFrame
    split: Split
    unit: str
    remarks: tuple[str, ...]
    scores: pl.DataFrame
    skills: pl.DataFrame
    families: pl.DataFrame

    @classmethod
    def of(cls, rows: pl.DataFrame, split: Split, unit: str, remarks: tuple[str, ...] = ()) -> "Backtested":
        """Score a backtest."""
        each = [
            scores(part).with_columns(family=pl.lit(family))
            for (family,), part in rows.group_by("family", maintain_order=True)
        ]
        return cls(rows, split, unit, remarks, scores(rows), skills(rows), pl.concat(each))

    @property
    def fractions(self) -> list[float]:
        """Shares of the runs that were seen."""
        return sorted(self.rows["fraction"].unique())

    @property
    def n_runs(self) -> int:
        """Runs that were forecast."""
        return self.rows["run"].n_unique()

    @property
    def n_families(self) -> int:
        """Families that they are of."""
        return self.rows["family"].n_unique()

    @property
    def n_groups(self) -> int:
        """Groups over which forecasters are compared: runs of one family and size."""
        return self.rows.select("family", "size").n_unique()


def lead(found: Backtested) -> list[str]:
    """Return what is said first, a sentence each."""
    families = f" of {found.n_families} families" if found.n_families > 1 else ""
    told = [
        f"{found.n_runs:,} runs{families} in {found.n_groups} groups (a family and size each, as far as sizes are "
        f"known), each forecast "
        f"without {LEFT_OUT[found.split]}."
    ]
    for row in found.scores.filter(forecaster=DEFAULT).sort("fraction").to_dicts():
        told.append(
            f"{_seen(row['fraction'])} the default is off by {100 * row['relative_median']:.2f}% at the median, 9 of "
            f"10 runs by less than {100 * row['relative_p90']:.2f}%; its 90% intervals hold {100 * row['coverage']:.0f}"
            f"% and are {100 * row['width']:.1f}% wide.{_better(found, row)}"
        )
    for fraction in sorted(set(found.fractions) - set(found.scores["fraction"])):
        why = str(found.rows.filter(fraction=fraction).item(0, "refused"))
        told.append(f"{_seen(fraction)} no run can be forecast: {why}.")
    return [*told, *_against(found)]


def shown(row: dict[str, Any], column: str, kind: str) -> str:
    """Write a score: losses to four decimals, shares in percent."""
    value = row[column]
    if kind == "count":
        return whole(value)
    if value is None or not np.isfinite(value):
        return NOTHING
    return f"{100 * value:.2f}" if kind == "percent" else f"{value:.4f}".replace("-", "−")


def write_backtest(
    folder: Path,
    found: Backtested,
    more: Sequence[Section | None] = (),
    tables: Mapping[str, pl.DataFrame] | None = None,
) -> Path:
    """Write ``report.md`` and a page, ``figures/``, and ``tables/`` with every forecast and every score.

    Parameters
    ----------
    folder : Path
    found : Backtested
    more : sequence of Section
        Further sections, after the skills.
    tables : mapping, optional
        Further tables, by name.

    Returns
    -------
    Path
        Of ``report.md``.
    """
    with mpl.rc_context(STYLE):
        figures = [draw(found.scores) for draw in (error, coverage)]
    rendered = render_all([(each.name, each.figure) for each in figures], STYLE, NAMELESS, workers=1)
    document = _document(found, {each.name: Picture(each.name, each.caption, each.alt) for each in figures}, more)
    own = {"forecasts": found.rows, "scores": found.scores, "skills": found.skills, "families": found.families}
    write_document(folder, document, rendered, {**own, **(tables or {})})
    return folder / "report.md"


def _document(found: Backtested, pictures: dict[str, Picture], more: Sequence[Section | None]) -> Document:
    specs: tuple[Spec, ...] = (
        text_of("forecaster", "forecaster", names_row=True),
        *(_score(title, column, kind) for title, column, kind in SCORES),
    )
    tables = [
        table(f"scores-{i}", _seen(fraction), specs, found.scores.filter(fraction=fraction).to_dicts())
        for i, fraction in enumerate(found.fractions)
    ]
    note = say(
        f"MAE and bias in {found.unit}; all else over the final loss. The target is the mean of the last 2% of a run's "
        "logged steps. Every forecast: ",
        csv("forecasts"), ", scores: ", csv("scores"), ".", note=True,
    )  # fmt: skip
    sections = [
        section("errors", "Errors", pictures["backtest-error"], pictures["backtest-coverage"], *tables, note),
        _families(found),
        _skills(found),
        *more,
        section("notes", "What was assumed", *(say(_sentence(remark)) for remark in found.remarks)),
    ]
    return Document("Backtest of forecasts", [("", lead(found))], [each for each in sections if each is not None])


def families_of(found: Backtested) -> list[dict[str, Any]]:
    """Return how the default does in each family, a row a family and fraction; none where there is one family."""
    if found.n_families < 2:
        return []
    return found.families.filter(forecaster=DEFAULT).sort("family", "fraction").to_dicts()


def _families(found: Backtested) -> Section | None:
    specs: tuple[Spec, ...] = (
        text_of("family", "family", names_row=True),
        (Column("seen, %"), lambda row: f"{100 * row['fraction']:.3g}"),
        *(_score(title, column, kind) for title, column, kind in SCORES),
    )
    told = say("The same of every forecaster: ", csv("families"), ".", note=True)
    rows = families_of(found)
    return section("families", "Families", table("families", "The default", specs, rows), told) if rows else None


def _skills(found: Backtested) -> Section | None:
    specs: tuple[Spec, ...] = (
        (Column("seen, %"), lambda row: f"{100 * row['fraction']:.3g}"),
        text_of("forecaster", "forecaster", names_row=True),
        text_of("against", "baseline"),
        number_of("runs", "n", whole),
        number_of("groups", "n_groups", whole),
        number_of("skill", "skill"),
        interval_of("95% interval", "skill_low", "skill_high", 3),
        number_of("p", "p", p_value),
        number_of("p, adjusted", "p_adjusted", p_value),
    )
    rule = say(
        "Skill is 1 - MAE / MAE of the simpler forecaster, on the runs that both forecast. p: signs of the groups' "
        "mean differences flipped; adjusted by Holm over the forecasters at one fraction and baseline. ",
        csv("skills"), ".", note=True,
    )  # fmt: skip
    rows = found.skills.to_dicts()
    return section("skills", "Skills", table("skills", "Against simpler forecasters", specs, rows), rule)


def _better(found: Backtested, row: dict[str, Any]) -> str:
    """Name the forecaster of the lowest median, where it is another and forecast as many runs."""
    there = found.scores.filter(pl.col("fraction") == row["fraction"], pl.col("n") >= row["n"])
    best = there.sort("relative_median").to_dicts()[0]
    if best["relative_median"] >= row["relative_median"]:
        return ""
    return f" {best['forecaster']} is nearer at the median, {100 * best['relative_median']:.2f}%."


def _against(found: Backtested) -> list[str]:
    """Say how the default compares with what is simpler, a sentence a baseline."""
    told = []
    for (baseline,), part in found.skills.filter(forecaster=DEFAULT).group_by("baseline", maintain_order=True):
        rows = part.sort("fraction").to_dicts()
        each = "; ".join(
            f"{100 * row['skill']:+.0f}% at {100 * row['fraction']:.3g}% seen".replace("-", "−")
            + f" ({row['n_groups']} groups, p {p_value(row['p_adjusted'])})"
            for row in rows
        )
        told.append(f"Skill of the default against {baseline}: {each}.")
    # of n groups the least p is 2 / 2^n, before it is adjusted
    fewest = int(np.ceil(np.log2(2 / SIGNIFICANT)))
    if found.n_groups < fewest:
        told.append(
            f"{found.n_groups} group{'s'[: found.n_groups != 1]} cannot show that one forecaster is better than "
            f"another: at least {fewest} are needed for p < {SIGNIFICANT:g}, more after correction."
        )
    return told


def _score(title: str, column: str, kind: str) -> Spec:
    return Column(title), lambda row: shown(dict(row), column, kind)


def _seen(fraction: float) -> str:
    return f"With {plain(100 * fraction)}% of a run seen"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."
