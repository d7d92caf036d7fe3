"""Neural persistence by condition and over training, and the grid of early stopping."""

import altair as alt
import polars as pl

from toposcope.charts import Chart
from toposcope_experiments.regularisation.comparison import ALL_SHOWN, AT_STEP
from toposcope_experiments.regularisation.design import FACTORS, PLAIN
from toposcope_experiments.regularisation.features import BEYOND, NP, PLACEBO
from toposcope_experiments.regularisation.page import RegularisationData
from toposcope_experiments.regularisation.stopping import CALLED, PATIENCE_RULES
from toposcope_experiments.regularisation.training import TEST_ACCURACY
from toposcope_experiments.small_networks.course_chart import course_panel, course_rows

PANELS = {NP: "neural persistence", PLACEBO: "the same of permuted weights", BEYOND: "the first less the second"}
PANELS |= {TEST_ACCURACY: "test accuracy"}
COLUMNS = 2
DOT_WIDTH, ROW_HEIGHT, CELL = 460, 14, 34
CELL_OPACITY = 0.4  # the numbers in the cells can be read on a light and on a dark page


def condition_chart(data: RegularisationData) -> Chart:
    """Draw neural persistence, that of the placebo and the test accuracy of every run, by condition."""
    verdicts = data.tables["verdicts"].filter(feature=NP, view=AT_STEP)
    shown = verdicts.filter(pl.col("verdict").is_in(ALL_SHOWN))
    n_alone = len(shown.filter(pl.col("controls") == ""))
    alone = f", in {n_alone or 'none'} of them alone" if len(shown) else ""
    title = f"At equal step neural persistence differs in {len(shown)} of {len(verdicts)} pairs{alone}"
    caption = (
        "A dot for each run at the last step, a line at the mean of its condition. Alone: neither norms nor spectrum "
        "nor the placebo differ."
    )
    alternative = f"Dot plots of {', '.join(PANELS.values())} by condition. {title}."
    runs = data.tables["runs"].select("condition", "run", *PANELS)
    order = [condition.name for condition in data.measured.conditions]
    panels = []
    for name, text in PANELS.items():
        rows = runs.select("condition", "run", value=pl.col(name))
        axis = alt.Axis(labelLimit=160, grid=True)
        base = alt.Chart(rows).encode(y=alt.Y("condition:N", title=None, sort=order, axis=axis))
        x = alt.X("value:Q", title=text, scale=alt.Scale(zero=False))
        tooltip = ["condition:N", "run:O", alt.Tooltip("value:Q", format=".4~g")]
        dots = base.mark_point(filled=True, size=28, opacity=0.45).encode(x=x, tooltip=tooltip)
        means = base.mark_tick(thickness=2, size=ROW_HEIGHT).encode(x=alt.X("mean(value):Q", title=text))
        panels.append(alt.LayerChart(layer=[dots, means]).properties(width=DOT_WIDTH, height=ROW_HEIGHT * len(order)))
    return Chart("regularisation-conditions", title, caption, alternative, alt.vconcat(*panels))


def course_chart(data: RegularisationData) -> Chart:
    """Draw neural persistence over training: a panel for each factor, with plain networks."""
    measured = data.measured
    title = "Neural persistence over training, by what is varied"
    caption = "Lines: means over runs; bands: from the lowest to the highest run. Plain networks are in every panel."
    panels = []
    for factor in FACTORS:
        varied = [c for c in measured.conditions if c == PLAIN or c.factor == factor]
        places = {condition.name: measured.places(condition) for condition in varied}
        rows = course_rows(factor, measured.values[NP], measured.steps, places)
        panels.append(course_panel(rows, factor, factor, list(places), legend_columns=1))
    figure = alt.concat(*panels, columns=COLUMNS).resolve_scale(color="independent")
    return Chart("regularisation-courses", title, caption, f"Line charts. {title}.", figure)


def stopping_chart(data: RegularisationData) -> Chart:
    """Draw what is saved and lost on the grid of patience and burn-in."""
    table = data.tables["grid"].filter(pl.col("patience").is_not_null())
    rules = [CALLED[rule] for rule in PATIENCE_RULES]
    title = "What patience saves and costs at each setting, by what it watches"
    caption = "Means over all runs: the share of the epochs saved above, the points of test accuracy lost below."
    alternative = f"Heat maps of patience by burn-in, for {', '.join(rules)}. {title}."
    rows = [
        alt.hconcat(*(_heat_map(table.filter(rule=rule), rule, name, words) for rule in rules))
        for name, words in (("saved", "saved"), ("lost", "points lost"))
    ]
    figure = alt.vconcat(*rows).resolve_scale(color="independent")
    return Chart("regularisation-grid", title, caption, alternative, figure)


def _heat_map(rows: pl.DataFrame, rule: str, name: str, words: str) -> alt.LayerChart:
    written = "datum.saved, '.0%'" if name == "saved" else "datum.lost, '.1f'"
    low, high = f"{name}_low", f"{name}_high"
    rows = rows.select("patience", "burn_in", name, low, high)
    base = alt.Chart(rows).encode(
        x=alt.X("patience:O", title="patience (epochs)", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("burn_in:O", title="burn-in"),
        tooltip=["patience:O", "burn_in:O", *(alt.Tooltip(f"{key}:Q", format=".3~g") for key in (name, low, high))],
    )
    cells = base.mark_rect(opacity=CELL_OPACITY).encode(color=alt.Color(f"{name}:Q", legend=None, title=words))
    text = base.transform_calculate(written=f"format({written})").mark_text(fontSize=10).encode(text="written:N")
    figure: alt.LayerChart = alt.LayerChart(layer=[cells, text], title=f"{rule}: {words}")
    return figure.properties(width=CELL * 5, height=CELL * 3)
