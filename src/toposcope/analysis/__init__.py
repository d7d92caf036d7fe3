"""Statistics over a study: association within a run, phases, scaling. Frames in, frames out; no files."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

if TYPE_CHECKING:
    from toposcope.analysis.between_runs.gain import between_runs_table
    from toposcope.analysis.layers import reference_table
    from toposcope.analysis.phases import change_point_table, phase_table
    from toposcope.analysis.scaling import scaling_table
    from toposcope.analysis.table import association_table, comparison_table
    from toposcope.analysis.trajectory import Trajectory, trajectories

__all__ = [
    "Trajectory",
    "association_table",
    "between_runs_table",
    "change_point_table",
    "comparison_table",
    "phase_table",
    "reference_table",
    "scaling_table",
    "trajectories",
]

# So that `toposcope.analysis.health` is quick to import.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
