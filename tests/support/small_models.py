"""Small models on disk that read a text, and what the probes tell of a cloud by other libraries."""

import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ripser import ripser
from safetensors.torch import save_file
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist, squareform
from scipy.stats import entropy

from toposcope.checkpoints import Checkpoint
from toposcope.family.model import GPT, build
from toposcope.models import Origin, Reader
from toposcope.models.texts import read_saved_text
from toposcope.probes import Failure, Measurement, Probe, ProbeInput

Matrix = NDArray[np.float64]

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ran", "off", "to", "see", "what", "lay", "beyond"]
SIZE = "med-21k"
"""Of the family: two blocks, width 24; a published size needs no file that tells it."""


def some_lines(n_lines: int = 30, seed: int = 0) -> str:
    """Lines of 100 to 200 characters, of words in an order that only the seed decides."""
    draw = random.Random(seed)
    lines = [" ".join(draw.choice(WORDS) for _ in range(draw.randint(29, 36))) for _ in range(n_lines)]
    return "\n".join(lines)


def family_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> GPT:
    """A model of the family whose states differ well from layer to layer."""
    model = build(SIZE, seed=seed).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    return model.eval()


def save(model: GPT, folder: Path, step: int = 10) -> Checkpoint:
    """The file of a model of the family."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step}.safetensors"
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, path)
    return Checkpoint(path, step)


def by_hooks(model: GPT, sequences: Iterable[list[int]]) -> list[list[Matrix]]:
    """The hidden states of each sequence, read by itself: those that enter each block, and those behind the norm."""
    found: list[list[Matrix]] = []
    seen: list[Matrix] = []
    hooks = [
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0].double().numpy()))
        for block in model.layers
    ]
    hooks.append(model.ln_f.register_forward_hook(lambda _m, _i, output: seen.append(output[0].double().numpy())))
    for ids in sequences:
        seen.clear()
        with torch.no_grad():
            model(torch.tensor([ids]))
        found.append(list(seen))
    for hook in hooks:
        hook.remove()
    return found


def characters(text: str) -> list[int]:
    return [ord(letter) % 128 for letter in text]


def even_windows(ids: list[int], count: int, length: int) -> list[list[int]]:
    """Stretches of a text whose beginnings are spread from its first token to the last that there is room for."""
    starts = np.linspace(0, len(ids) - length, count).round().astype(int)
    return [ids[start : start + length] for start in starts]


def subject_of(checkpoint: Checkpoint, text: str, wanted: Iterable[str], **filled: Any) -> ProbeInput:
    """What a study hands a probe that reads a text."""
    path = Path(str(checkpoint.location)).parent / "text.txt"
    path.write_bytes(text.encode())
    layers = checkpoint.analysed()
    return ProbeInput(
        layers,
        frozenset(wanted),
        inputs={"model": Reader(checkpoint, Origin(), partial(read_saved_text, path))},
        **filled,
    )


def measure(probe: Probe, checkpoint: Checkpoint, text: str) -> dict[str, Measurement | Failure]:
    """What a probe finds, by pseudo-layer, in order."""
    wanted = probe.covers([layer.name for layer in checkpoint.analysed()])
    results = list(probe.measure(subject_of(checkpoint, text, wanted)))
    assert [result.layer for result in results] == wanted
    return {result.layer: result for result in results}


def measured(probe: Probe, checkpoint: Checkpoint, text: str) -> dict[str, Measurement]:
    """The same, where nothing may fail."""
    found = {}
    for layer, result in measure(probe, checkpoint, text).items():
        assert isinstance(result, Measurement), result
        assert all(np.isfinite(value) for value in result.statistics.values())
        found[layer] = result
    return found


def spectrum_of(points: Matrix) -> dict[str, float]:
    """Spectral statistics by NumPy and SciPy."""
    n = len(points)
    centred = points - points.mean(axis=0)
    sigma = np.linalg.svd(centred, compute_uv=False)
    sigma = sigma[sigma > 1e-13 * sigma[0]]
    eigenvalues = sigma**2 / (n - 1)
    norms = np.linalg.norm(points, axis=1)
    cosines = (points @ points.T) / np.outer(norms, norms)
    return {
        "n_points": n,
        "n_zero": 0,
        "rankme": np.exp(entropy(sigma)),
        "effective_rank": np.exp(entropy(eigenvalues)),
        "participation_ratio": eigenvalues.sum() ** 2 / (eigenvalues**2).sum(),
        "stable_rank": eigenvalues.sum() / eigenvalues[0],
        "top_eigenvalue": eigenvalues[0],
        "anisotropy": cosines[np.triu_indices(n, 1)].mean(),
        "mean_norm": norms.mean(),
        "rms_radius": np.sqrt((centred**2).sum(axis=1).mean()),
    }


def total_of_components(points: Matrix, metric: str = "euclidean") -> float:
    """Total persistence of H0: clusters join where bars end, by SciPy's single linkage."""
    return float(linkage(pdist(points, metric), "single")[:, 2].sum())


def loops(points: Matrix, metric: str = "euclidean") -> Matrix:
    """H1 by Ripser, by birth."""
    bars = np.asarray(ripser(squareform(pdist(points, metric)), maxdim=1, distance_matrix=True)["dgms"][1])
    return np.asarray(bars[np.lexsort((bars[:, 1], bars[:, 0]))], dtype=np.float64)
