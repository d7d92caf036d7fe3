"""Scores of tasks: what evaluations of any tool said about runs, read into one form."""

from toposcope_downstream.evaluations.file import COLUMNS, MAX_SIZE, ROLES, Evaluations, Target
from toposcope_downstream.evaluations.reading import read_evaluations

__all__ = ["COLUMNS", "MAX_SIZE", "ROLES", "Evaluations", "Target", "read_evaluations"]
