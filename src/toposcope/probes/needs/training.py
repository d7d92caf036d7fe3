"""``training``: what only a process that trains has, such as the gradients of a step."""

from typing import NoReturn

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError
from toposcope.probes.needs.need import Need, RunContext


def provide(checkpoint: Checkpoint, _run: RunContext) -> NoReturn:
    """Refuse a checkpoint."""
    raise ToposcopeError(f"{checkpoint.location}: gradients and updates are known only while a run is monitored")


NEED = Need("training", provide, key=lambda checkpoint, run: "", whole_model=False, trained_here=True)
