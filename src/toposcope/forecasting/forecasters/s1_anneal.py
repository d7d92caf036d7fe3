"""``s1_anneal``: L0 + A S1^-a - c (1 - eta_t / eta_pk)."""

from toposcope.forecasting.forecasters.annealed_law import AnnealedLaw
from toposcope.forecasting.schedules.schedule import Schedule

S1_ANNEAL = AnnealedLaw("s1_anneal", Schedule.cooled)
"""The gain follows the learning rate at once."""
