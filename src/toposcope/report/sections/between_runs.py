"""What topology adds to a forecast of how held-out runs end; first on the page where that can be asked."""

import math
from collections.abc import Iterable, Sequence

import altair as alt
import polars as pl

from toposcope.analysis.between_runs.columns import CHAIN, LOSS, PLACEBOS, PLAIN
from toposcope.analysis.between_runs.gain import ALL_TOPOLOGY, MIN_CONFIGURATIONS, SCHEMA, gain_table
from toposcope.analysis.between_runs.population import CONFIGURATIONS, RunPopulation, run_population
from toposcope.analysis.between_runs.verdict import RULE, finding, sentence, topology_rows
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


def between_runs_charts(data: StudyData) -> list[Chart]:
    """Draw the skill of topology and its placebos for each target, and the errors of the models of the first one."""
    frame = data.tables["between_runs"]
    rows = frame.filter(held_out=CONFIGURATIONS) if len(frame) else frame
    topology = topology_rows(rows).get_column("added").unique(maintain_order=True).to_list() if len(rows) else []
    if not topology:
        return []
    whole = ALL_TOPOLOGY if ALL_TOPOLOGY in topology else topology[0]
    return [_skills(rows, whole), _errors(rows.filter(target=rows.item(0, "target")), whole)]


def _skills(rows: pl.DataFrame, whole: str) -> Chart:
    title = finding(rows)
    caption = (
        "By how much the error on held-out runs is smaller than that of the model before; bars: 95%. Dashed: the "
        "smallest gain of topology given everything else that would be detected 4 times in 5."
    )
    names = {LOSS: f"{whole}, given the loss alone", "": f"{whole}, given everything else"}
    alone = (pl.col("given") == LOSS) & (pl.col("added") == whole)
    rows = rows.filter(pl.col("added").is_in([whole, *PLACEBOS.values()]), pl.col("skill").is_finite()).with_columns(
        model=pl.when(alone).then(pl.lit(names[LOSS])).when(added=whole).then(pl.lit(names[""])).otherwise("added")
    )
    shown = [*names.values(), *(name for name in PLACEBOS.values() if name in rows["added"])]
    known = [v for c in ("low", "high", "skill", "detectable") for v in rows[c] if v is not None and math.isfinite(v)]
    low, high = max(min([-MIN_SHOWN, *known]), MIN_SKILL), min(max([MIN_SHOWN, *known]), MAX_SKILL)
    scale = alt.Scale(domain=[low, high], clamp=True)
    panels = [_panel(part, shown, scale) for _, part in rows.group_by("target", maintain_order=True)]
    alternative = f"Line charts of the skill of {', '.join(shown)} against the share of training seen. {title}."
    return Chart("between-runs-skill", title, caption, alternative, alt.concat(*panels, columns=COLUMNS))


def _panel(rows: pl.DataFrame, shown: list[str], scale: alt.Scale) -> alt.LayerChart:
    columns = ("skill", "low", "high", "detectable")
    kept = rows.select("fraction", "model", *(pl.col(c).fill_nan(None) for c in columns))
    base = alt.Chart(kept).encode(
        X, color=alt.Color("model:N", title=None, sort=shown, legend=alt.Legend(columns=2))
    )  # fmt: skip
    tooltip = ["model:N", alt.Tooltip("fraction:Q", format=".0%"), alt.Tooltip("skill:Q", format="+.1%")]
    gains = alt.Chart(kept.drop_nulls("detectable").select("fraction", "detectable"))
    y = alt.Y("skill:Q", title="skill", axis=alt.Axis(format="+%"), scale=scale)
    layers = [
        gains.mark_line(strokeDash=[4, 4], color=MUTED).encode(X, alt.Y("detectable:Q", scale=scale)),
        zero_line("y"),
        base.mark_rule(opacity=0.5).encode(alt.Y("low:Q", scale=scale), y2="high:Q"),
        base.mark_line(point={"size": 30}, clip=True).encode(y, tooltip=tooltip),
    ]
    figure: alt.LayerChart = alt.LayerChart(layer=layers).properties(
        title=rows.item(0, "target"), width=PANEL_WIDTH, height=PANEL_HEIGHT
    )
    return figure


def _errors(rows: pl.DataFrame, whole: str) -> Chart:
    target = rows.item(0, "target")
    rows = rows.filter(pl.col("added").is_in([*CHAIN, whole]), (pl.col("added") != whole) | (pl.col("given") != LOSS))
    names = {name: name if name == LOSS else f"+ {name}" for name in rows["added"].unique(maintain_order=True)}
    known = rows.filter(added=PLAIN).sort("fraction").get_column("mae")
    title = f"With norms and spectra the error of the {target} falls from {known[0]:.3g} to {known[-1]:.3g}"
    caption = "Mean absolute error on held-out runs, by the share of training seen; each model adds to the one above."
    figure = alt.Chart(rows.select("fraction", "mae", model=pl.col("added").replace_strict(names))).mark_line(
        point={"size": 30}
    ).encode(
        X, alt.Y("mae:Q", title="mean absolute error", scale=alt.Scale(type="log", nice=False, padding=10)),
        color=alt.Color("model:N", title=None, sort=[*names.values()], legend=alt.Legend(columns=2)),
        tooltip=["model:N", alt.Tooltip("fraction:Q", format=".0%"), alt.Tooltip("mae:Q", format=".4f")],
    )  # fmt: skip
    alternative = f"Line chart of the error of {', '.join(names.values())} against the share of training seen. {title}."
    return Chart("between-runs-errors", title, caption, alternative, figure)


SPECS: tuple[Spec, ...] = (
    text_of("target", "target"),
    percent_of("seen, %", "fraction"),
    text_of("held out", "held_out"),
    text_of("given", "given"),
    text_of("added", "added", names_row=True),
    *numbers(whole={"columns": "n_columns"}, plain={"MAE": "mae"}),
    number_of("skill", "skill"),
    interval_of("95% interval", "low", "high", 3),
    *numbers(p_value={"p-value": "p", "p, adjusted": "p_adjusted"}, signed={"detectable": "detectable"}),
)


def _population(data: StudyData) -> RunPopulation:
    return data.once(
        "run population",
        lambda: run_population(data.trajectories, data.log, data.runs, data.population, data.targets),
    )


def _table(data: StudyData) -> pl.DataFrame:
    """Return the table; without rows where there are too few runs for any."""
    population = _population(data)
    return pl.DataFrame(schema=SCHEMA) if _shortfall(data) else gain_table(population, data.workers)


def _targets(data: StudyData) -> list[pl.DataFrame]:
    frame = data.tables["between_runs"]
    return frame.partition_by("target", maintain_order=True) if len(frame) else []


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    frame = data.tables["between_runs"]
    if not len(frame):
        return ()
    rows = frame.filter(pl.col("fraction").is_not_null())
    main = table(
        "between-runs", "Topology, given everything else", SPECS, topology_rows(rows).to_dicts(), sortable=True
    )
    full = table("between-runs-all", "Every model, however runs are held out", SPECS, rows.to_dicts(), sortable=True)
    return (
        *(paragraph(sentence(of_target)) for of_target in _targets(data)),
        *pictures,
        paragraph(
            "Each model has the columns given, those before them and those added. Skill is 1 − MAE / MAE without the "
            f"columns added, on runs that neither was fitted to. {_elsewhere(rows)}"
        ),
        excluded(_population(data).left_out),
        *(folded(each, max_rows=0) for each in (main, full)),
        linked("All: between_runs.csv."),
    )


def _elsewhere(rows: pl.DataFrame) -> str:
    """Say what topology adds where whole sizes, bands of learning rates or corpora are held out."""
    added = topology_rows(rows).get_column("added").unique()
    others = rows.filter(
        pl.col("held_out") != CONFIGURATIONS, pl.col("given") != LOSS, pl.col("added").is_in(added.to_list())
    )
    first = rows.item(0, "target") if len(rows) else ""
    said = [
        f"{formats.percent(min(part['skill']))} to {formats.percent(max(part['skill']))} with whole {name} held out"
        for (name,), part in others.filter(target=first).group_by("held_out", maintain_order=True)
    ]
    return f"Of the {first} topology's skill is {'; '.join(said)}." if said else ""


def _shortfall(data: StudyData) -> str:
    n = len(_population(data).runs)
    return "" if n >= MIN_CONFIGURATIONS else f"{MIN_CONFIGURATIONS} runs to compare; {counted(n, 'run')} can be"


SECTION = ReportSection(
    anchor="between-runs",
    title="What topology adds between runs",
    position=95,
    tables={"between_runs": _table},
    charts=(between_runs_charts,),
    blocks=_blocks,
    finding=lambda data: "".join(map(finding, _targets(data)[:1])),
    summary=lambda data: list(map(sentence, _targets(data)[:1])),
    summary_position=4,
    methods=lambda data: [paragraph(RULE)] if len(data.tables["between_runs"]) else (),
    needs={"between_runs": (_shortfall,)},
)
