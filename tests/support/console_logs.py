"""Console logs of training tools with the truth of what they say, and what may stand around their rows."""

import console_libraries
import console_lists
import console_pretraining
import console_scripts
import console_vision
from console_noise import ENCODINGS, WRAPPERS, Wrapper, cut_short, resumed
from console_runs import ConsoleLog, Run, Writer, diverged, made_up_run

WRITERS: tuple[Writer, ...] = (
    console_scripts.WRITERS + console_pretraining.WRITERS + console_libraries.WRITERS + console_vision.WRITERS
)
LISTS: tuple[Writer, ...] = console_lists.WRITERS
"""JSON files of losses, around which nothing can stand."""

__all__ = [
    "ENCODINGS",
    "LISTS",
    "WRAPPERS",
    "WRITERS",
    "ConsoleLog",
    "Run",
    "Wrapper",
    "Writer",
    "cut_short",
    "diverged",
    "made_up_run",
    "resumed",
]
