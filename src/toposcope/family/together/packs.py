"""Which runs train as one model."""

import math
import os
from collections.abc import Sequence
from itertools import pairwise

from toposcope.family.run import Run
from toposcope.family.sizes import MIN_HEAD_WIDTH

MAX_CPU_ACTIVATIONS = 30_000
"""Entries of a run's residual stream up to which a CPU trains runs together more quickly than alone, see
benchmarks/population.py; above, the activations of several runs do not fit into its caches."""
MAX_CPU_RUNS = 16
MAX_CPU_BYTES = 2 * 10**9
MAX_GPU_SHARE = 0.6
"""Of the memory of a GPU that the estimate of a pack may fill."""


def packs(runs: Sequence[Run], device: str = "cpu", processes: int = 0) -> list[list[int]]:
    """Group runs that train together most quickly.

    Runs of a group have one size, number of steps, batch size, validation set and checkpoint steps. On a GPU a group
    fills the memory. On a CPU it has a few runs, if they are so small that they take longer to start operations than to
    compute; larger runs are groups of their own, to be trained side by side, one a core.

    A stopped group resumes as the same group: name all runs again, those that have ended too.

    Parameters
    ----------
    runs : sequence of Run
    device : str
        ``cpu`` or ``cuda``.
    processes : int
        How many groups train at the same time on a CPU; 0 for one a core. There are as many groups, where there are as
        many runs.

    Returns
    -------
    list of list of int
        Indices of runs, each in one group.
    """
    alike: dict[object, list[int]] = {}
    for i, run in enumerate(runs):
        training = run.training
        steps = tuple(training.checkpoint_steps)
        key = (run.size, training.steps, training.batch_size, training.validation_sequences, steps)
        alike.setdefault(key, []).append(i)
    processes = processes or os.cpu_count() or 1
    return [group for members in alike.values() for group in _parts(members, _most(runs, members, device, processes))]


def run_bytes(run: Run) -> int:
    """Estimate the memory that one more run of a pack takes, to about a tenth."""
    size, positions = run.size, run.training.batch_size * run.size.context
    heads = size.heads * max(MIN_HEAD_WIDTH, size.hidden // size.heads)
    block = 24 * size.hidden + 10 * heads
    noise = 2 * size.hidden * (1 + 2 * size.layers) if run.training.dropout else 0
    return 4 * (
        positions * (size.layers * block + 6 * size.hidden + 4 * size.vocabulary + noise) + 8 * size.n_parameters
    )


def _most(runs: Sequence[Run], members: Sequence[int], device: str, processes: int) -> int:
    """Return how many runs of a kind may train together."""
    each = max(run_bytes(runs[i]) for i in members)
    if device != "cpu":
        import torch

        return max(1, int(MAX_GPU_SHARE * torch.cuda.get_device_properties(device).total_memory) // each)
    first = runs[members[0]]
    if first.training.batch_size * first.size.context * first.size.hidden > MAX_CPU_ACTIVATIONS:
        return 1
    return max(1, min(MAX_CPU_RUNS, MAX_CPU_BYTES // each, math.ceil(len(members) / processes)))


def _parts(members: list[int], most: int) -> list[list[int]]:
    """Divide into as few parts as possible, as equal as possible."""
    count = math.ceil(len(members) / most)
    ends = [round(len(members) * i / count) for i in range(count + 1)]
    return [members[a:b] for a, b in pairwise(ends)]
