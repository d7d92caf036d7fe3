"""What it takes to measure the series of a study, from the header of one checkpoint each."""

from collections.abc import Sequence
from typing import NamedTuple

from toposcope.checkpoints import Access, Series
from toposcope.errors import ToposcopeError
from toposcope.probes import Probe
from toposcope.study.declaration import Declaration
from toposcope.study.survey import BYTES_READ_PER_MS
from toposcope.study.work import checkpoint_size, seconds
from toposcope.wording import counted


class PlannedSeries(NamedTuple):
    """What a series takes, if all its checkpoints are like the last one and none is measured already."""

    run: str
    n_checkpoints: int
    n_parameters: int  # of the analysed layers of a checkpoint
    n_bytes: int  # that are read, or fetched, of all checkpoints
    memory: int  # bytes of one process for the most expensive probe, next to its libraries
    hours: float  # on one core, to a factor of two


def planned_series(name: str, opened: Series, probes: Sequence[Probe]) -> PlannedSeries:
    """Plan one series, of which the header of the last checkpoint is read."""
    opened[-1].analysed()  # raises what is wrong with it
    size, count = checkpoint_size(opened[-1]), len(opened)
    hours = (sum(seconds(probe, size.shapes) for probe in probes) + size.stored / BYTES_READ_PER_MS / 1000) / 3600
    memory = max((probe.expected_bytes(size.shapes) for probe in probes), default=0)
    n_parameters = sum(m * n for m, n in size.shapes.values())
    return PlannedSeries(name, count, n_parameters, count * size.stored, memory, count * hours)


def plan_study(declaration: Declaration, access: Access) -> tuple[list[PlannedSeries], list[str]]:
    """Return what each series takes and, of several, all of them; with notes on what is not planned."""
    rows, notes, runs = list[PlannedSeries](), list[str](), declaration.resolved_runs()
    for name, declared in declaration.named_series().items():
        try:
            if declared.path:
                rows.append(planned_series(name, declared.open(access), declaration.resolved_probes()))
        except (ToposcopeError, OSError) as error:
            notes.append(f"not in the plan: {name}: {error}")
    notes += [f"not in the plan: {counted(len(runs), 'run')} to train"] if runs else []
    if len(rows) > 1:
        _, counts, parameters, n_bytes, memories, hours = zip(*rows, strict=True)
        rows.append(PlannedSeries("all", sum(counts), sum(parameters), sum(n_bytes), max(memories), sum(hours)))
    return rows, notes
