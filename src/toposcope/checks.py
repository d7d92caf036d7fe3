"""What is looked for: in saved checkpoints by the doctor, in a run by the monitor."""

from collections.abc import Mapping
from typing import NamedTuple

FALSE_ALARM_RATE = 1e-5
"""False alarms per step of all checks together, on runs in which only noise changes: one in 100,000 steps."""


class Check(NamedTuple):
    """What is looked for, by whom, and what trials show to be missed."""

    doctor: str = ""  # what the doctor looks for, if it does
    deep: bool = False  # the doctor needs every tensor
    monitor: Mapping[str, float] = {}  # where it looks -> share of its false alarms
    passes: bool = False  # by itself
    stops: bool = False  # a layer learns no more
    missed: str = ""  # a sentence that the documentation has too
    predicts: str = ""  # what followed an early warning in trials, a sentence of the alert


LAYERS = {"layers": 0.065}
LOOKS = {**LAYERS, "looks": 0.0}
CHECKS = {
    "duplicate": Check("checkpoints that are the same under two steps"),
    "final weights": Check("the weights of the last checkpoint under early steps"),
    "still": Check("a tensor that is the same under two steps while others changed"),
    "frozen layer": Check(
        "a tensor that is the same from first to last, or over one end of training", monitor=LOOKS, stops=True
    ),
    "missing steps": Check("steps that the series' own grid would have"),
    "extra steps": Check("steps that are off the series' own grid"),
    "missing shard": Check("shards that the index names and that are absent"),
    "index": Check("an index that disagrees with its shards"),
    "truncated": Check("files that end early"),
    "unsafe": Check("files that would run code when loaded"),
    "unsupported": Check("files that are whole and cannot be read: packed in an unknown way, flat, or parts of others"),
    "damaged": Check("files that cannot be read, or do not match their checksums"),
    "step inside": Check("a step in a name that differs from the counter saved in the file, or from the others'"),
    "optimizer": Check("the state of an optimizer or a scheduler that does not fit the step or the weights"),
    "changed": Check("files that changed while they were read"),
    "unreachable": Check("files that cannot be reached"),
    "change of plan": Check("a step from which on tensors are added, gone, or of another shape or dtype for good"),
    "tensors": Check("tensors that other checkpoints have, or do not have"),
    "shape": Check("tensors of another shape than in most checkpoints"),
    "dtype": Check("tensors of another dtype than in most checkpoints"),
    "non-finite": Check("values that are NaN or infinite", deep=True, monitor={"log": 0.0, "layers": 0.0}, passes=True),
    "dead layer": Check(
        "matrices of zeros, and vectors and parts of matrices that became zero", deep=True, monitor=LOOKS, stops=True
    ),
    "copied rows": Check("rows of a matrix that became copies of others", deep=True),
    "outlier": Check("one value far larger than all others", deep=True),
    "rounded": Check("tensors with values of 16 bits, or few different ones, as after quantisation", deep=True),
    "off path": Check("checkpoints that are off the path of training", deep=True),
    "scaled": Check("tensors that are a multiple of their neighbours", deep=True),
    "order": Check("checkpoints that are swapped", deep=True),
    "break": Check("a step from which on the weights are another run's", deep=True),
    "leap": Check("an interval in which the weights move much further than in any other", deep=True),
    "initialisation": Check("a step 0 that is not an initialisation", deep=True),
    "log": Check("a training log next to the series that is another run's, or cannot be read"),
    "diverged": Check(monitor={"log": 0.0}),
    "loss spike": Check(
        monitor={"log": 0.2},
        passes=True,
        missed="Of 254 troubles of small trainings it showed 41, and all alerts together 193.",
    ),
    "loss step": Check(
        monitor={"log": 0.2},
        missed="A step of the loss to a level that it had since half of its rows is missed.",
    ),
    "gradient spike": Check(monitor={"log": 0.2, **LAYERS}, passes=True),
    "rising gradients": Check(
        monitor={"log": 1.0},
        passes=True,
        predicts="Of 17 small trainings that raised this alert before their loss showed anything, 13 were in trouble"
        " within 200 steps: after 17 in the median, half of them after 14 to 20.",
    ),
    "growing weights": Check(
        monitor={"layers": 3.0},
        passes=True,
        predicts="Of 36 small trainings that raised this alert before their loss showed anything, 22 were in trouble"
        " within 200 steps: after 93 in the median, half of them after 36 to 138.",
    ),
    "learning rate jump": Check(monitor={"log": 0.0}, passes=True),
    "dead units": Check(monitor=LOOKS, stops=True),
    "wrong sign": Check(
        monitor={"looks": 0.0}, missed="A gradient whose sign is turned before the optimizer gets it is missed."
    ),
    "rank collapse": Check(monitor=LAYERS, missed="Of 10 stable ranks that fell to a 20th, 7 were missed."),
    "norm running away": Check(monitor=LAYERS, missed="Of 10 weight norms that grew tenfold, 7 were missed."),
    "ranks differ": Check(monitor={"ranks": 0.0}),
    "forecast worse": Check(monitor={"forecasts": 0.0}, passes=True),
}
"""By name, which follows ``doctor:`` where a finding is an alert. Those without a model of noise share what is left."""
