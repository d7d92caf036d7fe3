"""A kind of input that probes may need, and what it is made from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toposcope.checkpoints import Checkpoint
from toposcope.models import Origin


@dataclass(frozen=True)
class RunContext:
    """What belongs to a run besides its checkpoints.

    Attributes
    ----------
    origin : Origin
        Where configurations and tokenizers lie, and the tokens that a run trained here was trained on.
    text : callable
        Returns the text that models read, where a declared probe needs an input that reads it.
    text_sha256 : str
    directory : Path, optional
        Of a run trained here: holds its ``run.json``.
    corpus_sha256 : str
        Of the tokens that runs are trained on.
    """

    origin: Origin
    text: Callable[[], str]
    text_sha256: str
    directory: Path | None = None
    corpus_sha256: str = ""


@dataclass(frozen=True)
class Need:
    """A kind of input, by the name that `Probe.NEEDS` lists it under.

    Attributes
    ----------
    name : str
    provide : callable
        Takes an open checkpoint and the context of its run; returns what the probe finds in `Subject.inputs`. It runs
        in the process that measures. A `ToposcopeError` fails only this checkpoint.
    key : callable
        Takes the same; returns a text that names all that the input depends on besides the weights. It is part of the
        key of every row, so that rows are measured again when it changes. It runs in the main process. Where it raises
        `ToposcopeError` the error is reported, nothing is measured, and rows measured before stand.
    whole_model : bool
        Whether the input depends on all weights of the checkpoint: their hash is then part of the key too.
    reads_text : bool
        Whether it is made from the text of the study, which then has to be declared.
    trained_here : bool
        Whether only runs that the study trains have it. A probe that needs it does not apply to others.
    """

    name: str
    provide: Callable[[Checkpoint, RunContext], Any]
    key: Callable[[Checkpoint, RunContext], str]
    whole_model: bool = True
    reads_text: bool = False
    trained_here: bool = False
