"""The figure of early stopping: it says what the tables say, and can be read."""

import re

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
from matplotlib.text import Text
from named_features import by_feature

from toposcope.analysis.trajectories import Trajectory
from toposcope.experiments.early_stopping.chart import early_stopping as draw
from toposcope.experiments.early_stopping.early_stopping import EarlyStopping, early_stopping
from toposcope.report.figures.chart import REPRODUCIBLE_METADATA, SMALL, STYLE, WIDTH, Chart
from toposcope.report.rendering import render

PLACES = np.arange(51)


def found(n_runs: int = 20) -> EarlyStopping:
    """Runs that fall until a step of their own, where patience on the loss is right and neural persistence wrong."""
    ends = np.linspace(12, 40, n_runs).round()
    runs = [
        Trajectory(
            f"run-{i}",
            PLACES * 100,
            by_feature({"neural_persistence np_normalized": 0.3 + 0.01 * np.minimum(PLACES, ends[-1 - i])}),
            {"validation_loss": 3 - 0.05 * np.minimum(PLACES, end)},
            {"step": np.asarray(PLACES * 100.0)},
        )
        for i, end in enumerate(ends)
    ]
    frame = pl.DataFrame({"run": [t.run for t in runs], "n_parameters": 10, "status": "complete", "last_step": 5000})
    log = pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "flops": pl.Float64})
    return early_stopping(runs, log, frame, lambda run, step: 0.5 * (1 - step / 5000) ** 2)


def drawn(of: EarlyStopping) -> Chart:
    with mpl.rc_context(STYLE):
        figure = draw(of)
    assert figure is not None
    return figure


@pytest.fixture(scope="module")
def figure() -> Chart:
    return drawn(found())


def test_the_figure_can_be_read_and_is_the_same_again(figure: Chart) -> None:
    files = render(figure.figure, STYLE, REPRODUCIBLE_METADATA)
    assert files == render(drawn(found()).figure, STYLE, REPRODUCIBLE_METADATA)
    assert figure.figure.get_figwidth() == WIDTH
    assert len(figure.alt) > 60
    assert not re.search(r"\bnan\b|None|\binf\b|\{|  ", figure.caption + figure.alt), figure.caption
    box = figure.figure.get_tightbbox()
    assert min(box.x0, box.y0, WIDTH - box.x1, figure.figure.get_figheight() - box.y1) > -0.02
    for text in figure.figure.findobj(Text):
        assert not text.get_text().strip() or float(text.get_fontsize()) >= SMALL, text


def test_the_caption_begins_with_the_answer() -> None:
    table = found()
    rules = {row["rule"]: row for row in table.rules.to_dicts()}
    caption = drawn(table).caption
    assert caption.startswith("Patience on the loss is better and patience on neural persistence")
    assert "worse than a fixed fraction of the steps that saves as much" in caption
    difference = f"{rules['neural_persistence_patience']['difference']:+.3f} nats"
    assert f"patience on neural persistence {difference} (Holm p" in caption
    assert "means over 20 runs" in caption


def test_too_few_runs_are_told_of() -> None:
    caption = drawn(found(3)).caption
    assert caption.startswith("No rule is shown to be better or worse than a fixed fraction")
    assert "3 runs cannot show that" in caption


def test_every_setting_is_a_mark(figure: Chart) -> None:
    table = found().matched
    above, below = figure.figure.axes
    marks = {"o": "neural_persistence_patience", "s": "loss_patience", "^": "forecast_gain"}
    for axes, column in ((above, "paid"), (below, "difference")):
        for marker, rule in marks.items():
            lines = [line for line in axes.lines if line.get_marker() == marker]
            data = [np.asarray(line.get_data(), dtype=np.float64).T for line in lines]
            points = sorted((float(x), float(y)) for x, y in np.vstack(data))
            rows = table.filter(rule=rule).select(pl.col("saved") * 100, column).rows()
            assert points == sorted(rows)
            low, high = axes.get_ylim()
            assert all(low < y < high for _, y in points)


def test_without_a_rule_there_is_no_figure() -> None:
    assert draw(found(0)) is None
