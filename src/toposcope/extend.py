"""The door for extensions: what probes, inputs, formats, sources, forecasters, sinks, sections and commands import.

A package of your own imports from here, from `toposcope` and from `toposcope.homology`; every other module may move.
Each kind of extension, with its entry point and an example that runs: ``docs/extend.md``.
"""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

# anything: errors, seeds, types of arrays, files
__all__ = ["ToposcopeError", "derive_seed", "Progress", "silent", "Vector", "Matrix", "Indices", "Steps"]
__all__ += ["write_bytes", "to_csv", "compiled"]
# a probe
__all__ += ["Probe", "ProbeInput", "Measurement", "Failure", "Layer", "Kind", "Feature", "Value"]
__all__ += ["NETWORK", "POOLED"]
__all__ += ["RipsProbe", "NOISE", "TOPOLOGY", "each_layer", "by_stacks", "stacked", "as_float_matrix", "Diagram"]
# an input of probes
__all__ += ["Input", "RunContext", "Origin", "Checkpoint"]
# a checkpoint format
__all__ += ["Entry", "Listing", "Inside", "Key", "contiguous", "as_array", "CheckpointError"]
# a source of checkpoints
__all__ += ["Source", "StoredFile", "Files", "Bytes", "Access", "LocalSource", "check_range", "is_checkpoint"]
__all__ += ["without_credentials"]
# a log format
__all__ += ["RawLog", "Log"]
# an evaluation format
__all__ += ["RawEvaluations", "EvaluationFile", "as_raw"]
# a forecaster, and what compares forecasters
__all__ += ["Forecaster", "Forecast", "LawForecaster", "FittedLossCurve", "LoggedRun", "RefusedError", "Schedule"]
__all__ += ["window", "usable_siblings", "cached", "complete_runs", "siblings_in_split", "run_forecasters", "planned"]
__all__ += ["known_schedule", "skills", "SKILLS", "fit_ridge", "Median", "COOLDOWN", "STACKED_LAWS", "stack_features"]
__all__ += ["fit_power_law", "MIN_POINTS", "LATE_SHARE", "SIBLING_SHARE", "least_squares", "huber_weights"]
__all__ += ["HUBER", "NORMAL"]
# a sink, and the noise model of the alerts
__all__ += ["Sink", "Event", "Logged", "Measured", "Note", "Alert", "Forecasted", "Tail", "FALSE_ALARM_RATE"]
# an analysis of a study
__all__ += ["Trajectory", "trajectories", "Study", "DeclaredSeries", "cloud_feature", "feature_named", "scale_free"]
__all__ += ["change_points", "ChangePoint", "ColouredNoise", "mid_ranks", "two_sided", "rank_correlation"]
__all__ += ["sign_flip", "correlate_across_runs", "adjusted", "PSEUDO_LAYERS", "STATES"]
__all__ += ["verdict_sentence", "BEYOND", "UNDETERMINED", "TREND", "NONE", "LEVEL"]
__all__ += ["associate", "AssociationTask", "FeatureSeries", "StudyCorpora", "OtherCorporaTask", "other_corpora_task"]
__all__ += ["TEXT_LOSS", "WEIGHT_NORM", "GRADIENT_NORM_MEAN", "GRADIENT_NORM_STD", "DEFAULT_PROBES"]
# a published study
__all__ += ["Published", "PublishedRun", "Trace", "Law", "PUBLISHED", "PUBLISHED_CLOUD", "SPECTRAL_QUANTITIES"]
__all__ += ["is_quantity", "canonical_name", "parse_features", "read_json", "check_declaration"]
# a section of a report, and a page of one's own
__all__ += ["ReportSection", "MaterialType", "Tables", "Block", "Picture"]
__all__ += ["ReportData", "StudyData", "BacktestData", "paragraph", "csv_link"]
__all__ += ["sentence", "details", "folded", "Table", "Column", "Spec", "table", "text_of", "number_of"]
__all__ += ["interval_of", "percent_of", "feature_of", "plain", "signed", "share", "whole", "word", "p_value"]
__all__ += ["missing", "counted", "joined", "examples", "named", "uncapitalised", "headline_features", "cloud_named"]
__all__ += ["clouds_of", "CLOUD_STATISTICS", "NP", "linked", "numbers", "Page", "makers_of", "write_page"]
# a chart
__all__ += ["Chart", "training_lines", "step_axis", "zero_line", "choose_runs", "runs_of", "run_names", "spread"]
__all__ += ["direction", "first_last", "cloud_charts"]
# a command
__all__ += ["BadUse", "bad_use", "progress_bars", "print_table", "print_json", "series_options", "workers_option"]
__all__ += ["Opening", "run_and_report"]

if TYPE_CHECKING:
    from toposcope.analysis.adjustment import adjusted
    from toposcope.analysis.association import AssociationTask, FeatureSeries, associate
    from toposcope.analysis.change_points import ChangePoint, change_points
    from toposcope.analysis.groups import scale_free
    from toposcope.analysis.logged import GRADIENT_NORM_MEAN, GRADIENT_NORM_STD
    from toposcope.analysis.permutations import correlate_across_runs, sign_flip
    from toposcope.analysis.ranks import mid_ranks, two_sided
    from toposcope.analysis.scaling import rank_correlation
    from toposcope.analysis.smooth_trend import ColouredNoise
    from toposcope.analysis.trajectories import (
        PSEUDO_LAYERS,
        STATES,
        TEXT_LOSS,
        WEIGHT_NORM,
        Trajectory,
        cloud_feature,
        trajectories,
    )
    from toposcope.analysis.verdict import BEYOND, LEVEL, NONE, TREND, UNDETERMINED, verdict_sentence
    from toposcope.charts.chart import Chart
    from toposcope.charts.training import step_axis, training_lines
    from toposcope.charts.zero import zero_line
    from toposcope.checkpoints.checkpoint import Checkpoint
    from toposcope.checkpoints.formats import is_checkpoint
    from toposcope.checkpoints.formats.contents import Inside, Key
    from toposcope.checkpoints.formats.entry import Entry, Listing, as_array, contiguous
    from toposcope.checkpoints.layer import Layer
    from toposcope.checkpoints.sources.credentials import without_credentials
    from toposcope.checkpoints.sources.local import LocalSource
    from toposcope.checkpoints.sources.source import (
        Access,
        Bytes,
        CheckpointError,
        Files,
        Source,
        StoredFile,
        check_range,
    )
    from toposcope.cli.options import BadUse, Opening, bad_use, series_options, workers_option
    from toposcope.cli.output import print_json, print_table
    from toposcope.cli.progress_bars import progress_bars
    from toposcope.cli.study import run_and_report
    from toposcope.csv_file import to_csv
    from toposcope.errors import ToposcopeError
    from toposcope.files import write_bytes
    from toposcope.forecasting.backtesting import SKILLS, siblings_in_split, skills
    from toposcope.forecasting.forecaster import Forecast, Forecaster, LoggedRun, RefusedError, cached
    from toposcope.forecasting.forecaster_set import run_forecasters
    from toposcope.forecasting.forecasters.baseline_laws import FittedLossCurve, LawForecaster
    from toposcope.forecasting.forecasters.cooldown_laws import COOLDOWN, Median
    from toposcope.forecasting.forecasters.power_law_fit import MIN_POINTS, fit_power_law, window
    from toposcope.forecasting.forecasters.stack import STACKED_LAWS, fit_ridge, stack_features
    from toposcope.forecasting.least_squares import HUBER, NORMAL, huber_weights, least_squares
    from toposcope.forecasting.schedules.planned import known_schedule, planned
    from toposcope.forecasting.schedules.schedule import Schedule
    from toposcope.forecasting.siblings import complete_runs, usable_siblings
    from toposcope.forecasting.tuning import LATE_SHARE, SIBLING_SHARE
    from toposcope.homology.arrays import as_float_matrix
    from toposcope.homology.diagram import Diagram
    from toposcope.kernels.compiled import compiled
    from toposcope.logs.evaluations.file import EvaluationFile, RawEvaluations, as_raw
    from toposcope.logs.log import Log
    from toposcope.logs.raw import RawLog
    from toposcope.logs.tuning import FALSE_ALARM_RATE
    from toposcope.models.origin import Origin
    from toposcope.monitor.alerts.noise import Tail
    from toposcope.monitor.events import Alert, Event, Forecasted, Logged, Measured, Note
    from toposcope.monitor.sinks.sink import Sink
    from toposcope.probes.feature import NETWORK, TOPOLOGY, Feature, Kind
    from toposcope.probes.needs import Input, RunContext
    from toposcope.probes.probe import (
        NOISE,
        POOLED,
        Failure,
        Measurement,
        Probe,
        ProbeInput,
        Value,
        each_layer,
        stacked,
    )
    from toposcope.probes.rips import RipsProbe
    from toposcope.probes.stacks import by_stacks
    from toposcope.progress import Progress, silent
    from toposcope.report.backtest import BacktestData
    from toposcope.report.charts.series import choose_runs, direction, first_last, run_names, runs_of, spread
    from toposcope.report.charts.states import cloud_charts
    from toposcope.report.composing import Page
    from toposcope.report.document import Block, Picture, csv_link, details, folded, linked, paragraph
    from toposcope.report.formats import missing, p_value, plain, share, signed, whole, word
    from toposcope.report.headline import (
        CLOUD_STATISTICS,
        NP,
        cloud_named,
        clouds_of,
        headline_features,
        named,
        uncapitalised,
    )
    from toposcope.report.section import MaterialType, ReportData, ReportSection, Tables, makers_of
    from toposcope.report.study_data import StudyData
    from toposcope.report.tables import (
        Column,
        Spec,
        Table,
        feature_of,
        interval_of,
        number_of,
        numbers,
        percent_of,
        table,
        text_of,
    )
    from toposcope.report.writing import write_page
    from toposcope.seeds import derive_seed
    from toposcope.study.corpora import OtherCorporaTask, StudyCorpora, other_corpora_task
    from toposcope.study.declaration import DEFAULT_PROBES, PUBLISHED_CLOUD, DeclaredSeries, check_declaration
    from toposcope.study.feature_file import PublishedRun, canonical_name, parse_features, read_json
    from toposcope.study.kinds import PUBLISHED, feature_named
    from toposcope.study.published import SPECTRAL_QUANTITIES, Law, Published, Trace, is_quantity
    from toposcope.study.study import Study
    from toposcope.typing import Indices, Matrix, Steps, Vector
    from toposcope.wording import counted, examples, joined, sentence

# So that a package that adds one small thing does not import torch, numba or altair for all others.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
