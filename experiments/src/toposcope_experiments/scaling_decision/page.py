"""The page of the scaling decision: one sentence first, the map, and the tables."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl

from toposcope.extend import (
    Block,
    Page,
    Picture,
    ReportSection,
    Spec,
    Tables,
    counted,
    csv_link,
    joined,
    makers_of,
    number_of,
    p_value,
    paragraph,
    plain,
    share,
    signed,
    table,
    text_of,
    whole,
)
from toposcope_experiments.scaling_decision.charts import map_chart
from toposcope_experiments.scaling_decision.design import Design
from toposcope_experiments.scaling_decision.prediction import (
    ALWAYS_ON,
    NOISE,
    OF_CONTROLS,
    OF_LOSS,
    OTHER_MARGIN,
    OTHER_SEED,
    OWN,
    RULE,
    SIZE_AND_STEP,
    TWIN,
)
from toposcope_experiments.scaling_decision.score import Gain, calibration, scaling_points
from toposcope_experiments.scaling_decision.verdict import EXPLAINED, HELPS, MNAT, OF_CONDITION, Outcome

TITLE = "When to scale"
NORMAL_WIDTH = 1.96  # standard errors on either side of a mean: 95%
CALIBRATED = (SIZE_AND_STEP, OF_LOSS, OF_CONTROLS, OWN)


class ScalingDecisionData:
    """The outcome of a design, and the tables of the page."""

    def __init__(self, design: Design, decisions: pl.DataFrame) -> None:
        self.design, self.frame = design, decisions
        self.outcome = Outcome.of(decisions)
        self.tables: Mapping[str, pl.DataFrame] = Tables(self, makers_of(SECTIONS))


def mnat(value: float) -> str:
    """Write nats in thousandths."""
    return f"{plain(MNAT * value, 2)} mnat"


def _change(of: Gain) -> str:
    """Write what is saved, with its interval."""
    mean, low, high = (MNAT * (of.mean + side * of.error) for side in (0, -NORMAL_WIDTH, NORMAL_WIDTH))
    return f"{signed(mean, 1)} mnat ({signed(low, 1)} to {signed(high, 1)})"


def first_sentence(outcome: Outcome) -> str:
    """Answer the question."""
    saved, regret = _change(outcome.primary), mnat(outcome.regret(OF_CONTROLS).mean())
    if outcome.verdict == HELPS:
        return (
            "Topology says when to scale up beyond what the loss and plain quantities say: of their regret of "
            f"{regret} it saves {saved}."
        )
    if outcome.verdict == OF_CONDITION:
        return (
            f"Topology tells conditions apart, not runs: of a regret of {regret} it saves {saved}, and the topology "
            "of another seed of the condition as much."
        )
    if outcome.verdict == EXPLAINED:
        return (
            f"What topology says of when to scale up, plain quantities say too: it saves {_change(outcome.beside_loss)}"
            f" beside the loss alone, and {saved} beside the loss and plain quantities."
        )
    return (
        "Topology is not found to say when to scale up beyond what the loss and plain quantities say: of a regret of "
        f"{regret} it saves {saved}; {mnat(outcome.primary.detectable)} would have been found in 4 of 5 such studies."
    )


def lead(data: ScalingDecisionData) -> list[str]:
    """Return the sentences at the top of the page."""
    outcome = data.outcome

    def regret(name: str) -> str:
        return mnat(outcome.regret(name).mean())

    points = scaling_points(outcome.decisions["log_compute"], outcome.decisions.margin)
    outside = float(np.mean([each.outside for each in points]))
    several = float(np.mean([each.crossings > 1 for each in points]))
    errors = dict(data.tables["predictors"].select("predictor", "point_error").iter_rows())
    return [
        first_sentence(outcome),
        f"Regret, the loss given away by wrong decisions: {regret(ALWAYS_ON)} by always going on, "
        f"{regret(SIZE_AND_STEP)} by size and step, {regret(OF_LOSS)} with the loss of the run, "
        f"{regret(OF_CONTROLS)} with norms too, {regret(OTHER_MARGIN)} by what another seed's decision would have "
        f"been, {regret(RULE)} by the published rule of neural persistence alone.",
        f"In place of topology: that of another seed saves {_change(outcome.gain(OTHER_SEED))}, that of another "
        f"condition {_change(outcome.gain(TWIN))}, noise {_change(outcome.gain(NOISE))}.",
        f"The compute from which scaling up pays is missed by a factor of {plain(np.exp(errors[OF_CONTROLS]), 2)} "
        f"(median) by loss and norms, {plain(np.exp(errors[OWN]), 2)} with topology. It lies outside the window in "
        f"{share(outside)} of the runs, and the better way changes more than once in {share(several)}.",
    ]


def notes(data: ScalingDecisionData) -> list[str]:
    """Say what is not there."""
    trained = set(data.frame["pair"])
    missing = [pair.name for pair in data.design.pairs if pair.name not in trained]
    lost = len(data.design.conditions) - len(data.outcome.decisions.conditions)
    untrained = [f"not trained yet: {joined(missing)}"] if missing else []
    diverged = [f"left out, as they diverged: {counted(lost, 'condition')}"] if lost else []
    return [*untrained, *diverged]


def _predictor_blocks(data: ScalingDecisionData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    one_digit, two_digits = partial(signed, digits=1), partial(plain, digits=2)
    specs: tuple[Spec, ...] = (
        text_of("known", "predictor", names_row=True),
        number_of("regret (mnat)", "regret", two_digits),
        number_of("mean", "saved", one_digit, group="saved on loss and controls (mnat)"),
        number_of("standard error", "saved_error", two_digits, group="saved on loss and controls (mnat)"),
        number_of("p", "p", p_value, group="saved on loss and controls (mnat)"),
        number_of("wrong", "wrong", share),
        number_of("error of the scaling point (ln)", "point_error", two_digits),
        number_of("Brier score", "brier", two_digits),
    )
    return (
        *pictures,
        table("predictors", "What is known, and what wrong decisions then cost", specs,
              data.tables["predictors"].to_dicts()),
        paragraph(
            "Conditions are left out whole; p by flipping the signs of conditions, none adjusted. Controls: norm, "
            "stable rank, gradient norm, change of the weights. Topology: neural persistence, scale-free H0 and H1, "
            "speed in Wasserstein distance. ",
            csv_link("predictors"), ", ", csv_link("conditions"), ", ", csv_link("decisions"), ".",
            note=True,
        ),
    )  # fmt: skip


def calibration_table(data: ScalingDecisionData) -> pl.DataFrame:
    """Return how often scaling up was better, by predictor and stated probability."""
    margin, predictors = data.outcome.decisions.margin, data.outcome.predictors
    parts = [calibration(margin, predictors[name][0]).with_columns(predictor=pl.lit(name)) for name in CALIBRATED]
    return pl.concat(parts).select("predictor", "stated", "seen", "decisions")


def _calibration_blocks(data: ScalingDecisionData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        text_of("known", "predictor", names_row=True),
        number_of("stated", "stated", share),
        number_of("seen", "seen", share),
        number_of("decisions", "decisions", whole),
    )
    return (table("calibration", "Scaling up is better", specs, data.tables["calibration"].to_dicts()),)


def condition_table(data: ScalingDecisionData) -> pl.DataFrame:
    """Return each condition's regrets in mnat, and what topology saves."""
    outcome = data.outcome
    return pl.DataFrame({
        "condition": outcome.decisions.conditions,
        "size_and_step": MNAT * outcome.regret(SIZE_AND_STEP),
        "controls": MNAT * outcome.regret(OF_CONTROLS),
        "topology": MNAT * outcome.regret(OWN),
        "other_seed": MNAT * outcome.regret(OTHER_SEED),
        "saved": MNAT * outcome.primary.by_condition,
    })  # fmt: skip


Section = ReportSection[ScalingDecisionData]
SECTIONS: tuple[Section, ...] = (
    Section(
        anchor="predictors",
        title="Who wins, and what tells",
        position=10,
        tables={
            "predictors": lambda data: data.outcome.table(),
            "conditions": condition_table,
            "decisions": lambda data: data.frame,
        },
        charts=(lambda data: [map_chart(data.outcome)],),
        blocks=_predictor_blocks,
        summary=lead,
        notes=notes,
    ),
    Section(
        anchor="calibration",
        title="Calibration",
        position=20,
        tables={"calibration": calibration_table},
        blocks=_calibration_blocks,
    ),
)


def scaling_decision_page(design: Design, decisions: pl.DataFrame) -> Page[ScalingDecisionData]:
    """Return the page of decisions."""
    return Page(SECTIONS, ScalingDecisionData(design, decisions))
