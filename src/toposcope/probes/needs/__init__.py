"""Inputs that probes need beyond the layers of checkpoints.

A module holds an `Input` called ``INPUT``, or several in ``INPUTS``; adding a kind of input means adding its file to
this package, or naming its module as an entry point of the group ``toposcope.needs`` in a package of one's own. A probe
lists the inputs it needs in `Probe.REQUIRES` and finds them in `ProbeInput.inputs`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError, choices
from toposcope.models import Origin
from toposcope.plugins import collect
from toposcope.probes.probe import RELATIONS, Probe

__all__ = ["Input", "RunContext", "check_needs", "needs", "needs_of"]


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
class Input:
    """A kind of input, by the name that `Probe.REQUIRES` lists it under.

    Attributes
    ----------
    name : str
    provide : callable
        Takes an open checkpoint and the context of its run; returns what the probe finds in `ProbeInput.inputs`. It
        runs in the process that measures. A `ToposcopeError` fails only this checkpoint.
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
    of_training : bool
        Whether that of a run trained here is made from its folder and its corpus, which lie on this machine. In a
        study that trains runs, only these have it: those of other models would be of another loss.
    """

    name: str
    provide: Callable[[Checkpoint, RunContext], Any]
    key: Callable[[Checkpoint, RunContext], str]
    whole_model: bool = True
    reads_text: bool = False
    trained_here: bool = False
    of_training: bool = False


@cache
def needs() -> dict[str, Input]:
    """Return every kind of input by name."""
    return collect(__name__, "toposcope.needs", _need_of)


def needs_of(*probes: Probe | None) -> list[Input]:
    """Return the inputs that some probes need, by name; None stands for no probe."""
    names = {name for probe in probes if probe is not None for name in probe.REQUIRES - RELATIONS}
    return [needs()[name] for name in sorted(names)]


def check_needs(probe: type[Probe]) -> None:
    """Refuse a probe that needs an input nothing provides."""
    known = sorted({*needs(), *RELATIONS})
    for name in sorted(probe.REQUIRES - set(known)):
        raise ToposcopeError(
            f"probe {probe.name()}: nothing provides {name!r}, which its REQUIRES names; {choices(name, known)}"
        )


def _need_of(module: ModuleType) -> dict[str, Input]:
    several = (*getattr(module, "INPUTS", ()), getattr(module, "INPUT", None))
    inputs = {need.name: need for need in several if isinstance(need, Input)}
    for name in inputs.keys() & RELATIONS:
        raise ToposcopeError(f"need {name!r}: the name is taken; it stands for what other checkpoints hold")
    return inputs
