"""The sentences at the top of a study's report; the first one is the verdict of the study."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.pairing import MIN_RUNS
from toposcope.analysis.verdict import (
    BEYOND,
    FEATURE,
    LEVEL,
    LOSS,
    MIN_PERFECT_CORRELATION,
    NONE,
    RUNS,
    TREND,
    UNDETERMINED,
)
from toposcope.analysis.wording import counted, examples, joined
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import SCALED, has_scales, measured, primary
from toposcope.report.figures.spectra import SpectralComparisonCounts
from toposcope.report.headline import CLOUD_TOPOLOGY, TARGETS, TRAJECTORIES, Headline, headlines_of, named
from toposcope.report.material import Material
from toposcope.report.tables import signed

MIN_TRACKING_CORRELATION = 0.9
"""A feature whose absolute rank correlation with the step is above this is said to track the step."""
DETERMINED = {LOSS.untested: "the loss", FEATURE.untested: "the feature"}
"""What the step determines where nothing can be tested given it."""
MAX_RUNS_LISTED = 8
"""With more runs than this, a sentence gives the range of the correlations instead of listing each run."""
CLOCK_COLUMNS = {
    "rho_step": "the step",
    "rho_learning_rate": "the learning rate",
    "rho_weight_norm": "the weight norm",
}


def verdict(material: Material) -> list[str]:
    """Summarise the association of features with the loss in sentences, the verdict first.

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
    sentences = [_overall_sentence(topology, rows)]
    if len(topology):
        sentences += [_correlation_sentence(topology), *_monotone_loss_sentences(topology)]
        headlines = (*TRAJECTORIES, *headlines_of(material.trajectories, CLOUD_TOPOLOGY))
        sentences += [s for headline in headlines if (s := _feature_sentence(headline, topology))]
        sentences += _spectra_sentences(material.tables["comparisons"])
        sentences += _group_sentences(measured(everything).filter(pl.col("group") != NETWORK, ~is_control))
        sentences += _control_sentences(controls)
    return sentences


def _overall_sentence(topology: pl.DataFrame, rows: pl.DataFrame) -> str:
    if not len(rows):
        return "Nothing can be said about what topology adds: no loss is known for the measured checkpoints."
    if not len(topology):
        return (
            f"Nothing can be said about what topology adds: no feature varies over at least {MIN_CHECKPOINTS} "
            "checkpoints."
        )
    n_runs = topology.get_column("run").n_unique()
    features = counted(topology.get_column("feature").n_unique(), "topological feature")
    somewhere = "in the run" if n_runs == 1 else f"in at least one of {n_runs} runs"
    within = "the run" if n_runs == 1 else f"any of {n_runs} runs"
    if beyond := _features_of(topology.filter(verdict=BEYOND)):
        return (
            f"Topology carries information about the loss beyond the trend: {len(beyond)} of {features} "
            f"{_verb(beyond, 'does')} so {somewhere} ({examples([named(f) for f in beyond])})."
        )
    if promising := _features_of(_without_runs(topology)):
        return (
            "Whether topology carries information about the loss beyond the trend is open: "
            f"{len(promising)} of {features} {_verb(promising, 'passes', 'pass')} every test that so few runs allow "
            f"{somewhere} ({examples([named(f) for f in promising])}), but the last test, which pairs this run's loss "
            f"with other runs' features, needs {MIN_RUNS} comparable runs."
        )
    tested, untested = topology.filter(pl.col("verdict") != UNDETERMINED), topology.filter(verdict=UNDETERMINED)
    if not len(tested):
        return (
            "Whether topology carries information about the loss beyond the training step cannot be tested: given "
            f"{_clocks(topology)}, no test of {features} is defined in {within}, {_reasons(untested)}. "
            f"{_needs(untested).capitalize()} would make it possible."
        )
    trend, remaining = (_features_of(rows) for rows in (topology.filter(verdict=TREND), _beyond_clocks(topology)))
    tail = _untested_tail(untested, topology)
    if remaining:
        return (
            f"Topology adds nothing about the loss that passes every test: of {features}, {len(remaining)} "
            f"({examples([named(f) for f in remaining])}) {_verb(remaining, 'is', 'are')} associated with the loss "
            f"given {_clocks(topology)}, {somewhere}, but {_verb(remaining, 'fails', 'fail')} another test{tail}."
        )
    drift = f"{len(trend) or 'none'} {'drift' if len(trend) > 1 else 'drifts'} with the loss"
    of = "none" if not len(untested) else f"none of the {len(_features_of(tested))} that can be tested"
    if (n_tested := tested.get_column("run").n_unique()) < n_runs:
        within = f"the {n_tested} of {n_runs} runs where that is possible"
    return (
        f"Topology adds no detectable information about the loss beyond the training step: of {features}, {drift}, "
        f"and {of} is detectably associated with it given {_clocks(topology)}, in {within}{tail}."
    )


def _features_of(rows: pl.DataFrame) -> list[str]:
    return list(rows.get_column("feature").unique(maintain_order=True))


def _without_runs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that pass every test but the comparison with other runs, for which there are too few."""
    return rows.filter(verdict=UNDETERMINED, untested=RUNS.untested)


def _untested_tail(untested: pl.DataFrame, rows: pl.DataFrame) -> str:
    """Say how many could not be tested, why, and what would make it possible."""
    if not len(untested):
        return ""
    which = (
        counted(len(untested), "feature")
        if rows.get_column("run").n_unique() == 1
        else f"{len(untested)} of {counted(len(rows), 'pair of run and feature', 'pairs of run and feature')}"
    )
    return f"; {which} cannot be tested, {_reasons(untested)} ({_needs(untested)} would make it possible)"


def _reasons(rows: pl.DataFrame) -> str:
    """Say why rows could not be tested, the most frequent reason first."""
    causes = rows.get_column("untested").value_counts(sort=True).get_column("untested").to_list()
    ordered = [DETERMINED[cause] for cause in causes if cause in DETERMINED]
    as_the_step = [f"{' or '.join(ordered)} orders the checkpoints exactly as the step does"] if ordered else []
    others = [f"a test is missing ({cause})" for cause in causes if cause not in DETERMINED]
    return f"because {', or '.join([*as_the_step, *others])}"


def _needs(rows: pl.DataFrame) -> str:
    """Say what would make the missing tests possible."""
    counts = rows.get_column("needs").value_counts(sort=True).get_column("needs")
    return " or ".join(dict.fromkeys(part for needs in counts for part in needs.split(", or ")))


def _correlation_sentence(topology: pl.DataFrame) -> str:
    """Count the correlations that hold although checkpoints depend on each other and many features were tested."""
    correlated = _features_of(topology.filter(pl.col("p_adjusted").fill_nan(1.0) < LEVEL))
    n, n_eff = (np.median(topology.get_column(name).to_numpy()) for name in ("n", "n_eff"))
    return (
        f"{len(correlated) or 'None'} of {counted(topology.get_column('feature').n_unique(), 'topological feature')} "
        f"{'correlates' if len(correlated) < 2 else 'correlate'} with the loss significantly, once the p-value allows "
        "for dependent checkpoints and for the number of tests: the median series has "
        f"{n:.0f} checkpoints, worth {n_eff:.1f} independent ones."
    )


def _monotone_loss_sentences(topology: pl.DataFrame) -> list[str]:
    """Name the runs whose loss is itself a clock: there, the ranks of a feature cannot add to those of the step."""
    # Features measured at other checkpoints can see another part of the same loss: a run counts once.
    runs = topology.group_by("run", maintain_order=True).agg(
        is_clock=(pl.col("rho_step").abs() > MIN_PERFECT_CORRELATION).all()
    )
    clocks = list(runs.filter("is_clock").get_column("run"))
    if not clocks:
        return []
    where = "In the run" if len(runs) == 1 else f"In {len(clocks)} of {len(runs)} runs"
    which = "" if len(clocks) == len(runs) else f" ({examples(clocks)})"
    return [
        f"{where}{which} the loss orders the checkpoints exactly as the step does, so given the step no rank "
        "correlation with it is defined, and only changes from checkpoint to checkpoint can be tested. "
        "That is no proof that features carry no information about it."
    ]


def _beyond_clocks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are significant given every clock, but fail another test."""
    return _significant_given_clocks(rows).filter(~_explained_by_scale(rows))


def _only_beyond_scale(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of hidden states, significant given every clock but not given the step and the top eigenvalue."""
    return _significant_given_clocks(rows).filter(_explained_by_scale(rows))


def _significant_given_clocks(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("p_given_all_adjusted").fill_nan(1.0) < LEVEL, pl.col("verdict").is_in([TREND, NONE]))


def _explained_by_scale(rows: pl.DataFrame) -> pl.Expr:
    if not has_scales(rows):
        return pl.lit(value=False)
    return pl.col(SCALED).is_finite() & ~(pl.col("p_given_scale_adjusted").fill_nan(1.0) < LEVEL)


def _explained_by_clocks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are significant given the step but not given every clock."""
    given_step, given_all = (pl.col(f"p_given_{c}_adjusted").fill_nan(1.0) < LEVEL for c in ("step", "all"))
    return rows.filter(given_step, ~given_all, pl.col("verdict").is_in([TREND, NONE]))


def _clocks(rows: pl.DataFrame) -> str:
    """Name the clocks that were known in every row."""
    known = [name for column, name in CLOCK_COLUMNS.items() if rows.get_column(column).is_finite().all()]
    return joined(known or ["the step"])


def _feature_sentence(headline: Headline, topology: pl.DataFrame) -> str:
    """Describe one feature: its verdicts over the runs, then its correlations."""
    rows = topology.filter(feature=headline.key)
    if not len(rows):
        return ""
    by_verdict = {v: list(rows.filter(verdict=v).get_column("run")) for v in (BEYOND, TREND, NONE)}
    target = joined([TARGETS[name] for name in rows.get_column("target").unique(maintain_order=True)])
    return f"{_verdicts(headline.name, rows, by_verdict)} Its rho with the {target}{_correlations(rows)}."


def _correlations(rows: pl.DataFrame) -> str:
    """Write a feature's correlation beside the step's own, run by run, or the range over many runs."""
    if len(rows) > MAX_RUNS_LISTED:
        own, step = (_range(rows.get_column(column)) for column in ("rho", "rho_step"))
        return f": {own} over {len(rows)} runs (the step's own {step})"
    clock = len(_same_as_step(rows)) == len(rows)
    by_run = []
    for row in rows.iter_rows(named=True):
        given = row["rho_given_step"]
        partial = f"; given the step {signed(given)}" if given == given else ""
        given_scale = row.get("rho_given_scale", np.nan)
        partial += f"; given the step and the top eigenvalue {signed(given_scale)}" if np.isfinite(given_scale) else ""
        beside = "" if clock else f" (the step's own {signed(row['rho_step'])}{partial})"
        by_run.append(f"{row['run']} {signed(row['rho'])}{beside}")
    start = " is the step's own, up to sign: " if clock else ": "
    return f"{start}{', '.join(by_run)}"


def _same_as_step(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("rho_with_step").abs() > MIN_PERFECT_CORRELATION)


def _range(values: pl.Series) -> str:
    low, high = values.min(), values.max()
    assert isinstance(low, float)
    assert isinstance(high, float)
    return f"{signed(low)} to {signed(high)}"


def _verdicts(name: str, rows: pl.DataFrame, by_verdict: dict[str, list[str]]) -> str:
    """Say in which runs a feature carries information about the loss, and what explains it in the others."""
    if len(_same_as_step(rows)) == len(rows) == len(rows.filter(verdict=UNDETERMINED)):
        where = "" if len(rows) == 1 else f" in all {len(rows)} runs"
        return (
            f"{name} is a clock: it orders the checkpoints exactly as the step does{where}, so given the step no rank "
            "correlation with the loss is left to test."
        )
    parts = []
    if runs := by_verdict[BEYOND]:
        parts.append(f"carries information about the loss beyond the trend{_in(runs, rows)}")
    undetermined = rows.filter(verdict=UNDETERMINED)
    for untested, runs in undetermined.group_by("untested", maintain_order=True).agg("run").iter_rows():
        if untested == RUNS.untested:
            parts.append(f"passes every test that so few runs allow{_in(runs, rows)}")
        else:
            why = _reasons(undetermined.filter(untested=untested))
            parts.append(f"cannot be tested against the trend{_in(runs, rows)}, {why}")
    beyond_clocks, by_clocks, by_scale = (
        set(select(rows).get_column("run")) for select in (_beyond_clocks, _explained_by_clocks, _only_beyond_scale)
    )
    explained = beyond_clocks | by_clocks | by_scale
    if runs := [run for run in by_verdict[TREND] if run not in explained]:
        lowest = rows.filter(pl.col("run").is_in(runs)).get_column("rho_with_step").abs().min()
        tracks = isinstance(lowest, float) and lowest > MIN_TRACKING_CORRELATION
        parts.append(
            f"{'tracks the step' if tracks else 'drifts with the loss'}{_in(runs, rows)}; given the step it "
            "carries no detectable information about the loss"
        )
    failing = [*by_verdict[TREND], *by_verdict[NONE]]
    if runs := [run for run in failing if run in by_clocks]:
        parts.append(
            f"is still associated with the loss given the step{_in(runs, rows)}, but not detectably given "
            f"{_clocks(rows)}"
        )
    if runs := [run for run in failing if run in by_scale]:
        parts.append(
            f"is still associated with the loss given the step{_in(runs, rows)}, but not detectably once the step and "
            "the top eigenvalue of the same hidden states are known"
        )
    if runs := [run for run in failing if run in beyond_clocks]:
        parts.append(f"is still associated with the loss given {_clocks(rows)}{_in(runs, rows)}, but fails other tests")
    if runs := [run for run in by_verdict[NONE] if run not in explained]:
        where = f" in any of {len(rows)} runs" if len(runs) == len(rows) > 1 else _in(runs, rows)
        parts.append(f"does not correlate detectably with the loss{where}")
    return f"{name} {'. It '.join(parts)}."


def _in(runs: Sequence[str], rows: pl.DataFrame) -> str:
    """Say in which runs, where there are several."""
    total = len(rows)
    if total == 1:
        return ""
    if len(runs) == total:
        return f" in all {total} runs"
    return f" in {len(runs)} of {total} runs ({examples(runs, max_named=total)})"


def _group_sentences(rows: pl.DataFrame) -> list[str]:
    """Say whether features of groups of layers are beyond the trend."""
    if not len(rows):
        return []
    pairs = rows.group_by("group", "feature", maintain_order=True).agg(
        beyond=(pl.col("verdict") == BEYOND).any(), open=(pl.col("verdict") == UNDETERMINED).all()
    )
    n_groups, beyond = pairs.get_column("group").n_unique(), pairs.filter("beyond")
    open_ = pairs.filter(pl.col("open") & ~pl.col("beyond"))
    untested = f"; {len(open_)} cannot be tested" if len(open_) else ""
    over = f"By {counted(n_groups, 'group')} of layers"
    if not len(beyond):
        return [
            f"{over}: none of {counted(len(pairs), 'feature of a group', 'features of groups')} is beyond the "
            f"trend{untested}."
        ]
    which = [f"{named(feature)} of {group}" for group, feature in beyond.select("group", "feature").iter_rows()]
    verb = "is" if len(beyond) == 1 else "are"
    return [
        f"{over}: {len(beyond)} of {counted(len(pairs), 'feature of a group', 'features of groups')} {verb} beyond the "
        f"trend in at least one run ({examples(which)}){untested}."
    ]


def _control_sentences(controls: pl.DataFrame) -> list[str]:
    """Say whether plain quantities are beyond the trend: topology has to do better than they do."""
    if not len(controls):
        return []
    quantities = counted(len(_features_of(controls)), "plain quantity", "plain quantities")
    beyond, tested = _features_of(controls.filter(verdict=BEYOND)), controls.filter(pl.col("verdict") != UNDETERMINED)
    if not len(tested):
        return [f"None of {quantities} (norms, spectra) can be tested, {_reasons(controls)}."]
    n_tested = len(_features_of(tested))
    of = "" if n_tested == len(_features_of(controls)) else f" of the {n_tested} that can be tested"
    if not beyond:
        return [f"Of {quantities} (norms, spectra), none{of} is beyond the trend."]
    return [
        f"Of {quantities} (norms, spectra), {len(beyond)}{of} {_verb(beyond, 'is', 'are')} beyond the trend in at "
        f"least one run ({examples([named(f) for f in beyond])})."
    ]


def _spectra_sentences(comparisons: pl.DataFrame) -> list[str]:
    """Say whether topology correlates with the loss more strongly than the spectra of the same hidden states."""
    counts = SpectralComparisonCounts.of(comparisons)
    return [counts.sentence()] if counts.total else []


def _verb(subjects: Sequence[object], singular: str, plural: str = "do") -> str:
    return singular if len(subjects) == 1 else plural
