"""What the page says before anything else: the verdict in a sentence, one more sentence, and what it rests on."""

from collections.abc import Sequence

import polars as pl

from toposcope.analysis.adjustment import MIN_RUNS
from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.between_runs import BEYOND as BEYOND_LOSS
from toposcope.analysis.nested_models.verdicts import ADDS, NO_MORE, NOTHING
from toposcope.analysis.nested_models.verdicts import OPEN as OPEN_CONTROLS
from toposcope.analysis.verdict import BEYOND, LEVEL, LOSS, ON_FIXED_DATA, POWER, TREND, UNDETERMINED
from toposcope.probes.feature import TOPOLOGY
from toposcope.report.document import Chip, FirstScreen
from toposcope.report.headline import named
from toposcope.report.material import Material
from toposcope.report.outcome import Kind, Outcome, features_of, outcome_of, power_words
from toposcope.report.tables import share as unsigned
from toposcope.wording import counted, examples

MAX_FIRST, MAX_SECOND = 110, 200  # letters of the two sentences
MAX_NAMED = 3  # features named in a sentence, if there is room

SENTENCES = {
    Kind.NO_LOSS: "Nothing can be said yet: no loss is known for the measured checkpoints.",
    Kind.NO_FEATURE: f"Nothing can be said yet: no topological feature varies over {MIN_CHECKPOINTS} checkpoints.",
    Kind.BEYOND: "Topology says something about the loss that the training step does not.",
    Kind.OPEN: "Topology may say something about the loss beyond the training step; more runs would settle it.",
    Kind.UNTESTABLE: "Whether topology adds to what the training step says about the loss cannot be tested here.",
    Kind.WEAK: "Whether topology adds to what the training step says about the loss cannot be told: too little power.",
    Kind.PARTIAL: "Some of topology's correlation with the loss outlasts the training step, but fails another test.",
    Kind.NOTHING: "Topology adds nothing detectable to what the training step already says about the loss.",
}
"""The first sentence by outcome."""
FORECASTS = {
    ADDS: "Topology improves forecasts of the final loss beyond the loss so far, schedule and norms.",
    NO_MORE: "Topology improves forecasts of the final loss, but no more than one of its controls.",
    OPEN_CONTROLS: "Topology improves forecasts of the final loss; its controls were not measured.",
    NOTHING: "Topology adds nothing detectable to forecasts of the final loss from loss, schedule and norms.",
}
"""The first sentence by the verdict of nested models."""
WITHIN_RUNS = {
    Kind.BEYOND: "it adds to the training step",
    Kind.OPEN: "it may add to the training step",
    Kind.UNTESTABLE: "that cannot be tested",
    Kind.WEAK: "that cannot be told",
    Kind.PARTIAL: "it passes no full test",
    Kind.NOTHING: "it adds nothing detectable to the training step",
}
"""The outcome in a few words, for the second sentence beside an answer between runs."""


def first_screen(material: Material) -> FirstScreen:
    """Return the verdict of a study: of nested models where it has one, else between runs at equal step, or within."""
    outcome, between = outcome_of(material), _tested_between_runs(material)
    sentences = _of_nested_models(material.tables["nested_verdicts"], between)
    if sentences is None:
        sentences = (
            _between_runs(between, outcome) if len(between) else (SENTENCES[outcome.kind], _second(outcome, material))
        )
    return FirstScreen(*sentences, tuple(_chips(outcome, between, material)))


def _of_nested_models(verdicts: pl.DataFrame, between: pl.DataFrame) -> tuple[str, str] | None:
    """Say what topology adds to a forecast of the final loss; None where that cannot be told."""
    row = verdicts.row(0, named=True) if len(verdicts) else {}
    if row.get("verdict") not in FORECASTS:
        return None
    first, seen = FORECASTS[row["verdict"]], f"Over {row['n_runs']} runs and {counted(row['n_fractions'], 'fraction')}"
    if row["verdict"] == NOTHING:
        found = f"{seen} a gain of {unsigned(row['detectable_least'])} would have been detected at best, and none was."
    else:
        found = f"{seen} the error is up to {unsigned(row['skill'])} smaller, at {row['fraction']:.0%} of training."
    beyond = len(features_of(between.filter(verdict=BEYOND_LOSS))) if len(between) else 0
    if not len(between):
        return first, found
    says = "says" if beyond < 2 else "say"
    return first, f"{found} At equal step {beyond or 'none'} of {len(between)} {says} more than loss and controls."


def _tested_between_runs(material: Material) -> pl.DataFrame:
    table = material.tables["between_runs"]
    return table.filter(pl.col("kind") == TOPOLOGY, pl.col("verdict") != UNDETERMINED) if len(table) else table


def _between_runs(tested: pl.DataFrame, outcome: Outcome) -> tuple[str, str]:
    beyond = features_of(tested.filter(verdict=BEYOND_LOSS))
    total, n_runs = counted(len(tested), "topological feature"), max(tested.get_column("n_runs"))
    within = f" Within runs {WITHIN_RUNS[outcome.kind]}." if outcome.kind in WITHIN_RUNS else ""
    if beyond:
        return (
            "Topology says something about the final loss that the loss at the same step does not.",
            _with_names(f"Between {n_runs} runs, {len(beyond)} of {total} {_does(beyond)} so", beyond, within),
        )
    alone = len(tested.filter(pl.col("p_adjusted").fill_nan(1.0) < LEVEL))
    return (
        "Topology adds nothing detectable about the final loss once the loss at the same step is known.",
        f"Between {n_runs} runs, {alone or 'none'} of {total} {'goes' if alone < 2 else 'go'} with the final loss, "
        f"none once loss and controls are known.{within}",
    )


def _second(outcome: Outcome, material: Material) -> str:
    """Return the sentence after the verdict within runs."""
    if outcome.kind is Kind.NO_LOSS:
        return "A training log, a validation set or a text to measure the loss on would make the question answerable."
    if outcome.kind is Kind.NO_FEATURE:
        n_runs, n_checkpoints = len(material.trajectories), sum(len(t.steps) for t in material.trajectories)
        return f"The study has {counted(n_runs, 'run')} and {counted(n_checkpoints, 'measured checkpoint')}."
    deciding, n_runs = outcome.deciding, outcome.n_runs
    total = counted(len(outcome.features), "topological feature")
    count, where = f"{len(deciding)} of {total}", "" if n_runs == 1 else f" in at least one of {n_runs} runs"
    if outcome.kind is Kind.BEYOND:
        return _with_names(f"{count} {_does(deciding)} so{where}", deciding)
    if outcome.kind is Kind.OPEN:
        passes = "passes" if len(deciding) == 1 else "pass"
        return f"{count} {passes} every test{where} but the last, against other runs, which needs {MIN_RUNS} of them."
    if outcome.kind is Kind.PARTIAL:
        keeps = "keeps" if len(deciding) == 1 else "keep"
        return _with_names(f"{count} {keeps} a correlation given the clocks{where}", deciding)
    if outcome.kind is Kind.UNTESTABLE:
        return f"{_reason(outcome.untested)} {_remedy(outcome.untested)}"
    if outcome.kind is Kind.WEAK:
        words, help_ = power_words(outcome.weak), POWER.needs
        return f"{words[0].upper()}{words[1:]}. {help_[0].upper()}{help_[1:]} would help."
    trend = len(features_of(outcome.rows.filter(verdict=TREND)))
    untested_runs = n_runs - outcome.tested.get_column("run").n_unique()
    n_tested = len(features_of(outcome.tested))
    still = "none" if n_tested == len(outcome.features) else f"none of the {n_tested} that can be tested"
    gap = f" In {untested_runs} of {n_runs} runs nothing can be told." if untested_runs else ""
    return (
        f"{trend or 'None'} of {total} {'drifts' if trend < 2 else 'drift'} with the loss; "
        f"{still} detectably adds to what the step says about it.{gap}"
    )


def _reason(untested: pl.DataFrame) -> str:
    of_loss = (untested.get_column("untested") == LOSS.untested).mean()
    if of_loss == 1:
        return "The loss orders the checkpoints exactly as the step does, so nothing is left to test given the step."
    ordered = untested.get_column("untested").str.contains("orders the checkpoints exactly as").all()
    if ordered:
        return "The loss or the features order the checkpoints exactly as the step does; nothing is left to test."
    return "The tests are not defined: the checkpoints are too few or depend too much on each other."


def _remedy(untested: pl.DataFrame) -> str:
    if set(untested.get_column("target")) <= set(ON_FIXED_DATA):
        return "More or finer checkpoints would help."
    return "More or finer checkpoints, or a validation loss, would help."


def _with_names(start: str, features: Sequence[str], end: str = "") -> str:
    """Complete a sentence with the names of as many features as fit."""
    names = [named(feature) for feature in features]
    for shown in range(MAX_NAMED, 0, -1):
        text = f"{start}: {examples(names, shown)}.{end}"
        if len(text) <= MAX_SECOND:
            return text
    return f"{start}.{end}"


def _does(features: Sequence[str]) -> str:
    return "does" if len(features) == 1 else "do"


def _chips(outcome: Outcome, between: pl.DataFrame, material: Material) -> list[Chip]:
    n_checkpoints = sum(material.runs.get_column("n_checkpoints"))
    n_runs = len(material.runs)
    chips = [Chip(f"{n_runs:,}", f"{'run' if n_runs == 1 else 'runs'}, {counted(n_checkpoints, 'checkpoint')}")]
    if len(outcome.rows):
        n, tested = len(outcome.features), len(features_of(pl.concat([outcome.tested, outcome.weak])))
        number = f"{n:,}" if tested == n else f"{tested:,} of {n:,}"
        beyond, untested = len(features_of(outcome.rows.filter(verdict=BEYOND))), len(outcome.untested)
        chips += [
            Chip(number, f"topological {'feature' if n == 1 else 'features'} tested"),
            Chip(f"{beyond:,}", "beyond the trend", "good" if beyond else "plain"),
            Chip(
                f"{untested:,} of {len(outcome.rows):,}" if untested else "0",
                "pairs of run and feature cannot be told",
                "warn" if untested else "plain",
            ),
        ]
    if len(between):
        beyond = len(between.filter(verdict=BEYOND_LOSS))
        chips.append(Chip(f"{beyond:,}", "beyond the loss, between runs", "good" if beyond else "plain"))
    n_errors = len(material.errors)
    failures = Chip(f"{n_errors:,}", "failure" if n_errors == 1 else "failures", "bad" if n_errors else "plain")
    return [*chips, _doctor(material), failures]


def _doctor(material: Material) -> Chip:
    faults, examined = len(material.findings.filter(severity="fault")), len(material.examined)
    if faults:
        return Chip(f"{faults:,}", f"{'fault' if faults == 1 else 'faults'} found by the doctor", "bad")
    if not examined:
        return Chip("–", "doctor: series not examined")
    if examined < len(material.runs):
        return Chip("✓", f"doctor: {examined} of {len(material.runs)} series examined, intact", "warn")
    return Chip("✓", "doctor: series intact", "good")
