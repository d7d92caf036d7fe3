"""What the association table says about topology: one verdict, and the sentences that state it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.analysis import association_verdict as rule
from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.power import SIZES
from toposcope.analysis.topology_verdict import (
    KEEPS_ONE,
    features_of,
    is_below,
    missing,
    within_runs,
)
from toposcope.analysis.verdict import BEYOND, NONE, TREND, UNDETERMINED, verdict_sentence
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import SpectralComparisonCounts, measured, primary
from toposcope.report.headline import named, uncapitalised
from toposcope.report.learnt import Proposal, learnt, main_quantities, proposal
from toposcope.report.study_data import StudyData
from toposcope.wording import capitalised, counted, examples, joined

COVARIATE_COLUMNS = {
    "rho_step": "the step",
    "rho_learning_rate": "the learning rate",
    "rho_weight_norm": "the weight norm",
}
"""The covariates by the columns of their correlation with the loss."""


@dataclass(frozen=True, eq=False)
class StudyVerdict:
    """The verdict on the topological features of the whole network, each run against its first target."""

    verdict: str
    reason: str  # why it cannot be told, in a few words
    rows: pl.DataFrame  # the association rows of topological features whose correlation is defined
    sentence: str  # what was learnt first: the verdict, or what is known where it cannot be told
    details: str  # what the main quantities do, or what would tell
    proposal: Proposal | None = None  # where it cannot be told


def study_verdict(data: StudyData) -> StudyVerdict:
    """Return what the association table of a study says about topology."""
    return data.once("verdict", lambda: _study_verdict(data))


def _study_verdict(data: StudyData) -> StudyVerdict:
    network = primary(data).filter(pl.col("group") == NETWORK)
    rows = measured(network).filter(pl.col("kind") == TOPOLOGY)
    if not len(network):
        help_ = "A training log, a validation set or a text to measure the loss on would make the question answerable."
        return _open(rows, "no loss is known", [help_])
    if not len(rows):
        n_runs, n_checkpoints = len(data.trajectories), sum(len(t.steps) for t in data.trajectories)
        n = network.filter(kind=TOPOLOGY).get_column("n").max()
        if isinstance(n, int) and n < MIN_CHECKPOINTS:
            both = f"Topology and loss are known together at {n or 'none'} of {counted(n_checkpoints, 'checkpoint')}"
            return _open(rows, "measured too rarely", [f"{both}; {MIN_CHECKPOINTS} are needed."], proposal(data))
        has = f"The study has {counted(n_runs, 'run')} and {counted(n_checkpoints, 'measured checkpoint')}"
        return _open(rows, "no feature varies", [f"{has}; a feature has to vary over {MIN_CHECKPOINTS} of them."])
    found, (known, others) = within_runs(rows), learnt(main_quantities(data))
    if found.verdict == UNDETERMINED:
        return _open(rows, found.reason, known, proposal(data), others)
    total = counted(rows.get_column("feature").n_unique(), "topological feature")
    n_runs = rows.get_column("run").n_unique()
    where = "" if n_runs == 1 else f" in at least one of {n_runs} runs"
    features, n = found.features, len(found.features)
    details = " ".join(known)
    if found.case == BEYOND:
        details = f"{n} of {total} {_verb(features, 'does', 'do')} so{where}: {_named(features)}."
    elif found.case == KEEPS_ONE:
        keep = f"{n} of {total} {_verb(features, 'keeps', 'keep')} a correlation given {covariates_of(rows)}"
        details = f"{keep}{where}, but {_verb(features, 'fails', 'fail')} another test: {_named(features)}."
    return StudyVerdict(found.verdict, "", rows, f"{verdict_sentence(found.verdict)}.", details)


def _open(
    rows: pl.DataFrame, reason: str, known: list[str], would_tell: Proposal | None = None, others: Sequence[str] = ()
) -> StudyVerdict:
    """Return the verdict of a study in which a test is not defined, or too weak: what is known comes first."""
    who = "topology"
    told = [would_tell.sentence] if would_tell else [_needs(rows)] if len(rows) else []
    if others and known:
        who = joined([uncapitalised(name) for name in others]).replace(" (control)", "")
        who = who if len(others) == 1 else f"any of {who}"
    question = f"{verdict_sentence(UNDETERMINED, who=who, figures=reason)}."
    if not others:
        return StudyVerdict(UNDETERMINED, reason, rows, question, " ".join([*known, *told]), would_tell)
    first, *rest = [*known, question]
    return StudyVerdict(UNDETERMINED, reason, rows, first, " ".join([*rest, *told]), would_tell)


def association_sentences(data: StudyData) -> list[str]:
    """Summarise the association of features with the loss in sentences, the verdict first."""
    found, everything = study_verdict(data), measured(primary(data))
    topology = found.rows
    would_tell = found.proposal.command if found.proposal else ""
    sentences = [found.sentence, f"{found.details} {would_tell}".strip()]
    if not len(topology):
        return sentences
    if found.verdict in (TREND, NONE):
        sentences.append(_drift_sentence(topology))
    if len(untested := topology.filter(verdict=UNDETERMINED)):
        sentences.append(untested_sentence(topology, untested))
    sentences += [_correlation_sentence(topology)]
    counts = SpectralComparisonCounts.of(data.tables["comparisons"])
    sentences += [counts.sentence()] if counts.total else []
    sentences += _group_sentences(everything.filter(pl.col("group") != NETWORK, pl.col("kind") == TOPOLOGY))
    controls = everything.filter(pl.col("group") == NETWORK, pl.col("kind") != TOPOLOGY)
    return [*sentences, *_control_sentences(controls)]


def _drift_sentence(rows: pl.DataFrame) -> str:
    """Count the features that drift with the loss, and say that none is significant given the covariates."""
    tested, drifting = rows.filter(pl.col("verdict") != UNDETERMINED), features_of(rows.filter(verdict=TREND))
    total = counted(len(features_of(rows)), "topological feature")
    n_runs = rows.get_column("run").n_unique()
    untested_runs = n_runs - tested.get_column("run").n_unique()
    gap = f" In {untested_runs} of {n_runs} runs nothing can be told." if untested_runs else ""
    drift = f"{len(drifting) or 'None'} of {total} {'drift' if len(drifting) > 1 else 'drifts'} with the loss"
    if len(rows.filter(pl.col("verdict").is_in([TREND, NONE]), is_below("p_given_all_adjusted"))):
        return f"{drift}.{gap}"
    n_tested = len(features_of(tested))
    none = "none" if n_tested == len(features_of(rows)) else f"none of the {n_tested} that can be tested"
    return f"{drift}; {none} is significant given {covariates_of(rows)}.{gap}"


def covariates_of(rows: pl.DataFrame) -> str:
    """Name the covariates that were known in every row."""
    known = [name for column, name in COVARIATE_COLUMNS.items() if rows.get_column(column).is_finite().all()]
    return joined(known or ["the step"])


def untested_sentence(rows: pl.DataFrame, untested: pl.DataFrame) -> str:
    """Say how many of some rows have no verdict, why, and what would help."""
    which = counted(len(untested), "feature")
    if rows.get_column("run").n_unique() != 1:
        which = f"{len(untested)} of {counted(len(rows), 'pair of run and feature', 'pairs of run and feature')}"
    weak = missing(untested, rule.POWER.untested)
    power = f" ({_power_words(weak)})" if len(weak) else ""
    return f"{which} cannot be told: {_reasons(untested)}{power}. {_needs(untested)}"


def _needs(untested: pl.DataFrame) -> str:
    """Say what would make tests possible, what most rows need first."""
    needs = untested.filter(verdict=UNDETERMINED).get_column("needs").value_counts(sort=True).get_column("needs")
    helps = dict.fromkeys(part for need in needs for part in need.split(", or ") if part)
    return f"{capitalised(' or '.join(helps))} would help." if helps else ""


def _reasons(rows: pl.DataFrame) -> str:
    """Say why rows have no verdict, the most frequent reason first."""
    causes = rows.get_column("untested").value_counts(sort=True).get_column("untested")
    return " or ".join(rule.GAPS[cause].reason for cause in causes)


def _named(features: Sequence[str]) -> str:
    return examples([named(feature) for feature in features])


def _power_words(rows: pl.DataFrame) -> str:
    """Say what the tests of rows without power would have found, by their median."""
    power, detectable = (rows.get_column(name).to_numpy() for name in ("power", "detectable"))
    first = f"a partial correlation of {rule.PLANTED:g} would be found in {np.median(power):.0%} of cases"
    # Where more than half of the rows find none of the sizes, the median is infinite.
    smallest = float(np.median(np.where(np.isfinite(detectable), detectable, np.inf)))
    which = f"one of {smallest:g}" if np.isfinite(smallest) else f"not even one of {SIZES[-1]:g}"
    return f"{first}, {which} in {rule.MIN_POWER:.0%}"


def _correlation_sentence(topology: pl.DataFrame) -> str:
    """Count the correlations that hold although checkpoints depend on each other and many features were tested."""
    correlated = features_of(topology.filter(is_below("p_adjusted")))
    n, n_eff = (np.median(topology.get_column(name).to_numpy()) for name in ("n", "n_eff"))
    return (
        f"{len(correlated) or 'None'} of {counted(topology.get_column('feature').n_unique(), 'topological feature')} "
        f"{'correlates' if len(correlated) < 2 else 'correlate'} with the loss significantly, once the p-value allows "
        f"for dependent checkpoints and for the number of tests. The median series has {n:.0f} checkpoints; effective "
        f"sample size {n_eff:.1f}."
    )


def _group_sentences(rows: pl.DataFrame) -> list[str]:
    """Say which features of groups of layers are beyond the trend."""
    if not len(rows):
        return []
    pairs = rows.group_by("group", "feature", maintain_order=True).agg(
        beyond=(pl.col("verdict") == BEYOND).any(), open=(pl.col("verdict") == UNDETERMINED).all()
    )
    n_groups, beyond = pairs.get_column("group").n_unique(), pairs.filter("beyond")
    n_open = len(pairs.filter(pl.col("open") & ~pl.col("beyond")))
    total = counted(len(pairs), "feature of a group", "features of groups")
    which = [f"{named(feature)} of {group}" for group, feature in beyond.select("group", "feature").iter_rows()]
    found = f"{len(beyond) or 'none'} of {total} {_verb(which, 'is', 'are') if which else 'is'} {BEYOND}"
    where = f" in at least one run ({examples(which)})" if which else ""
    untested = f"; {n_open} cannot be told" if n_open else ""
    return [f"By {counted(n_groups, 'group')} of layers: {found}{where}{untested}."]


def _control_sentences(controls: pl.DataFrame) -> list[str]:
    """Say whether plain quantities are beyond the trend: topology has to do better than they do."""
    if not len(controls):
        return []
    quantities = counted(len(features_of(controls)), "plain quantity", "plain quantities")
    beyond, tested = features_of(controls.filter(verdict=BEYOND)), controls.filter(pl.col("verdict") != UNDETERMINED)
    if not len(tested):
        return [f"Of {quantities} (norms, spectra) nothing can be told: {_reasons(controls)}."]
    n_tested = len(features_of(tested))
    of = "" if n_tested == len(features_of(controls)) else f" of the {n_tested} that can be tested"
    where = f" in at least one run ({_named(beyond)})" if beyond else ""
    is_ = _verb(beyond, "is", "are") if beyond else "is"
    return [f"Of {quantities} (norms, spectra), {len(beyond) or 'none'}{of} {is_} {BEYOND}{where}."]


def _verb(subjects: Sequence[object], singular: str, plural: str) -> str:
    return singular if len(subjects) == 1 else plural
