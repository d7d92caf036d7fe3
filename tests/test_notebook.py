"""What objects show in a notebook: static, small, escaped, and without reading a tensor."""

import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from small_studies import NEURAL_PERSISTENCE, series_study, write_series

import toposcope as ts
from toposcope.checkpoints import Checkpoint
from toposcope.forecasting.scaling.points import Points
from toposcope.homology import Diagram
from toposcope.integrity import Diagnosis, Finding
from toposcope.logs import Log
from toposcope.notebook import facts_table
from toposcope.study import run_study

HOSTILE = "</table><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\u202e"
TAGS = {"table", "caption", "tr", "th", "td", "bdi", "p"}
ATTRIBUTES = {"style", "scope"}


class Reader(HTMLParser):
    """Collects texts; refuses tags and attributes that a table of facts has no use for."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        assert not any("color" in (value or "") or "url" in (value or "") for _, value in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def texts(shown: Any) -> list[str]:
    """Return the texts of an object's HTML, which must be small and harmless."""
    html = shown if isinstance(shown, str) else shown._repr_html_()
    assert len(html.encode()) < 20_000
    return Reader(html).texts


def points() -> Points:
    """Return losses that follow a law."""
    grid = list(product((5e7, 1e8, 2e8, 4e8, 8e8), (5e9, 2e10, 8e10)))
    N, D = (np.array(axis) for axis in zip(*grid, strict=True))
    return Points(N, D, 1.8 + 400 / N**0.34 + 2000 / D**0.36)


@examples(100)
@given(title=st.text(), facts=st.dictionaries(st.text(), st.text()), rows=st.lists(st.tuples(st.text(), st.integers())))
def test_any_text_stays_text(title: str, facts: dict[str, str], rows: list[tuple[str, int]]) -> None:
    Reader(facts_table(title, facts, ("name", "number"), rows))


def test_a_long_table_is_cut_and_says_so() -> None:
    shown = texts(facts_table("Many", {}, ("name",), ([HOSTILE * 10] for _ in range(10_000))))
    n_shown = sum(text.startswith("</table>") for text in shown)
    assert shown[-1] == f"and {10_000 - n_shown:,} more"
    assert 0 < n_shown < 100


def test_a_diagram() -> None:
    shown = texts(Diagram(np.array([[0.0, 0.5], [0.0, 0.0]]), 1, n_truncated=3))
    assert shown[:3] == ["Persistence diagram, H1", "finite bars", "1"]
    assert {"of length zero", "longest", "0.5", "truncated", "3"} <= set(shown)
    assert "longest" not in texts(Diagram(np.empty((0, 2)), 0))


def test_checkpoints_and_series_are_shown_without_being_read(tmp_path: Path) -> None:
    folder = tmp_path / "<b>run & co"
    folder.mkdir()
    for step in range(300):
        (folder / f"step_{step}.pt").write_bytes(b"no checkpoint at all")
    series = ts.series(folder)
    shown = texts(series)
    assert {"Series <b>run & co", "300", "step_0.pt"} <= set(shown)
    assert texts(series[7])[-2:] == ["step", "7"]
    assert HOSTILE in texts(Checkpoint(f"/nowhere/{HOSTILE}", 0))[2]


def test_a_study(tmp_path: Path) -> None:
    declaration = series_study(write_series(tmp_path / "a<b>&c", [0, 10]), [NEURAL_PERSISTENCE])
    assert not run_study(declaration, tmp_path / "study")
    study = ts.Study.load(tmp_path / "study")
    shown = texts(study)
    assert {"neural_persistence", "checkpoints", "2"} <= set(shown)
    assert "a<b>&c" in shown
    (tmp_path / "study" / "study.db").write_bytes(b"damaged")
    assert any("study.db" in text for text in texts(ts.Study.load(tmp_path / "study")))


def test_the_doctors_findings() -> None:
    findings = [Finding("duplicate", "fault", tuple(range(1000)), HOSTILE, HOSTILE) for _ in range(500)]
    shown = texts(Diagnosis(HOSTILE, True, 10, 20, 500, 0, findings))
    assert shown[0] == f"Doctor: {HOSTILE}"
    assert "10 checkpoints, 20 tensors: 500 faults, 0 notes" in shown
    assert shown[-1].endswith(" more")


@pytest.mark.parametrize("n", [250, 500])
def test_a_forecast(n: int) -> None:
    steps = np.arange(20, 20 * n + 1, 20)
    log = Log(HOSTILE, steps, np.asarray(2 + 3 * steps**-0.3, dtype=np.float64), np.full(n, 3e-4))
    report = ts.forecast(log, schedule="constant:steps=10000")
    shown = texts(report)
    assert shown[0] == f"Forecast of {HOSTILE}"
    assert report.headline() in shown
    assert ("median" in shown) == (n == 250)
    assert report.plot().render("svg").startswith(b"<svg")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": 1e21}, {"Compute-optimal model", "best fresh run"}),
        ({"extra": 1e21, "parameters": 1e8, "tokens": 1e10}, {"Continue or scale", "advice", "reason"}),
    ],
)
def test_an_advice_and_its_decision(options: dict[str, float], words: set[str]) -> None:
    advice = ts.decide(points(), resamples=20, **options)  # type: ignore[arg-type]
    assert words <= set(texts(advice))
    if advice.decision is not None:
        assert {"answer", advice.decision.answer, "continue", "scale"} <= set(texts(advice.decision))


def test_showing_an_object_does_not_import_altair() -> None:
    code = (
        "import sys; from toposcope.homology import Diagram; import numpy as np; "
        "Diagram(np.empty((0, 2)), 0)._repr_html_(); print('altair' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
