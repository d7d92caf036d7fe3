"""What the association with the loss amounts to, in sentences; the first one is the verdict of the study."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from toposcope.analysis.association import FEWEST
from toposcope.analysis.pairing import FEWEST_RUNS
from toposcope.analysis.verdict import LEVEL
from toposcope.analysis.wording import counted, joined
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association import SCALED, has_scales, measured, primary
from toposcope.report.figures.spectra import Counts
from toposcope.report.headline import TARGETS, TOLD_OF_CLOUDS, TRAJECTORIES, Headline, headlines_of, named
from toposcope.report.material import Material
from toposcope.report.tables import signed

BEYOND, UNDECIDED, TREND, NONE = "beyond trend", "undecided", "trend only", "none"
VERDICTS = (BEYOND, UNDECIDED, TREND, NONE)
SAME = 1 - 1e-9
"""Above this a rank correlation is 1."""
TRACKS = 0.9
"""From this rank correlation with the step on, a feature is said to track it."""
MOST_NAMED = 3
MOST_LISTED = 8
CLOCKS = {
    "rho_step": "the step",
    "rho_weight_norm": "the weight norm",
    "rho_cumulative_learning_rate": "the cumulative learning rate",
}


def verdict(material: Material) -> list[str]:
    """Return what the association with the loss amounts to, the verdict first.

    Parameters
    ----------
    material : Material
        Its tables ``association`` and ``comparisons`` are read.
    """
    everything = primary(material)
    rows = everything.filter(pl.col("group") == NETWORK)
    defined = measured(rows)
    is_control = pl.col("kind") != TOPOLOGY
    topology, controls = defined.filter(~is_control), defined.filter(is_control)
    found = [_overall(topology, rows)]
    if len(topology):
        found += _of_monotone_losses(topology)
        headlines = (*TRAJECTORIES, *headlines_of(material.trajectories, TOLD_OF_CLOUDS))
        found += [s for headline in headlines if (s := _of_feature(headline, topology))]
        found += _of_spectra(material.tables["comparisons"])
        found += _of_groups(measured(everything).filter(pl.col("group") != NETWORK, ~is_control))
        found += _of_controls(controls)
    return found


def _overall(topology: pl.DataFrame, rows: pl.DataFrame) -> str:
    if not len(rows):
        return "Nothing can be said about what topology adds: no loss is known for the measured checkpoints."
    if not len(topology):
        return f"Nothing can be said about what topology adds: no feature varies over at least {FEWEST} checkpoints."
    n_runs = topology.get_column("run").n_unique()
    total = topology.get_column("feature").n_unique()
    with_verdict = {v: topology.filter(verdict=v).get_column("feature").unique(maintain_order=True) for v in VERDICTS}
    beyond, undecided = list(with_verdict[BEYOND]), list(with_verdict[UNDECIDED])
    somewhere = "in the run" if n_runs == 1 else f"in at least one of {n_runs} runs"
    if beyond:
        return (
            "Topology tells something about the loss beyond the trend: "
            f"{_of(len(beyond), total, 'topological feature')} {_does(beyond, 'does')} so {somewhere} "
            f"({_examples([named(f) for f in beyond])})."
        )
    if undecided:
        return (
            "It is undecided whether topology tells something about the loss beyond the trend: "
            f"{_of(len(undecided), total, 'topological feature')} {_does(undecided, 'passes', 'pass')} every test that "
            f"so few runs allow {somewhere} ({_examples([named(f) for f in undecided])}), and the last test, other "
            f"runs' features against this run's loss, needs {FEWEST_RUNS} runs that can be compared."
        )
    correlated = len(with_verdict[TREND])
    kept = list(_kept(topology).get_column("feature").unique(maintain_order=True))
    if kept:
        return (
            "Topology adds nothing about the loss that passes every test: of "
            f"{counted(total, 'topological feature')}, {correlated} "
            f"{_does(range(correlated), 'correlates', 'correlate')} with the loss; {len(kept)} "
            f"({_examples([named(f) for f in kept])}) {_does(kept, 'keeps', 'keep')} some of that once "
            f"{_clocks(topology)} known, {somewhere}, but {_does(kept, 'fails', 'fail')} another test."
        )
    within = "the run" if n_runs == 1 else f"any of {n_runs} runs"
    start = "Topology adds nothing detectable about the loss to what the training step tells: of "
    if not correlated:
        return f"{start}{counted(total, 'topological feature')}, none correlates with the loss in {within}."
    return (
        f"{start}{counted(total, 'topological feature')}, {correlated} "
        f"{_does(range(correlated), 'correlates', 'correlate')} with the loss, and none does so once "
        f"{_clocks(topology)} known, in {within}."
    )


def _of_monotone_losses(topology: pl.DataFrame) -> list[str]:
    """Say where the loss is itself a clock: there, no feature can say more by its ranks than the step."""
    runs = topology.select("run", is_clock=pl.col("rho_step").abs() > SAME).unique(maintain_order=True)
    clocks = list(runs.filter("is_clock").get_column("run"))
    if not clocks:
        return []
    where = "In the run" if len(runs) == 1 else f"In {len(clocks)} of {len(runs)} runs"
    which = "" if len(clocks) == len(runs) else f" ({_examples(clocks)})"
    return [
        f"{where}{which} the loss orders the checkpoints exactly as the step does: given the step nothing of it is "
        "left for the ranks of any feature to tell. That is no proof that a feature knows nothing."
    ]


def _kept(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what is not beyond the trend, though something is left given the step and given every clock."""
    return _left(rows).filter(~_gone_with_scale(rows))


def _of_scale(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what is left given every clock, of hidden states, but not given the step and their top eigenvalue."""
    return _left(rows).filter(_gone_with_scale(rows))


def _left(rows: pl.DataFrame) -> pl.DataFrame:
    left = [pl.col(name).fill_nan(1.0) < LEVEL for name in ("p_given_step_adjusted", "p_given_all_adjusted")]
    return rows.filter(*left, verdict=TREND)


def _gone_with_scale(rows: pl.DataFrame) -> pl.Expr:
    if not has_scales(rows):
        return pl.lit(value=False)
    return pl.col(SCALED).is_finite() & ~(pl.col("p_given_scale_adjusted").fill_nan(1.0) < LEVEL)


def _explained(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what is not beyond the trend, though something is left given the step alone."""
    given_step, given_all = (pl.col(f"p_given_{c}_adjusted").fill_nan(1.0) < LEVEL for c in ("step", "all"))
    return rows.filter(given_step, ~given_all, verdict=TREND)


def _clocks(rows: pl.DataFrame) -> str:
    """Name the clocks that were known in every row."""
    known = [name for column, name in CLOCKS.items() if rows.get_column(column).is_finite().all()]
    return f"{joined(known)} are" if len(known) > 1 else f"{(known or ['the step'])[0]} is"


def _of_feature(headline: Headline, topology: pl.DataFrame) -> str:
    """Say of one feature what it follows, what is left given the step, its numbers and its verdicts."""
    mine = topology.filter(feature=headline.key)
    if not len(mine):
        return ""
    by_verdict = {v: list(mine.filter(verdict=v).get_column("run")) for v in VERDICTS}
    target = joined([TARGETS[name] for name in mine.get_column("target").unique(maintain_order=True)])
    return f"{_told(headline.name, mine, by_verdict)} Its rho with the {target}{_numbers(mine)}."


def _numbers(mine: pl.DataFrame) -> str:
    """Write a feature's correlation beside the step's own, run by run, or the range over many runs."""
    if len(mine) > MOST_LISTED:
        own, step = (_range(mine.get_column(column)) for column in ("rho", "rho_step"))
        return f": {own} over {len(mine)} runs (the step's own {step})"
    clock = len(_same_as_step(mine)) == len(mine)
    told = []
    for row in mine.iter_rows(named=True):
        given = row["rho_given_step"]
        left = f"; given the step {signed(given)}" if given == given else ""
        scaled = row.get("rho_given_scale", np.nan)
        left += f"; given the step and the top eigenvalue {signed(scaled)}" if np.isfinite(scaled) else ""
        beside = "" if clock else f" (the step's own {signed(row['rho_step'])}{left})"
        told.append(f"{row['run']} {signed(row['rho'])}{beside}")
    start = " is the step's own, up to sign: " if clock else ": "
    return f"{start}{', '.join(told)}"


def _same_as_step(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("rho_with_step").abs() > SAME)


def _range(values: pl.Series) -> str:
    low, high = values.min(), values.max()
    assert isinstance(low, float)
    assert isinstance(high, float)
    return f"{signed(low)} to {signed(high)}"


def _told(name: str, mine: pl.DataFrame, by_verdict: dict[str, list[str]]) -> str:
    if len(_same_as_step(mine)) == len(mine):
        where = "" if len(mine) == 1 else f" in all {len(mine)} runs"
        return (
            f"{name} is a clock: it orders the checkpoints exactly as the step does{where}, so given the step it "
            "carries no information about the loss."
        )
    parts = []
    if runs := by_verdict[BEYOND]:
        parts.append(f"carries information about the loss beyond the trend{_in(runs, mine)}")
    if runs := by_verdict[UNDECIDED]:
        parts.append(f"is undecided{_in(runs, mine)}: too few runs can be compared")
    kept = set(_kept(mine).get_column("run"))
    explained, scaled = (set(which(mine).get_column("run")) for which in (_explained, _of_scale))
    if runs := [run for run in by_verdict[TREND] if run not in kept | explained | scaled]:
        ranked = mine.filter(pl.col("run").is_in(runs)).get_column("rho_with_step").abs().min()
        tracks = isinstance(ranked, float) and ranked > TRACKS
        parts.append(
            f"{'tracks the step' if tracks else 'correlates with the loss'}{_in(runs, mine)}; given the step it "
            "carries no detectable information about the loss"
        )
    if runs := [run for run in by_verdict[TREND] if run in explained]:
        parts.append(
            f"keeps an association with the loss given the step{_in(runs, mine)}, but none that can be detected once "
            f"{_clocks(mine)} known"
        )
    if runs := [run for run in by_verdict[TREND] if run in scaled]:
        parts.append(
            f"keeps an association with the loss given the step{_in(runs, mine)}, but none that can be detected once "
            "the step and the top eigenvalue of the same hidden states are known"
        )
    if runs := [run for run in by_verdict[TREND] if run in kept]:
        parts.append(f"keeps an association with the loss given the step{_in(runs, mine)}, but fails other tests")
    if runs := by_verdict[NONE]:
        where = f" in any of {len(mine)} runs" if len(runs) == len(mine) > 1 else _in(runs, mine)
        parts.append(f"does not correlate detectably with the loss{where}")
    return f"{name} {'. It '.join(parts)}."


def _in(runs: Sequence[str], mine: pl.DataFrame) -> str:
    """Say in which runs, where there are several."""
    total = len(mine)
    if total == 1:
        return ""
    if len(runs) == total:
        return f" in all {total} runs"
    return f" in {len(runs)} of {total} runs ({_examples(runs, most=total)})"


def _of_groups(rows: pl.DataFrame) -> list[str]:
    """Say whether a part of the network tells more than the whole."""
    if not len(rows):
        return []
    pairs = rows.group_by("group", "feature", maintain_order=True).agg(
        beyond=(pl.col("verdict") == BEYOND).any(), open=(pl.col("verdict") == UNDECIDED).any()
    )
    n_groups, beyond = pairs.get_column("group").n_unique(), pairs.filter("beyond")
    open_ = pairs.filter(pl.col("open") & ~pl.col("beyond"))
    left = f"; {len(open_)} {'is' if len(open_) == 1 else 'are'} undecided" if len(open_) else ""
    over = f"By {counted(n_groups, 'group')} of layers"
    if not len(beyond):
        return [
            f"{over}: none of {counted(len(pairs), 'feature of a group', 'features of groups')} is beyond the "
            f"trend{left}."
        ]
    which = [f"{named(feature)} of {group}" for group, feature in beyond.select("group", "feature").iter_rows()]
    verb = "is" if len(beyond) == 1 else "are"
    return [
        f"{over}: {len(beyond)} of {counted(len(pairs), 'feature of a group', 'features of groups')} {verb} beyond the "
        f"trend in at least one run ({_examples(which)}){left}."
    ]


def _of_controls(controls: pl.DataFrame) -> list[str]:
    """Say whether plain quantities do as well: what topology has to beat."""
    if not len(controls):
        return []
    total = controls.get_column("feature").n_unique()
    beyond = list(controls.filter(verdict=BEYOND).get_column("feature").unique(maintain_order=True))
    if not beyond:
        return [
            f"Of {counted(total, 'plain quantity', 'plain quantities')} (norms, spectra), none is beyond the trend."
        ]
    return [
        f"Of {counted(total, 'plain quantity', 'plain quantities')} (norms, spectra), {len(beyond)} "
        f"{'is' if len(beyond) == 1 else 'are'} beyond the trend in at least one run "
        f"({_examples([named(f) for f in beyond])})."
    ]


def _of_spectra(comparisons: pl.DataFrame) -> list[str]:
    """Say whether topology correlates with the loss more strongly than the spectra of the same hidden states."""
    counts = Counts.of(comparisons)
    return [counts.told()] if counts.total else []


def _of(count: int, total: int, noun: str) -> str:
    return f"{count} of {counted(total, noun)}"


def _does(which: Sequence[object], one: str, more: str = "do") -> str:
    return one if len(which) == 1 else more


def _examples(which: Sequence[str], most: int = MOST_NAMED) -> str:
    """Name the first few."""
    if len(which) <= most:
        return ", ".join(which)
    return f"{', '.join(which[:most])} and {len(which) - most} more"
