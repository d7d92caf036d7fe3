"""``annealing``: L0 + A S1^-a - c S2 (Tissue et al. 2024, arXiv:2408.11029)."""

from toposcope.forecasting.forecasters.annealed_law import AnnealedLaw
from toposcope.forecasting.schedules.schedule import Schedule

ANNEALING = AnnealedLaw("annealing", Schedule.momentum)
"""The gain follows the learning rate with a delay of about a thousand steps."""
