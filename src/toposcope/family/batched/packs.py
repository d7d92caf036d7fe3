"""Which runs train as one model, and the folders of such packs."""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from toposcope.checkpoints.sources.packed import file_name
from toposcope.family.corpus import Corpus
from toposcope.family.run import MIN_HEAD_WIDTH, FamilyRun
from toposcope.family.run_folder import described

# Which runs train as one model: chosen on ``benchmarks/population.py``; ``docs/methods/training-together.md``.
MAX_CPU_ACTIVATIONS = 30_000  # entries of a run's residual stream; above, those of several runs do not fit into caches
MAX_CPU_RUNS = 16  # runs of a pack on a CPU
MAX_CPU_BYTES = 2 * 10**9  # memory of a pack on a CPU
MAX_GPU_SHARE = 0.6  # share of the memory of a GPU that the estimate of a pack may fill
STATE = "state.safetensors"  # what a pack resumes from; it stays when its runs have ended


def group_runs(runs: Sequence[FamilyRun], device: str = "cpu", processes: int = 0) -> list[list[int]]:
    """Group runs that train together most quickly.

    Runs of a group have one size, number of steps, batch size, validation set and checkpoint steps. On a GPU a group
    fills the memory. On a CPU it has a few runs, if they are so small that they take longer to start operations than to
    compute; larger runs are groups of their own, to be trained side by side, one a core.
    """
    alike: dict[object, list[int]] = {}
    for i, run in enumerate(runs):
        training = run.training
        steps = tuple(training.checkpoint_steps)
        key = (run.size, training.steps, training.last_step, training.batch_size, training.validation_sequences, steps)
        alike.setdefault(key, []).append(i)
    processes = processes or os.cpu_count() or 1
    return [group for members in alike.values() for group in _parts(members, _most(runs, members, device, processes))]


def run_bytes(run: FamilyRun) -> int:
    """Estimate the memory that one more run of a pack takes, to about a tenth."""
    size, positions = run.size, run.training.batch_size * run.size.context
    heads = size.heads * max(MIN_HEAD_WIDTH, size.hidden // size.heads)
    block = 24 * size.hidden + 10 * heads
    noise = 2 * size.hidden * (1 + 2 * size.layers) if run.training.dropout else 0
    return 4 * (
        positions * (size.layers * block + 6 * size.hidden + 4 * size.vocabulary + noise) + 8 * size.n_parameters
    )


def _most(runs: Sequence[FamilyRun], members: Sequence[int], device: str, processes: int) -> int:
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


def pack_name(runs: Sequence[FamilyRun], digests: Sequence[str]) -> str:
    """Return the name of a pack's folder, of its shape and a digest of its declarations and of the runs' corpora."""
    digest = hashlib.sha256()
    for run, sha256 in zip(runs, digests, strict=True):
        digest.update(described(run, sha256))
    return f"{runs[0].size.hidden}x{runs[0].size.layers}-{digest.hexdigest()[:12]}"


def pack_checkpoint(folder: Path, step: int) -> Path:
    """Return the path of the weights of all runs of a pack at one step."""
    return folder / file_name(step)


def begun_packs(runs: Sequence[FamilyRun], sha256: Mapping[Corpus, str], directory: Path) -> list[list[int]]:
    """Return the packs that have a state to resume from, as they were declared then.

    A pack that was stopped ends in the same bytes only as the same pack: also where some of its runs have their logs
    already, or another number of processes would divide the runs in another way.
    """
    places = {run.name: i for i, run in enumerate(runs) if run.corpus in sha256}
    packs: list[list[int]] = []
    used: set[int] = set()
    for state in sorted(directory.glob(f"*/{STATE}")):
        members = [places.get(name, -1) for name in _names(state.parent)]
        if not members or -1 in members or used.intersection(members):
            continue
        pack = [runs[i] for i in members]
        if pack_name(pack, [sha256[run.corpus] for run in pack]) == state.parent.name:
            packs.append(members)
            used.update(members)
    return packs


def _names(folder: Path) -> list[str]:
    """Return the names of a pack's runs by its first checkpoint; none if it cannot be read."""
    try:
        with safe_open(pack_checkpoint(folder, 0), framework="np") as file:
            return msgspec.json.decode(file.metadata()["runs"], type=list[str])
    except (SafetensorError, OSError, KeyError, TypeError, msgspec.MsgspecError):
        return []
