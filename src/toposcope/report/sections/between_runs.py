"""Which features go with the final loss across runs at equal step; first on the page where that can be asked."""

from collections.abc import Iterable, Sequence

import altair as alt
import polars as pl

from toposcope.analysis import between_runs
from toposcope.analysis.run_population import FINAL_LOSSES, RunPopulation, run_population
from toposcope.analysis.verdict import BEYOND, LEVEL, UNDETERMINED, strongest, verdict_sentence
from toposcope.charts.chart import Chart
from toposcope.charts.training import step_axis
from toposcope.charts.zero import zero_line
from toposcope.probes.feature import TOPOLOGY
from toposcope.report import formats
from toposcope.report.document import Block, Picture, excluded, folded, linked, paragraph
from toposcope.report.headline import TRAJECTORIES, headline_features, named
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Spec, feature_of, headline_rows, numbers, table, text_of
from toposcope.wording import counted, examples, joined

MAX_FEATURES = 5
TESTS = {"": ("between-runs", "Alone"), "_given_all": ("between-runs-given", "Given the loss and the controls")}
"""Name and condition of the chart by the ending of the test's columns."""


def between_runs_charts(data: StudyData) -> list[Chart]:
    """Draw the correlation across runs over the steps with the permutation band: alone, and given loss and controls."""
    tests, steps = (data.tables[name] for name in ("between_runs", "between_runs_by_step"))
    if not len(tests) or not len(steps):
        return []
    features = _features(tests, steps)
    tests, steps = (table.filter(pl.col("feature").is_in(features)) for table in (tests, steps))
    return [_chart(tests, steps, features, given) for given in TESTS] if features else []


def _features(tests: pl.DataFrame, steps: pl.DataFrame) -> list[str]:
    """Choose the headline features that have a correlation at some step; topology comes first."""
    defined = steps.filter(pl.col("rho").is_finite()).get_column("feature").unique(maintain_order=True)
    tested = set(tests.get_column("feature"))
    present = [feature for feature in headline_features(defined) if feature in tested]
    first = [h.key for h in TRAJECTORIES if h.key in present]
    return list(dict.fromkeys([*first, *present]))[:MAX_FEATURES]


def _chart(tests: pl.DataFrame, steps: pl.DataFrame, features: list[str], given: str) -> Chart:
    name, condition = TESTS[given]
    significant = len(tests.filter(pl.col(f"p_adjusted{given}").fill_nan(1.0) < LEVEL))
    n_runs = max(tests.get_column("n_runs"))
    go = "goes" if significant < 2 else "go"
    title = f"{condition}, {significant or 'none'} of {len(features)} features {go} with the final loss"
    caption = (
        f"Rank correlation of the feature at a step with the final loss across {n_runs} runs. Band: 95% of the "
        "permutations of the runs stay within it at every step; gaps: not defined."
    )
    names = {feature: named(feature) for feature in features}
    rows = steps.select("step", pl.col("feature").replace_strict(names), rho=pl.col(f"rho{given}").fill_nan(None))
    band = max(tests.get_column(f"band{given}").drop_nans().drop_nulls(), default=None)
    alternative = f"Line chart of rank correlations across {n_runs} runs against the training step. {title}."
    return Chart(name, title, caption, alternative, _figure(rows, list(names.values()), band))


def _figure(rows: pl.DataFrame, names: list[str], band: float | None) -> alt.LayerChart:
    rho = alt.Y("rho:Q", title="rho with the final loss", scale=alt.Scale(domain=[-1, 1]))
    line = alt.Chart(rows).mark_line(point={"size": 16}, clip=True).encode(
        x=step_axis(rows), y=rho, color=alt.Color("feature:N", title=None, sort=names, legend=alt.Legend(columns=3)),
        tooltip=["feature:N", "step:Q", alt.Tooltip("rho:Q", format="+.3f")],
    )  # fmt: skip
    if not band:
        return alt.LayerChart(layer=[zero_line("y"), line])
    limits = alt.Chart(pl.DataFrame({"low": [-band], "high": [band]}))
    inside = limits.mark_rect(color="gray", opacity=0.18).encode(y="low:Q", y2="high:Q")
    return alt.LayerChart(layer=[inside, zero_line("y"), line])


SPECS: tuple[Spec, ...] = (
    feature_of(),
    text_of("verdict", "verdict"),
    *numbers(whole={"runs": "n_runs"}),
    *(
        spec
        for given, heading in zip(
            between_runs.GIVEN, ("alone", "given the loss", "given loss and controls"), strict=True
        )
        for spec in numbers(
            heading,
            whole={"steps": f"n_steps{given}"},
            signed={"mean rho": f"rho{given}"},
            p_value={"p-value": f"p{given}", "p, adjusted": f"p_adjusted{given}"},
        )
    ),
    text_of("why it cannot be tested", "reason", prose=True),
)


def _shortfall(data: StudyData) -> str:
    short = _population(data).shortfall
    return f"more runs: {short}" if short else ""


def _population(data: StudyData) -> RunPopulation:
    return run_population(data.trajectories, data.log, data.runs)


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    frame = data.tables["between_runs"]
    if not len(frame):
        return ()
    population = _population(data)
    full = table("between-runs-all", "Every feature of the network, across runs at equal step", SPECS, frame.to_dicts())
    return (
        *pictures,
        paragraph(
            f"{_compared(population, frame)}, at the {counted(len(population.steps), 'step')} that all of them have in "
            "common, where the step explains no correlation. The test given the loss and the "
            f"controls at the same step ({joined(_controls(population))}) decides; a control is tested given the "
            f"others; p is by permuting the runs. {_power(frame)}"
        ),
        excluded(population.left_out),
        table("between-runs", "Across runs at equal step, main features", SPECS, headline_rows(frame)),
        folded(full, "Every feature of the network", max_rows=0),
        linked("All: between_runs.csv; step by step: between_runs_by_step.csv."),
    )


def _methods(data: StudyData) -> Iterable[Block | None]:
    return (paragraph(between_runs.RULE),) if len(data.tables["between_runs"]) else ()


def _summary(data: StudyData) -> list[str]:
    """Say what goes with the final loss across runs, and how strong a correlation these runs would have detected."""
    frame = data.tables["between_runs"]
    topology = frame.filter(kind=TOPOLOGY) if len(frame) else frame
    if not len(topology):
        return []
    population = _population(data)
    runs, what = _compared(population, frame), f"the final {FINAL_LOSSES[population.loss]}"
    known = f"{joined([f'the {name}' for name in _controls(population)])} at the same step"
    tested = topology.filter(pl.col("verdict") != UNDETERMINED)
    if not len(tested):
        reasons = examples(topology.get_column("reason").unique(maintain_order=True).to_list())
        return [f"{verdict_sentence(UNDETERMINED, what=what, known=known, figures=reasons)}."]
    beyond = [named(f) for f in tested.filter(verdict=BEYOND).get_column("feature")]
    alone = len(tested.filter(pl.col("p_adjusted") < LEVEL))
    total = counted(len(tested), "topological feature")
    figures = f"{runs[:1].lower()}{runs[1:]} at equal step, " + (
        f"{len(beyond)} of {total} {'does' if len(beyond) == 1 else 'do'} so ({examples(beyond)})"
        if beyond
        else f"alone {alone} of {total} {'goes' if alone == 1 else 'go'} with it"
    )
    verdict = strongest(set(tested.get_column("verdict")))
    first = f"{verdict_sentence(verdict, what=what, known=known, figures=figures)}."
    unknown = topology.filter(pl.col("verdict") == UNDETERMINED, pl.col("reason") != between_runs.CONSTANT)
    untested = f" {len(unknown)} more cannot be tested." if len(unknown) else ""
    controls = frame.filter(pl.col("kind") != TOPOLOGY, pl.col("verdict") != UNDETERMINED)
    informative = len(controls.filter(verdict=BEYOND))
    plain_ones = (
        f" Of {counted(len(controls), 'plain quantity', 'plain quantities')} (norms, spectra), "
        f"{informative or 'none'} {'carry' if informative > 1 else 'carries'} any given the same."
        if len(controls)
        else ""
    )
    return [f"{first}{untested} {_power(frame)}{plain_ones}"]


def _finding(data: StudyData) -> str:
    """Count the topological features that go with the final loss given the controls."""
    frame = data.tables["between_runs"]
    tested = frame.filter(pl.col("kind") == TOPOLOGY, pl.col("verdict") != UNDETERMINED) if len(frame) else frame
    if not len(tested):
        return "No topological feature can be tested between runs" if len(frame) else ""
    n_beyond = len(tested.filter(verdict=BEYOND))
    return (
        f"{n_beyond or 'None'} of {counted(len(tested), 'topological feature')} "
        f"{'go' if n_beyond > 1 else 'goes'} with the final loss given loss and controls"
    )


def _compared(population: RunPopulation, frame: pl.DataFrame) -> str:
    """Say which runs are compared."""
    n_sizes, n_runs = len(population.sizes), int(frame.get_column("n_runs").to_numpy().max())
    if n_sizes <= 1:
        return f"Between {n_runs} runs of one size"
    how = "given the size" if len(population.covariates) else "each among those of its size"
    return f"Between {n_runs} runs of {n_sizes} sizes, {how},"


def _controls(population: RunPopulation) -> list[str]:
    """Name what is known at the same step."""
    covariates = {between_runs.RATE: "learning rate", between_runs.NORM: "weight norm"}
    known = [name for key, name in covariates.items() if all(key in t.covariates for t in population.runs)]
    return ["loss", *known]


def _power(frame: pl.DataFrame) -> str:
    """State the smallest correlation that would have been detected 4 times in 5."""
    given = frame.get_column("detectable_given_all").drop_nulls().drop_nans()
    if not len(given):
        return f"So few runs detect no correlation 4 times in 5, however strong, over {len(frame)} features."
    n_runs, rho = int(frame.get_column("n_runs").to_numpy().max()), formats.signed(given.item(0), 2).lstrip("+")
    return (
        f"With {n_runs} runs a rank correlation of {rho} given these, the same at every step, would be detected 4 "
        "times in 5."
    )


SECTION = ReportSection(
    anchor="between-runs",
    title="Between runs at equal step",
    position=95,
    tables={
        "between_runs": lambda m: between_runs.between_runs_table(m.trajectories, m.log, m.runs, m.adjust),
        "between_runs_by_step": lambda m: between_runs.between_runs_step_table(m.trajectories, m.log, m.runs),
    },
    charts=(between_runs_charts,),
    blocks=_blocks,
    finding=_finding,
    summary=_summary,
    summary_position=5,
    methods=_methods,
    needs=dict.fromkeys(("between_runs", "between_runs_by_step"), (_shortfall,)),
)
