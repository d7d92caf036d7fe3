"""Scores of tasks that larger models will reach, from evaluations and losses of small ones."""

from typing import TYPE_CHECKING

from toposcope.extend import lazy_imports

__all__ = ["DownstreamReport", "Model", "downstream", "forecast_in_tasks", "in_tasks", "loss_to_loss"]
__all__ += ["EvaluationFile", "Evaluations", "RawEvaluations", "as_raw", "read_evaluations"]

if TYPE_CHECKING:
    from toposcope_downstream.evaluations.file import EvaluationFile, Evaluations, RawEvaluations, as_raw
    from toposcope_downstream.evaluations.reading import read_evaluations
    from toposcope_downstream.in_scores import forecast_in_tasks, in_tasks
    from toposcope_downstream.loss_to_loss import loss_to_loss
    from toposcope_downstream.predicted import Model
    from toposcope_downstream.prediction import DownstreamReport, downstream

# So that the commands are listed without polars and altair.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
