"""Console logs of training tools with the truth of what they say, and what may stand around their rows."""

import console_libraries
import console_pretraining
import console_vision
from console_noise import ENCODINGS, WRAPPERS, Wrapper, cut_short, resumed
from console_runs import ConsoleLog, Run, Writer, made_up_run

WRITERS: tuple[Writer, ...] = console_pretraining.WRITERS + console_libraries.WRITERS + console_vision.WRITERS

__all__ = [
    "ENCODINGS",
    "WRAPPERS",
    "WRITERS",
    "ConsoleLog",
    "Run",
    "Wrapper",
    "Writer",
    "cut_short",
    "made_up_run",
    "resumed",
]
