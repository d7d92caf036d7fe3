"""The isoFLOP figure says what the plan says, and can be read."""

import re

import numpy as np
import pytest
from matplotlib.text import Text

from toposcope.forecasting.scaling.planner import plan
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw, scaling_law
from toposcope.report.figures.chart import REPRODUCIBLE_METADATA, SMALL, STYLE, WIDTH, Chart
from toposcope.report.figures.isoflop import isoflop_chart
from toposcope.report.rendering import render

LAW = ScalingLaw(1.8, 400, 2000, 0.34, 0.37)


@pytest.fixture(scope="module")
def fitted() -> FittedScalingLaw:
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e8, 1e10, 8), np.geomspace(1e9, 3e11, 6)))
    loss = LAW.loss(N, D) * np.exp(np.random.default_rng(0).normal(0, 4e-3, len(N)))
    return scaling_law(Points(N, D, loss), resamples=100)


def readable(drawn: Chart) -> None:
    assert not re.search(r"\bnan\b|None|\binf\b|\{|  ", drawn.caption + drawn.alt), drawn.caption
    assert len(drawn.alt) > 60
    assert render(drawn.figure, STYLE, REPRODUCIBLE_METADATA)["png"]
    for text in drawn.figure.findobj(Text):
        assert not text.get_text().strip() or float(text.get_fontsize()) >= SMALL
    box = drawn.figure.get_tightbbox()
    assert min(box.x0, box.y0, WIDTH - box.x1) > -0.02


def test_the_caption_is_the_plan(fitted: FittedScalingLaw) -> None:
    far = plan(fitted, 1e24)
    drawn = isoflop_chart(fitted, far)
    readable(drawn)
    loss, ratio = far.loss, far.tokens_per_parameter.value
    assert drawn.caption.startswith("With 10²⁴ FLOP the best model has")
    assert (
        f"({ratio:.3g} a parameter) and reaches {loss.value:.3f} ({loss.low:.3f} to {loss.high:.3f})" in drawn.caption
    )
    assert f"{far.beyond['C']:.3g} times beyond the compute of any point" in drawn.caption
    labels = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert labels[-2:] == ["C = 10²⁴ (planned)", "best size N*"]
    assert len(labels) == 6


def test_without_a_plan_and_without_a_bootstrap(fitted: FittedScalingLaw) -> None:
    alone = isoflop_chart(fitted)
    readable(alone)
    assert alone.caption.startswith("Compute-optimal parameters grow as C^0.5")
    bare = isoflop_chart(FittedScalingLaw(fitted.law, (), {}, 0.0, fitted.points))
    readable(bare)
    assert "intervals" not in bare.caption


def test_equal_laws_give_equal_bytes(fitted: FittedScalingLaw) -> None:
    first, again = (render(isoflop_chart(fitted).figure, STYLE, REPRODUCIBLE_METADATA) for _ in range(2))
    assert first == again
