"""Whether topology predicts the end of a run better than loss, schedule and norms do; over a population of runs."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from toposcope.analysis.nested_models import tables as nested
from toposcope.analysis.nested_models.columns import LOSS
from toposcope.analysis.nested_models.fitting import ALL_TOPOLOGY, CONTROLS, MEDIAN, WITH_PLAIN, WITH_SCHEDULE, WITHOUT
from toposcope.analysis.nested_models.population import CONFIGURATIONS, NestedPopulation, nested_population
from toposcope.analysis.nested_models.verdicts import RULE, SCHEMA, detectable_gain, finding, nested_verdicts
from toposcope.charts.chart import Chart
from toposcope.charts.theme import MUTED
from toposcope.charts.zero import zero_line
from toposcope.report import formats
from toposcope.report.document import Block, Picture, excluded, folded, linked, paragraph
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Spec, interval_of, number_of, numbers, percent_of, table, text_of
from toposcope.wording import counted

PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 250, 150, 2
MIN_SKILL, MAX_SKILL = -0.3, 0.6  # skills beyond are drawn at the edge
MIN_SHOWN = 0.1  # the axis of skills reaches at least from minus this to this
X = alt.X("fraction:Q", title="share of training seen", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))


def nested_models_charts(data: StudyData) -> list[Chart]:
    """Draw the skill of topology and its controls for each target, and the errors of the models of the first one."""
    models, draws, verdicts = (data.tables[name] for name in ("nested_models", "nested_draws", "nested_verdicts"))
    ridge = models.filter(left_out=CONFIGURATIONS, learner=nested.RIDGE) if len(models) else models
    others = (MEDIAN, *WITHOUT, *CONTROLS.values())
    topology = [name for name in ridge.get_column("model").unique(maintain_order=True) if name not in others]
    if not topology:
        return []
    whole = ALL_TOPOLOGY if ALL_TOPOLOGY in topology else topology[0]
    return [_skills(ridge, draws, verdicts, whole), _errors(ridge, verdicts, whole)]


def _skills(ridge: pl.DataFrame, draws: pl.DataFrame, verdicts: pl.DataFrame, whole: str) -> Chart:
    shown = [whole, *(model for model in CONTROLS.values() if model in ridge["model"])]
    title = finding(*verdicts.select("target", "verdict").row(0))
    caption = (
        "By how much the error is smaller than that of loss, schedule, norms and spectra, on held-out runs; bars: 95%. "
        "Shaded: what topology of other runs adds; dashed: the smallest gain detected 4 times in 5."
    )
    rows = ridge.filter(pl.col("model").is_in(shown), pl.col("skill").is_finite())
    band = draws.filter(control=nested.SHUFFLED, model=whole)
    gains = _detectable(draws)
    scale = _skill_scale([*rows["skill_low"], *rows["skill_high"], *rows["skill"], *gains["gain"]])
    panels = [
        _panel(rows.filter(target=target), band.filter(target=target), gains.filter(target=target), shown, scale)
        for target in rows.get_column("target").unique(maintain_order=True)
    ]
    alternative = f"Line charts of the skill of {', '.join(shown)} against the share of training seen. {title}."
    return Chart("nested-models-skill", title, caption, alternative, alt.concat(*panels, columns=COLUMNS))


def _detectable(draws: pl.DataFrame) -> pl.DataFrame:
    """Return the smallest gain that is detected 4 times in 5: ``target, fraction, gain``."""
    planted = draws.filter(control=nested.PLANTED).group_by("target", "fraction", maintain_order=True)
    rows = [(target, fraction, detectable_gain(part)) for (target, fraction), part in planted]
    schema = {"target": pl.String, "fraction": pl.Float64, "gain": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row").filter(pl.col("gain").is_finite())


def _skill_scale(values: Iterable[float | None]) -> alt.Scale:
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min([-MIN_SHOWN, *known]), max([MIN_SHOWN, *known])
    return alt.Scale(domain=[max(low, MIN_SKILL), min(high, MAX_SKILL)], clamp=True)


def _panel(
    rows: pl.DataFrame, band: pl.DataFrame, gains: pl.DataFrame, shown: list[str], scale: alt.Scale
) -> alt.LayerChart:
    y = alt.Y("skill:Q", title="skill", axis=alt.Axis(format="+%"), scale=scale)
    kept = rows.select("fraction", "model", *(pl.col(c).fill_nan(None) for c in ("skill", "skill_low", "skill_high")))
    base = alt.Chart(kept).encode(
        X, color=alt.Color("model:N", title=None, sort=shown, legend=alt.Legend(columns=2))
    )  # fmt: skip
    shaded = alt.Chart(band.select("fraction", "skill_least", "skill_most"))
    tooltip = ["model:N", alt.Tooltip("fraction:Q", format=".0%"), alt.Tooltip("skill:Q", format="+.1%")]
    layers = [
        shaded.mark_area(color="gray", opacity=0.18).encode(X, alt.Y("skill_least:Q", scale=scale), y2="skill_most:Q"),
        alt.Chart(gains).mark_line(strokeDash=[4, 4], color=MUTED).encode(X, alt.Y("gain:Q", scale=scale)),
        zero_line("y"),
        base.mark_rule(opacity=0.5).encode(alt.Y("skill_low:Q", scale=scale), y2="skill_high:Q"),
        base.mark_line(point={"size": 30}, clip=True).encode(y, tooltip=tooltip),
    ]
    figure: alt.LayerChart = alt.LayerChart(layer=layers).properties(
        title=rows.item(0, "target"), width=PANEL_WIDTH, height=PANEL_HEIGHT
    )
    return figure


def _errors(ridge: pl.DataFrame, verdicts: pl.DataFrame, whole: str) -> Chart:
    target = verdicts.item(0, "target")
    order = [LOSS, WITH_SCHEDULE, WITH_PLAIN, whole]
    rows = ridge.filter(pl.col("model").is_in(order), target=target)
    names = [LOSS, *(f"+ {model}" for model in order[1:])]
    first, last = (rows.filter(fraction=f(rows["fraction"])) for f in (min, max))
    known = [part.filter(model=WITH_PLAIN).get_column("mae") for part in (first, last)]
    title = (
        f"With norms and spectra the error of the {target} falls from {known[0].item():.3g} to {known[1].item():.3g}"
    )
    caption = "Mean absolute error on held-out runs, by the share of training seen; each model adds to the one above."
    rows = rows.with_columns(pl.col("model").replace_strict(dict(zip(order, names, strict=True))))
    figure = alt.Chart(rows).mark_line(point={"size": 30}).encode(
        X, alt.Y("mae:Q", title="mean absolute error", scale=alt.Scale(type="log", nice=False, padding=10)),
        color=alt.Color("model:N", title=None, sort=names, legend=alt.Legend(columns=2)),
        tooltip=["model:N", alt.Tooltip("fraction:Q", format=".0%"), alt.Tooltip("mae:Q", format=".4f")],
    )  # fmt: skip
    alternative = f"Line chart of the error of {', '.join(names)} against the share of training seen. {title}."
    return Chart("nested-models-errors", title, caption, alternative, figure)


VERDICTS: tuple[Spec, ...] = (
    text_of("target", "target", names_row=True),
    text_of("topology", "verdict"),
    *numbers(whole={"runs": "n_runs"}),
    *numbers("topology", whole={"tests": "n_tests", "significant": "n_significant"}),
    *numbers("topology", p_value={"lowest p, adjusted": "p_adjusted"}),
    *numbers("topology of other runs", whole={"draws": "n_shuffled", "found": "n_shuffled_found"}),
    *numbers("planted feature", whole={"draws": "n_planted", "found": "n_planted_found"}),
    *numbers("best skill of a control", signed={"projections": "skill_projections", "twin": "skill_twin"}),
)
ROWS: tuple[Spec, ...] = (
    text_of("target", "target"),
    percent_of("seen, %", "fraction"),
    text_of("held out", "left_out"),
    text_of("by", "learner"),
    text_of("model", "model", names_row=True),
    *numbers(whole={"columns": "n_columns"}, plain={"MAE": "mae"}),
    text_of("compared with", "versus"),
    number_of("skill", "skill"),
    interval_of("95% interval", "skill_low", "skill_high", 3),
    *numbers(p_value={"p-value": "p", "p, ranks": "p_wilcoxon", "p, adjusted": "p_adjusted"}),
)
DRAW_COLUMNS: tuple[Spec, ...] = (
    text_of("target", "target"),
    percent_of("seen, %", "fraction"),
    text_of("control", "control", names_row=True),
    text_of("in place of", "model"),
    *numbers(plain={"noise": "noise"}, whole={"draws": "n_draws"}, signed={"mean skill": "skill"}),
    interval_of("range", "skill_least", "skill_most", 3),
    *numbers(whole={"significant": "n_found", "as good as topology": "n_as_good"}),
)


Schema = Mapping[str, Any]


def _population(data: StudyData) -> NestedPopulation:
    return data.once(
        "nested population",
        lambda: nested_population(data.trajectories, data.log, data.runs, data.population, data.targets),
    )


def _fitted(data: StudyData) -> nested.NestedModels | None:
    """Return the models of a population; None where there are too few runs for any."""
    population = _population(data)
    if len(population.runs) < nested.MIN_RUNS:
        return None
    return data.once("nested models", lambda: nested.nested_models(population, data.adjust, data.workers))


def _table(schema: Schema, part: Callable[[nested.NestedModels], pl.DataFrame]) -> Callable[[StudyData], pl.DataFrame]:
    """Return the function that computes a table of fitted models, without rows where there are none."""
    return lambda data: part(fitted) if (fitted := _fitted(data)) else pl.DataFrame(schema=schema)


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    models, draws, verdicts = (data.tables[name] for name in SECTION.tables)
    if not len(models):
        return ()
    left_out = _population(data).left_out
    rows = models.filter(left_out=CONFIGURATIONS, learner=nested.RIDGE).to_dicts()
    full = table("nested-models-all", "Every model, however runs are held out", ROWS, models.to_dicts(), sortable=True)
    main = table("nested-models", "Models by ridge regression, on held-out runs", ROWS, rows, sortable=True)
    drawn = table("nested-draws", "Topology of other runs, and planted features", DRAW_COLUMNS, draws.to_dicts())
    return (
        *(paragraph(text) for text in verdicts.get_column("sentence")),
        table("nested-verdicts", "What topology adds, and what its controls do", VERDICTS, verdicts.to_dicts()),
        *pictures,
        paragraph(
            "Each model has the columns of the one named next to it and some more; topology, projections and twin are "
            f"each added to the model '{WITH_PLAIN}'. Skill is 1 − MAE / MAE of the model next to it, on runs it was "
            f"not fitted to. {_elsewhere(models)}"
        ),
        excluded(left_out),
        *(folded(each, max_rows=0) for each in (main, full, drawn)),
        linked("All: nested_models.csv, nested_draws.csv, nested_verdicts.csv."),
    )


def _elsewhere(models: pl.DataFrame) -> str:
    """Say what topology adds where whole sizes, bands of learning rates or corpora are held out."""
    target = models.get_column("target").item(0)
    tested = models.filter(nested.tested_rows()).get_column("model").unique()
    others = models.filter(pl.col("left_out") != CONFIGURATIONS, pl.col("model").is_in(tested.to_list()), target=target)
    said = [
        f"{formats.percent(min(part['skill']))} to {formats.percent(max(part['skill']))} with whole {name} held out"
        for (name,), part in others.group_by("left_out", maintain_order=True)
    ]
    return f"Of the {target} topology's skill is {'; '.join(said)}." if said else ""


def _methods(data: StudyData) -> Iterable[Block | None]:
    return (paragraph(RULE),) if len(data.tables["nested_models"]) else ()


def _shortfall(data: StudyData) -> str:
    n = len(_population(data).runs)
    return f"{nested.MIN_RUNS} runs to compare; {counted(n, 'run')} can be" if n < nested.MIN_RUNS else ""


def _summary(data: StudyData) -> list[str]:
    """Say what topology adds to a forecast of the final loss."""
    if not len(data.tables["nested_models"]):
        return []
    return data.tables["nested_verdicts"].get_column("sentence").to_list()[:1]


def _finding(data: StudyData) -> str:
    if not len(data.tables["nested_models"]):
        return ""
    return finding(*data.tables["nested_verdicts"].select("target", "verdict").row(0))


SECTION = ReportSection(
    anchor="nested-models",
    title="What topology adds to a forecast",
    position=96,
    tables={
        "nested_models": _table(nested.MODELS, lambda fitted: fitted.models),
        "nested_draws": _table(nested.DRAWS, lambda fitted: fitted.draws),
        "nested_verdicts": _table(SCHEMA, nested_verdicts),
    },
    charts=(nested_models_charts,),
    blocks=_blocks,
    finding=_finding,
    summary=_summary,
    summary_position=4,
    methods=_methods,
    needs=dict.fromkeys(("nested_models", "nested_draws", "nested_verdicts"), (_shortfall,)),
)
