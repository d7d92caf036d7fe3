"""Which checkpoints carry which finding of the doctor."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from toposcope.analysis.wording import counted
from toposcope.charts.chart import Chart
from toposcope.charts.theme import FAULT, MUTED, RUNS
from toposcope.charts.training import step_axis
from toposcope.integrity.finding import Finding

EXAMINED = "examined"
ROW_HEIGHT = 26
LOOKS = {
    "fault": (FAULT, "triangle-up"), "note": (RUNS[5], "circle"), EXAMINED: (MUTED, "M-0.07,-0.7h0.14v1.4h-0.14Z"),
}  # fmt: skip
"""Colour and shape by severity; a checkpoint examined is a thin bar."""


def findings_chart(findings: Sequence[Finding], steps: Sequence[int]) -> Chart | None:
    """Draw a row for each check that found something and one for the checkpoints examined, over the steps.

    Parameters
    ----------
    findings : sequence of Finding
    steps : sequence of int
        Of the checkpoints examined.
    """
    rows: list[tuple[str, int, str, str]] = [
        (f.check, step, f.severity, f.message) for f in findings for step in f.steps
    ]
    if not rows:
        return None
    rows += [(EXAMINED, step, EXAMINED, "") for step in steps]
    schema = {"check": pl.String, "step": pl.Int64, "severity": pl.String, "finding": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    checks = frame["check"].unique(maintain_order=True).to_list()
    kinds = [kind for kind in LOOKS if kind in frame["severity"].to_list()]
    colours, shapes = ([LOOKS[kind][i] for kind in kinds] for i in range(2))
    figure = alt.Chart(frame).mark_point(size=90, filled=True, opacity=0.85).encode(
        step_axis(frame),
        alt.Y("check:N", title=None, scale=alt.Scale(domain=checks), axis=alt.Axis(grid=True)),
        color=alt.Color("severity:N", title=None, scale=alt.Scale(domain=kinds, range=colours)),
        shape=alt.Shape("severity:N", title=None, scale=alt.Scale(domain=kinds, range=shapes)),
        tooltip=["check", "severity", "step", "finding"],
    ).properties(height=ROW_HEIGHT * len(checks))  # fmt: skip
    faults = [set(finding.steps).intersection(steps) for finding in findings if finding.severity == "fault"]
    faulty, elsewhere = len(set().union(*faults)), sum(not at for at in faults)
    title = f"{faulty} of {len(steps)} checkpoints carr{'y' if faulty > 1 else 'ies'} a fault"
    if not faulty:
        title = f"No checkpoint of {len(steps)} carries a fault"
    if elsewhere:
        title += f"; {counted(elsewhere, 'fault concerns', 'faults concern')} no examined checkpoint"
    caption = "Each row is a check that found something; the last row shows the checkpoints examined."
    text = f"Strip chart of the steps that each finding concerns. {title}; checks: {', '.join(checks[:-1])}."
    return Chart("findings", title, caption, text, figure)
