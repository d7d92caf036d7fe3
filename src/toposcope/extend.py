"""The door for extensions: what probes, inputs, formats, sources, forecasters, sinks, sections and commands import.

A package of your own imports from here, from `toposcope` and from `toposcope.homology`; every other module may move.
Each kind of extension, with its entry point and an example that runs: ``docs/extend.md``.
"""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_names

__all__ = [  # noqa: RUF022 - by what one writes
    # anything
    "ToposcopeError",
    "derive_seed",
    # a probe
    "Probe",
    "Subject",
    "Measurement",
    "Failure",
    "Layer",
    "Kind",
    "Feature",
    "NETWORK",
    "POOLED",
    "each_layer",
    "by_stacks",
    "stacked",
    "as_float_matrix",
    "Diagram",
    # an input of probes
    "Need",
    "RunContext",
    "Origin",
    "Checkpoint",
    # a checkpoint format
    "Entry",
    "Listing",
    "Inside",
    "contiguous",
    "as_array",
    "CheckpointError",
    # a source of checkpoints
    "Source",
    "StoredFile",
    "Files",
    "Bytes",
    "Access",
    "LocalSource",
    "check_range",
    # a log format
    "RawLog",
    "Log",
    # an evaluation format
    "RawEvaluations",
    "EvaluationFile",
    "as_raw",
    # a forecaster
    "Forecaster",
    "Forecast",
    "LawForecaster",
    "FittedLossCurve",
    "LoggedRun",
    "RefusedError",
    "Schedule",
    "window",
    "usable_siblings",
    "cached",
    # a sink
    "Sink",
    "Event",
    "Logged",
    "Measured",
    "Note",
    "Alert",
    "Forecasted",
    # a section of a report, and a chart
    "ReportSection",
    "Material",
    "BacktestMaterial",
    "Trajectory",
    "Block",
    "Picture",
    "say",
    "csv",
    "details",
    "table",
    "number_of",
    "text_of",
    "interval_of",
    "percent_of",
    "Chart",
    "training_lines",
    # a command
    "BadUse",
    "bad_use",
    "progress_bars",
    "print_table",
    "print_json",
    "series_options",
    "workers_option",
    "Opening",
    "Progress",
]

if TYPE_CHECKING:
    from toposcope.analysis.trajectories import Trajectory
    from toposcope.charts.chart import Chart
    from toposcope.charts.training import training_lines
    from toposcope.checkpoints import Access, Checkpoint, Layer
    from toposcope.checkpoints.formats.contents import Inside
    from toposcope.checkpoints.formats.entry import Entry, Listing, as_array, contiguous
    from toposcope.checkpoints.sources.local import LocalSource
    from toposcope.checkpoints.sources.source import Bytes, CheckpointError, Files, Source, StoredFile, check_range
    from toposcope.cli.shared import (
        BadUse,
        Opening,
        bad_use,
        print_json,
        print_table,
        progress_bars,
        series_options,
        workers_option,
    )
    from toposcope.errors import ToposcopeError
    from toposcope.forecasting.caching import cached
    from toposcope.forecasting.forecaster import Forecast, Forecaster, LoggedRun, RefusedError
    from toposcope.forecasting.forecasters.law_forecaster import FittedLossCurve, LawForecaster
    from toposcope.forecasting.forecasters.window import window
    from toposcope.forecasting.schedules.schedule import Schedule
    from toposcope.forecasting.siblings import usable_siblings
    from toposcope.homology import Diagram
    from toposcope.homology.arrays import as_float_matrix
    from toposcope.logs import Log
    from toposcope.logs.evaluations.material import EvaluationFile
    from toposcope.logs.evaluations.raw import RawEvaluations, as_raw
    from toposcope.logs.raw import RawLog
    from toposcope.models import Origin
    from toposcope.monitor.events import Alert, Event, Forecasted, Logged, Measured, Note
    from toposcope.monitor.sinks.sink import Sink
    from toposcope.probes import Failure, Feature, Kind, Measurement, Probe, Subject
    from toposcope.probes.feature import NETWORK
    from toposcope.probes.needs import Need, RunContext
    from toposcope.probes.probe import POOLED, each_layer, stacked
    from toposcope.probes.stacks import by_stacks
    from toposcope.progress import Progress
    from toposcope.report.backtest import BacktestMaterial
    from toposcope.report.document import Block, Picture, csv, details, say
    from toposcope.report.material import Material
    from toposcope.report.section import ReportSection
    from toposcope.report.tables import interval_of, number_of, percent_of, table, text_of
    from toposcope.seeds import derive_seed

_HOMES = {
    "analysis.trajectories": "Trajectory",
    "charts.chart": "Chart",
    "charts.training": "training_lines",
    "checkpoints": "Access Checkpoint Layer",
    "checkpoints.formats.contents": "Inside",
    "checkpoints.formats.entry": "Entry Listing as_array contiguous",
    "checkpoints.sources.local": "LocalSource",
    "checkpoints.sources.source": "Bytes CheckpointError Files Source StoredFile check_range",
    "cli.shared": "BadUse Opening bad_use print_json print_table progress_bars series_options workers_option",
    "errors": "ToposcopeError",
    "forecasting.caching": "cached",
    "forecasting.forecaster": "Forecast Forecaster LoggedRun RefusedError",
    "forecasting.forecasters.law_forecaster": "FittedLossCurve LawForecaster",
    "forecasting.forecasters.window": "window",
    "forecasting.schedules.schedule": "Schedule",
    "forecasting.siblings": "usable_siblings",
    "homology": "Diagram",
    "homology.arrays": "as_float_matrix",
    "logs": "Log",
    "logs.evaluations.material": "EvaluationFile",
    "logs.evaluations.raw": "RawEvaluations as_raw",
    "logs.raw": "RawLog",
    "models": "Origin",
    "monitor.events": "Alert Event Forecasted Logged Measured Note",
    "monitor.sinks.sink": "Sink",
    "probes": "Failure Feature Kind Measurement Probe Subject",
    "probes.feature": "NETWORK",
    "probes.needs": "Need RunContext",
    "probes.probe": "POOLED each_layer stacked",
    "probes.stacks": "by_stacks",
    "progress": "Progress",
    "report.backtest": "BacktestMaterial",
    "report.document": "Block Picture csv details say",
    "report.material": "Material",
    "report.section": "ReportSection",
    "report.tables": "interval_of number_of percent_of table text_of",
    "seeds": "derive_seed",
}

# So that a package that adds one small thing does not import torch, numba or altair for all others.
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"toposcope.{home}" for home, names in _HOMES.items() for name in names.split()}
)
