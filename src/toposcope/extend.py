"""The door for extensions: what probes, inputs, formats, sources, forecasters, sinks, sections and commands import.

A package of your own imports from here, from `toposcope` and from `toposcope.homology`; every other module may move.
Each kind of extension, with its entry point and an example that runs: ``docs/extend.md``.
"""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

# anything: errors, seeds, types of arrays, files
__all__ = ["ToposcopeError", "derive_seed", "Progress", "silent", "Vector", "Matrix", "Indices", "Steps"]
__all__ += ["write_bytes", "to_csv", "compiled", "choices", "message_of", "lazy_imports", "collect_modules", "short"]
# arguments of a function, checked; loops of a matrix of distances
__all__ += ["as_count", "as_number", "as_positive", "as_scaled_matrix", "as_distances", "as_cloud", "Metric", "shown"]
__all__ += ["loop_diagram", "check_loops_fit"]
# a probe
__all__ += ["Probe", "ProbeInput", "Measurement", "Failure", "Layer", "Kind", "Feature", "Value"]
__all__ += ["NETWORK", "POOLED"]
__all__ += ["RipsProbe", "NOISE", "TOPOLOGY", "each_layer", "by_stacks", "stacked", "as_float_matrix", "Diagram"]
__all__ += ["guarded", "SummedLoss"]
# an input of probes
__all__ += ["Input", "RunContext", "Origin", "Checkpoint"]
# a checkpoint format
__all__ += ["Entry", "Listing", "Inside", "Key", "contiguous", "as_array", "CheckpointError"]
# a source of checkpoints
__all__ += ["Source", "StoredFile", "Files", "Bytes", "Access", "LocalSource", "check_range", "is_checkpoint"]
__all__ += ["without_credentials"]
# a log format
__all__ += ["RawLog", "Run"]
# files and tables of any tool, and names of columns in them
__all__ += ["existing", "search_folder", "refuse_link", "refusing", "nothing_read", "format_of", "read_raw"]
__all__ += ["read_logs"]
__all__ += ["parse_table", "parse_json_rows", "table_of_rows", "values_of_lines", "NO_VALUE", "parse_numbers"]
__all__ += ["size_of"]
__all__ += ["MULTIPLES", "join_names", "plural", "one_line", "LogTable", "sources", "target_of", "ACCURACY"]
__all__ += ["identify_columns", "COLUMN_NAMES", "NAME_PREFIXES", "AUXILIARY_WORDS"]
# a scaling law, a decision, and what is fitted by least squares
__all__ += ["Points", "ScalingLaw", "FittedScalingLaw", "scaling_law", "EXPONENT_PRIOR", "MIN_INDEPENDENT_SPREAD"]
__all__ += ["MIN_LARGEST"]
__all__ += ["Advice", "advice_options", "calibration_of", "continued", "scaled", "complex_step", "Fold"]
__all__ += ["NORMAL_WIDTH", "ForecastReport"]
# a forecaster, and what compares forecasters
__all__ += ["Forecaster", "Forecast", "LawForecaster", "FittedLossCurve", "LoggedRun", "RefusedError", "Schedule"]
__all__ += ["window", "usable_siblings", "cached", "complete_runs", "CompleteRuns", "run_forecasters", "planned"]
__all__ += ["known_schedule", "fit_ridge", "Pool", "COOLDOWN", "STACKED_LAWS", "stack_features"]
__all__ += ["fit_power_law", "MIN_POINTS", "LATE_SHARE", "SIBLING_SHARE", "least_squares", "huber_weights"]
__all__ += ["RULES", "StoppingRule", "SweepRun", "arrives", "judge", "loss_at"]
__all__ += ["HUBER", "NORMAL", "forecasters", "DEFAULT", "COVERAGE", "remarks_on_runs"]
# a sink, and the noise model of the alerts
__all__ += ["Sink", "Event", "Logged", "Measured", "Note", "Alert", "Forecasted", "Tail", "FALSE_ALARM_RATE"]
# an analysis of a study
__all__ += ["Trajectory", "trajectories", "Study", "DeclaredSeries", "cloud_feature", "feature_named", "scale_free"]
__all__ += ["change_points", "ChangePoint", "ColouredNoise", "mid_ranks", "two_sided", "rank_correlation"]
__all__ += ["sign_flip", "out_of_patience", "adjusted", "PSEUDO_LAYERS", "STATES"]
__all__ += ["verdict_sentence", "BEYOND", "UNDETERMINED", "TREND", "NONE", "LEVEL"]
__all__ += ["TEXT_LOSS", "WEIGHT_NORM", "GRADIENT_NORM_MEAN", "GRADIENT_NORM_STD", "DEFAULT_PROBES"]
# a study's declaration
__all__ += ["PUBLISHED", "PublishedRun", "check_declaration", "readable", "MAX_STEP"]
__all__ += ["weight_paths"]
# a section of a report, and a page of one's own
__all__ += ["ReportSection", "MaterialType", "Tables", "Block", "Picture"]
__all__ += ["ReportData", "StudyData", "paragraph", "csv_link"]
__all__ += ["sentence", "details", "folded", "Table", "Column", "Spec", "table", "text_of", "number_of"]
__all__ += ["interval_of", "percent_of", "feature_of", "plain", "signed", "share", "whole", "word", "p_value"]
__all__ += ["missing", "counted", "joined", "examples", "named", "uncapitalised", "headline_features", "cloud_named"]
__all__ += ["clouds_of", "CLOUD_STATISTICS", "NP", "linked", "numbers", "Page", "makers_of", "write_page"]
__all__ += ["fixed", "Row", "UNDEFINED", "remarks_section", "write_sections", "needs_loss", "needs_probe"]
__all__ += ["needs_checkpoints"]
__all__ += ["Terms"]
# a chart
__all__ += ["Chart", "training_lines", "step_axis", "zero_line", "choose_runs", "runs_of", "spread"]
__all__ += ["direction", "diagonal", "budget_axis", "with_field"]
__all__ += ["MUTED", "RUNS", "apart"]
__all__ += ["direction_of", "feature_rows", "bands_of", "training_chart", "runs_in", "largest_run", "path_panels"]
# a command
__all__ += ["BadUse", "bad_use", "progress_bars", "print_table", "print_json", "series_options", "workers_option"]
__all__ += ["Opening", "run_and_report", "EXISTING", "FILE", "COUNT", "repeated_option", "defaulted_option"]
__all__ += ["column_option", "columns_of", "json_option", "page_option", "page_or_figure_option", "print_lines"]
__all__ += ["print_notes", "print_report", "write_out", "log_options"]

if TYPE_CHECKING:
    from toposcope.analysis.adjustment import adjusted
    from toposcope.analysis.change_points import ChangePoint, change_points
    from toposcope.analysis.groups import scale_free
    from toposcope.analysis.logged import GRADIENT_NORM_MEAN, GRADIENT_NORM_STD
    from toposcope.analysis.patience import out_of_patience
    from toposcope.analysis.permutations import sign_flip
    from toposcope.analysis.ranks import mid_ranks, two_sided
    from toposcope.analysis.scaling import rank_correlation
    from toposcope.analysis.smooth_trend import ColouredNoise
    from toposcope.analysis.trajectory import (
        PSEUDO_LAYERS,
        STATES,
        TEXT_LOSS,
        WEIGHT_NORM,
        Trajectory,
        cloud_feature,
        trajectories,
    )
    from toposcope.analysis.verdict import BEYOND, LEVEL, NONE, TREND, UNDETERMINED, verdict_sentence
    from toposcope.analysis.weight_paths import weight_paths
    from toposcope.charts.axes import budget_axis, with_field
    from toposcope.charts.chart import Chart
    from toposcope.charts.theme import MUTED, RUNS
    from toposcope.charts.training import apart, step_axis, training_lines
    from toposcope.charts.zero import diagonal, zero_line
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
    from toposcope.checkpoints.steps import MAX_STEP
    from toposcope.checks import FALSE_ALARM_RATE
    from toposcope.cli.decide import advice_options
    from toposcope.cli.options import (
        COUNT,
        EXISTING,
        FILE,
        BadUse,
        Opening,
        bad_use,
        column_option,
        columns_of,
        defaulted_option,
        json_option,
        log_options,
        page_option,
        page_or_figure_option,
        repeated_option,
        series_options,
        workers_option,
    )
    from toposcope.cli.output import print_json, print_lines, print_notes, print_report, print_table, write_out
    from toposcope.cli.progress_bars import progress_bars
    from toposcope.cli.study import run_and_report
    from toposcope.csv_file import to_csv
    from toposcope.errors import ToposcopeError, choices, message_of
    from toposcope.files import refuse_link, write_bytes
    from toposcope.forecasting.decision.advice import Advice
    from toposcope.forecasting.decision.calibration import calibration_of
    from toposcope.forecasting.decision.decision import continued, scaled
    from toposcope.forecasting.forecast_report import ForecastReport
    from toposcope.forecasting.forecaster import Forecast, Forecaster, LoggedRun, RefusedError
    from toposcope.forecasting.forecaster_set import DEFAULT, run_forecasters
    from toposcope.forecasting.forecasters import forecasters
    from toposcope.forecasting.forecasters.baseline_laws import LATE_SHARE, FittedLossCurve, LawForecaster
    from toposcope.forecasting.forecasters.cooldown_laws import COOLDOWN, SIBLING_SHARE
    from toposcope.forecasting.forecasters.pool import Pool
    from toposcope.forecasting.forecasters.power_law_fit import MIN_POINTS, fit_power_law, window
    from toposcope.forecasting.forecasters.stack import STACKED_LAWS, fit_ridge, stack_features
    from toposcope.forecasting.held_out import NORMAL_WIDTH, Fold, known_schedule
    from toposcope.forecasting.scaling.points import MIN_LARGEST, Points
    from toposcope.forecasting.scaling.scaling_law import (
        EXPONENT_PRIOR,
        MIN_INDEPENDENT_SPREAD,
        FittedScalingLaw,
        ScalingLaw,
        scaling_law,
    )
    from toposcope.forecasting.siblings import CompleteRuns, complete_runs, remarks_on_runs, usable_siblings
    from toposcope.forecasting.sweeps.rule import RULES, StoppingRule, loss_at
    from toposcope.forecasting.sweeps.sweep import SweepRun, arrives, judge
    from toposcope.homology.arrays import as_count, as_float_matrix, as_number, as_positive, as_scaled_matrix, shown
    from toposcope.homology.diagram import Diagram
    from toposcope.homology.loops import check_loops_fit, loop_diagram
    from toposcope.homology.point_cloud import Metric, as_cloud, as_distances
    from toposcope.kernels.compiled import compiled
    from toposcope.least_squares import HUBER, NORMAL, complex_step, huber_weights, least_squares
    from toposcope.logs.caching import cached
    from toposcope.logs.columns import (
        ACCURACY,
        AUXILIARY_WORDS,
        COLUMN_NAMES,
        NAME_PREFIXES,
        identify_columns,
        target_of,
    )
    from toposcope.logs.formats import existing, format_of, nothing_read, read_raw, refusing, search_folder
    from toposcope.logs.formats.json_rows import parse_json_rows, table_of_rows
    from toposcope.logs.formats.tables import parse_table
    from toposcope.logs.raw import MULTIPLES, RawLog, join_names, one_line, parse_numbers, plural, size_of
    from toposcope.logs.reading import read_logs
    from toposcope.logs.run import Run
    from toposcope.logs.schedules.schedule import Schedule, planned
    from toposcope.logs.table import LogTable, sources
    from toposcope.logs.texts import NO_VALUE, values_of_lines
    from toposcope.models.origin import Origin
    from toposcope.models.summed_loss import SummedLoss
    from toposcope.monitor.alerts.noise import Tail
    from toposcope.monitor.events import Alert, Event, Forecasted, Logged, Measured, Note
    from toposcope.monitor.sinks.sink import Sink
    from toposcope.plugins import collect_modules
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
        guarded,
        stacked,
    )
    from toposcope.probes.rips import RipsProbe
    from toposcope.probes.stacks import by_stacks
    from toposcope.progress import Progress, silent
    from toposcope.report.charts.series import (
        bands_of,
        choose_runs,
        direction,
        direction_of,
        feature_rows,
        largest_run,
        runs_in,
        runs_of,
        spread,
        training_chart,
    )
    from toposcope.report.composing import Page
    from toposcope.report.document import Block, Picture, Terms, csv_link, details, folded, linked, paragraph
    from toposcope.report.formats import UNDEFINED, fixed, missing, p_value, plain, share, signed, whole, word
    from toposcope.report.headline import (
        CLOUD_STATISTICS,
        NP,
        cloud_named,
        clouds_of,
        headline_features,
        named,
        uncapitalised,
    )
    from toposcope.report.not_made import needs_checkpoints, needs_loss, needs_probe
    from toposcope.report.section import MaterialType, ReportData, ReportSection, Tables, makers_of, remarks_section
    from toposcope.report.sections.trajectory import path_panels
    from toposcope.report.study_data import StudyData
    from toposcope.report.tables import (
        Column,
        Row,
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
    from toposcope.report.writing import write_page, write_sections
    from toposcope.seeds import derive_seed
    from toposcope.study.declaration import DEFAULT_PROBES, DeclaredSeries, check_declaration
    from toposcope.study.declared_runs import readable
    from toposcope.study.kinds import PUBLISHED, feature_named
    from toposcope.study.publication import PublishedRun
    from toposcope.study.study import Study
    from toposcope.typing import Indices, Matrix, Steps, Vector
    from toposcope.wording import COVERAGE, counted, examples, joined, sentence, short

# So that a package that adds one small thing does not import torch, numba or altair for all others.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
