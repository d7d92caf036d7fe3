"""The loss on a plane around a checkpoint, as the probe `landscape` stored it."""

from dataclasses import replace

import msgspec
import numpy as np

from toposcope.charts.chart import Chart
from toposcope.errors import ToposcopeError
from toposcope.probes.feature import NETWORK
from toposcope.report.charts.series import largest_run, runs_in
from toposcope.report.study_data import StudyData
from toposcope.study.landscape_charts import plane_contour


def stored_plane_chart(data: StudyData) -> Chart | None:
    """Draw the first plane around the last checkpoint of the largest run, of the first probe that stored one."""
    for label, options in data.labels.filter(probe="landscape").select("label", "options").iter_rows():
        measured = data.frame.filter(probe="landscape", options=options, layer=NETWORK)
        if not (runs := runs_in(data, measured)):
            continue
        run = largest_run(runs, data.runs).run
        step = max(measured.filter(run=run).get_column("step"))
        try:
            values = data.states(run, step, label)[NETWORK].astype(np.float64)
        except (ToposcopeError, KeyError):  # its file is missing, or its points are scattered
            continue
        declared = msgspec.json.decode(options)
        x, y = (np.linspace(-declared["span"], declared["span"], side) for side in values.shape)
        chart = plane_contour(values, x, y, declared["directions"], name="loss-plane")
        return replace(chart, title=f"{run}, step {step:,}: {chart.title}")
    return None
