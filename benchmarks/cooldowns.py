"""What the rule for cool-downs foretells, against real cool-downs of small GPTs.

    python benchmarks/cooldowns.py [--quick]

Runs of four sizes at constant rates, and some that the rule was not made for: SGD, rates near instability, rates that
fall slowly, Muon, a corpus small enough to overfit, another corpus. From three of their steps they were cooled down over 5, 10
and 20% of the steps so far, along a line and along 1 - sqrt, on the batches that they read next. The interval is calibrated on
runs of other sizes, and of other rates, than those it is judged on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import Column, command, show, write
from cooldown_trainings import BRANCHES, PACKS, Pack, decayed_rates, linear_weights, trained
from toposcope.forecasting import tuning
from toposcope.forecasting.cooldown import CoolDown, Course, Merged, cool_down_forecast, windows
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.held_out import LEVEL
from toposcope.logs.table import ByStep

Row = dict[str, object]
