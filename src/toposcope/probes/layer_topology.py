"""Neural persistence and H0 of all layers of checkpoints in one call, small layers of one shape in one compiled region.

Neither a study nor a data frame is made; the numbers are those of the probes ``neural_persistence`` and ``rips``.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from numpy.typing import NDArray

from toposcope.checkpoints import Checkpoint, series
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, NeuralPersistence, neural_persistence, rips
from toposcope.homology.neural_persistence import neural_persistence_batch
from toposcope.homology.rips import components_batch
from toposcope.probes.probe import ProbeInput
from toposcope.probes.stacks import by_stacks

# of a group of checkpoints whose layers of one shape are measured in one call, and of their files
MAX_CHECKPOINTS, MAX_BYTES = 32, 1 << 25


@dataclass(frozen=True, eq=False)
class LayerTopology:
    """What is measured of a layer."""

    role: str  # see docs/layers.md
    neural_persistence: NeuralPersistence  # of the weight matrix
    components: Diagram  # H0 of its neurons: one point for each row of the incoming weights, in Euclidean distance
    flag: str = ""  # ``orientation unknown`` where the rows of `components` may be columns


@overload
def layer_topology(checkpoints: Checkpoint) -> dict[str, LayerTopology]: ...
@overload
def layer_topology(checkpoints: NDArray[Any]) -> LayerTopology: ...
@overload
def layer_topology(checkpoints: str | Path | Iterable[Checkpoint]) -> list[dict[str, LayerTopology]]: ...
def layer_topology(
    checkpoints: str | Path | Checkpoint | Iterable[Checkpoint] | NDArray[Any],
) -> LayerTopology | dict[str, LayerTopology] | list[dict[str, LayerTopology]]:
    """Return neural persistence and H0 of every analysed layer, to the last bit what each gives by itself.

    Parameters
    ----------
    checkpoints : str, Path, Checkpoint, iterable of Checkpoint, or a matrix
        Where they are, as `series` takes it; or one, ``series(place)[0]``; or several. Many small ones in one call are
        quickest. An array or tensor (out, in) is one layer.

    Returns
    -------
    dict, list of dict, or LayerTopology
        `LayerTopology` by layer; a list of them, in the order of the checkpoints, unless one Checkpoint is given.

    Raises
    ------
    ToposcopeError
        If what is given is no checkpoint, one cannot be read or has no layer to measure, or a layer is not finite.

    Notes
    -----
    The time of `neural_persistence` and of `rips` with ``max_dimension=0`` on one thread; files are read once.
    Memory is that of a few small checkpoints, or of one large layer, next to the results.

    Examples
    --------
    >>> import tempfile, torch
    >>> import toposcope as ts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (100, 200):
    ...         torch.save({"fc.weight": torch.eye(8, 16) * step}, f"{folder}/step_{step}.pt")
    ...     first, second = ts.layer_topology(folder)
    >>> second["fc.weight"].neural_persistence.mean, second["fc.weight"].components.lifetimes.max().round(1)
    (0.6521739130434783, np.float64(282.8))
    """
    if isinstance(checkpoints, Checkpoint):
        return _measure_group([checkpoints])[0]
    if hasattr(checkpoints, "__array__"):
        return LayerTopology("", neural_persistence(checkpoints), rips(checkpoints, max_dimension=0)[0])
    several = series(checkpoints) if isinstance(checkpoints, str | Path) else checkpoints
    if not isinstance(several, Iterable):
        raise _not_a_checkpoint(several)
    return [measured for group in _groups(several) for measured in _measure_group(group)]


def _not_a_checkpoint(given: object) -> ToposcopeError:
    return ToposcopeError(
        "layer_topology: expected a path, a matrix, a Checkpoint or several, such as series(path), "
        f"got {type(given).__name__}"
    )


def _groups(checkpoints: Iterable[Checkpoint]) -> Iterator[list[Checkpoint]]:
    group: list[Checkpoint] = []
    total = 0
    for checkpoint in checkpoints:
        if not isinstance(checkpoint, Checkpoint):
            raise _not_a_checkpoint(checkpoint)
        size = sum(file.size for file in checkpoint.files.values())
        if group and (len(group) == MAX_CHECKPOINTS or total + size > MAX_BYTES):
            yield group
            group, total = [], 0
        group.append(checkpoint)
        total += size
    if group:
        yield group


def _measure_group(checkpoints: Sequence[Checkpoint]) -> list[dict[str, LayerTopology]]:
    subjects = [ProbeInput.of(checkpoint) for checkpoint in checkpoints]
    persistence = by_stacks(subjects, neural_persistence_batch, narrow=True)
    components = by_stacks(subjects, components_batch)
    return [
        {
            layer.name: LayerTopology(
                layer.role,
                known.get(layer.name)
                or neural_persistence(layer.read_narrow(), name=f"{layer.source}: layer {layer.name}"),
                trees.get(layer.name) or rips(layer.matrix(), max_dimension=0)[0],
                layer.flag,
            )
            for layer in subject.layers
        }
        for subject, known, trees in zip(subjects, persistence, components, strict=True)
    ]
