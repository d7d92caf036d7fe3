"""The sentences at the top of a study's report; the first one is the verdict of the study."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from toposcope.analysis.adjustment import MIN_RUNS
from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.verdict import (
    BEYOND,
    FEATURE,
    LEVEL,
    LOSS,
    MIN_PERFECT_CORRELATION,
    NONE,
    POWER,
    RUNS,
    TREND,
    UNDETERMINED,
)
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import SpectralComparisonCounts, measured, primary
from toposcope.report.headline import CLOUD_TOPOLOGY, TARGETS, TRAJECTORIES, Headline, headlines_of, named
from toposcope.report.material import Material
from toposcope.report.outcome import (
    Kind,
    Outcome,
    beyond_clocks,
    clocks_of,
    features_of,
    only_beyond_scale,
    outcome_of,
    power_words,
    without_power,
)
from toposcope.report.tables import signed
from toposcope.wording import counted, examples, joined

MIN_TRACKING_CORRELATION = 0.9
"""A feature whose absolute rank correlation with the step is above this is said to track the step."""
DETERMINED = {LOSS.untested: "the loss", FEATURE.untested: "the feature"}
"""What the step determines where nothing can be tested given it."""
MAX_RUNS_LISTED = 8
"""With more runs than this, a sentence gives the range of the correlations instead of listing each run."""


def verdict(material: Material) -> list[str]:
    """Summarise the association of features with the loss in sentences, the verdict first."""
    outcome, everything = outcome_of(material), measured(primary(material))
    topology = outcome.rows
    controls = everything.filter(pl.col("group") == NETWORK, pl.col("kind") != TOPOLOGY)
    sentences = [_overall_sentence(outcome)]
    if len(topology):
        sentences += [_correlation_sentence(topology), *_monotone_loss_sentences(topology)]
        headlines = (*TRAJECTORIES, *headlines_of(material.trajectories, CLOUD_TOPOLOGY))
        sentences += [s for headline in headlines if (s := _feature_sentence(headline, topology))]
        sentences += _spectra_sentences(material.tables["comparisons"])
        sentences += _group_sentences(everything.filter(pl.col("group") != NETWORK, pl.col("kind") == TOPOLOGY))
        sentences += _control_sentences(controls)
    return sentences


def _overall_sentence(outcome: Outcome) -> str:
    if outcome.kind is Kind.NO_LOSS:
        return "Nothing can be said about what topology adds: no loss is known for the measured checkpoints."
    if outcome.kind is Kind.NO_FEATURE:
        return (
            f"Nothing can be said about what topology adds: no feature varies over at least {MIN_CHECKPOINTS} "
            "checkpoints."
        )
    topology, n_runs, deciding = outcome.rows, outcome.n_runs, outcome.deciding
    features = counted(len(outcome.features), "topological feature")
    which = examples([named(f) for f in deciding])
    somewhere = "in the run" if n_runs == 1 else f"in at least one of {n_runs} runs"
    within = "the run" if n_runs == 1 else f"any of {n_runs} runs"
    if outcome.kind is Kind.BEYOND:
        return (
            f"Topology carries information about the loss beyond the trend: {len(deciding)} of {features} "
            f"{_verb(deciding, 'does')} so {somewhere} ({which})."
        )
    if outcome.kind is Kind.OPEN:
        return (
            "Whether topology carries information about the loss beyond the trend is open: "
            f"{len(deciding)} of {features} {_verb(deciding, 'passes', 'pass')} every test that so few runs allow "
            f"{somewhere} ({which}), but the last test, which pairs this run's loss "
            f"with other runs' features, needs {MIN_RUNS} comparable runs."
        )
    untested = outcome.untested
    if outcome.kind is Kind.UNTESTABLE:
        return (
            "Whether topology carries information about the loss beyond the training step cannot be tested: given "
            f"{clocks_of(topology)}, no test of {features} is defined in {within}, {_reasons(untested)}. "
            f"{_needs(untested).capitalize()} would make it possible."
        )
    if outcome.kind is Kind.WEAK:
        others = _untested_tail(untested.filter(pl.col("untested") != POWER.untested), topology)
        return (
            "Whether topology carries information about the loss beyond the training step cannot be told: of "
            f"{features}, none passes every test in {within}, but {power_words(outcome.weak)}"
            f"{others}. {_needs(outcome.weak).capitalize()} would help."
        )
    tail = _untested_tail(untested, topology)
    if outcome.kind is Kind.PARTIAL:
        return (
            f"Topology adds nothing about the loss that passes every test: of {features}, {len(deciding)} "
            f"({which}) {_verb(deciding, 'is', 'are')} associated with the loss "
            f"given {clocks_of(topology)}, {somewhere}, but {_verb(deciding, 'fails', 'fail')} another test{tail}."
        )
    trend = features_of(topology.filter(verdict=TREND))
    drift = f"{len(trend) or 'none'} {'drift' if len(trend) > 1 else 'drifts'} with the loss"
    of = "none" if not len(untested) else f"none of the {len(features_of(outcome.tested))} that can be tested"
    if (n_tested := outcome.tested.get_column("run").n_unique()) < n_runs:
        within = f"the {n_tested} of {n_runs} runs where that is possible"
    return (
        f"Topology adds no detectable information about the loss beyond the training step: of {features}, {drift}, "
        f"and {of} is detectably associated with it given {clocks_of(topology)}, in {within}{tail}."
    )


def _untested_tail(untested: pl.DataFrame, rows: pl.DataFrame) -> str:
    """Say how many could not be tested, why, and what would make it possible."""
    if not len(untested):
        return ""
    which = (
        counted(len(untested), "feature")
        if rows.get_column("run").n_unique() == 1
        else f"{len(untested)} of {counted(len(rows), 'pair of run and feature', 'pairs of run and feature')}"
    )
    weak, helps = without_power(untested), f"{_needs(untested)} would make it possible"
    how, helps = ("told", f"{power_words(weak)}; {helps}") if len(weak) else ("tested", helps)
    return f"; {which} cannot be {how}, {_reasons(untested)} ({helps})"


def _reasons(rows: pl.DataFrame) -> str:
    """Say why rows could not be tested, the most frequent reason first."""
    causes = rows.get_column("untested").value_counts(sort=True).get_column("untested").to_list()
    ordered = [DETERMINED[cause] for cause in causes if cause in DETERMINED]
    as_the_step = [f"{' or '.join(ordered)} orders the checkpoints exactly as the step does"] if ordered else []
    weak = ["the tests have too little power"] * (POWER.untested in causes)
    others = [f"a test is missing ({cause})" for cause in causes if cause not in (*DETERMINED, POWER.untested)]
    return f"because {', or '.join([*as_the_step, *weak, *others])}"


def _needs(rows: pl.DataFrame) -> str:
    """Say what would make the missing tests possible."""
    counts = rows.get_column("needs").value_counts(sort=True).get_column("needs")
    return " or ".join(dict.fromkeys(part for needs in counts for part in needs.split(", or ")))


def _correlation_sentence(topology: pl.DataFrame) -> str:
    """Count the correlations that hold although checkpoints depend on each other and many features were tested."""
    correlated = features_of(topology.filter(pl.col("p_adjusted").fill_nan(1.0) < LEVEL))
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


def _explained_by_clocks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are significant given the step but not given every clock."""
    given_step, given_all = (pl.col(f"p_given_{c}_adjusted").fill_nan(1.0) < LEVEL for c in ("step", "all"))
    return rows.filter(given_step, ~given_all, pl.col("verdict").is_in([TREND, NONE]))


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
            parts.append(
                f"cannot be {'told from' if untested == POWER.untested else 'tested against'} the trend"
                f"{_in(runs, rows)}, {why}"
            )
    by_other_tests, by_clocks, by_scale = (
        set(select(rows).get_column("run")) for select in (beyond_clocks, _explained_by_clocks, only_beyond_scale)
    )
    explained = by_other_tests | by_clocks | by_scale
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
            f"{clocks_of(rows)}"
        )
    if runs := [run for run in failing if run in by_scale]:
        parts.append(
            f"is still associated with the loss given the step{_in(runs, rows)}, but not detectably once the step and "
            "the top eigenvalue of the same hidden states are known"
        )
    if runs := [run for run in failing if run in by_other_tests]:
        parts.append(
            f"is still associated with the loss given {clocks_of(rows)}{_in(runs, rows)}, but fails other tests"
        )
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
    untested = f"; {len(open_)} cannot be told" if len(open_) else ""
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
    quantities = counted(len(features_of(controls)), "plain quantity", "plain quantities")
    beyond, tested = features_of(controls.filter(verdict=BEYOND)), controls.filter(pl.col("verdict") != UNDETERMINED)
    if not len(tested):
        return [f"None of {quantities} (norms, spectra) can be judged, {_reasons(controls)}."]
    n_tested = len(features_of(tested))
    of = "" if n_tested == len(features_of(controls)) else f" of the {n_tested} that can be tested"
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
