"""Five runs of the published shapes, made and not trained: used by `benchmarks/study.py`."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from toposcope.family import build
from toposcope.family.run import SIZES
from toposcope.seeds import derive_seed

SEED = 42
EVERY = 100
DRIFT, SHAKE = 0.002, 0.004
"""What each step adds to a weight: a drift of its own, and noise; standard deviations."""


FORMATS = ("safetensors", "pt")
"""As `toposcope train` writes checkpoints, and as the published ones were saved."""


def make_family(folder: Path, count: int) -> dict[str, list[Path]]:
    """Write `count` checkpoints of each size in each format, and a training log beside them; return the runs."""
    for size in SIZES:
        _make_runs(folder, size, count)
    return {format: [folder / format / size for size in SIZES] for format in FORMATS}


def _make_runs(folder: Path, size: str, count: int) -> None:
    for format in FORMATS:
        (folder / format / size / "checkpoints").mkdir(parents=True)
    generator = torch.Generator().manual_seed(derive_seed(SEED, "walk", size))
    model = build(size, seed=SEED)
    weights = dict(model.named_parameters())
    drift = {name: DRIFT * torch.randn(w.shape, generator=generator) for name, w in weights.items()}
    losses = _losses(size, (count - 1) * EVERY + 1)
    for k in range(count):
        step = k * EVERY
        file, state = f"{size}/checkpoints/step_{step:06d}", model.state_dict()
        torch.save({"step": step, "model_state_dict": state, "loss": float(losses[step])}, folder / "pt" / f"{file}.pt")
        own = {key: tensor.clone() for key, tensor in state.items()}  # a tied head is one tensor with two names
        save_file(own, folder / "safetensors" / f"{file}.safetensors", metadata={"format": "pt"})
        with torch.no_grad():
            for name, w in weights.items():
                w.add_(drift[name] + SHAKE * torch.randn(w.shape, generator=generator))
    rows = [f"{step},{loss:.6f},{0.003:.6f}" for step, loss in enumerate(losses)]
    log = "\n".join(["step,loss,learning_rate", *rows]) + "\n"
    for format in FORMATS:
        (folder / format / size / "log.csv").write_text(log, encoding="utf-8")


def _losses(size: str, count: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(derive_seed(SEED, "losses", size))
    return np.asarray(1.5 + 3.4 * (1 + np.arange(count) / 50) ** -0.4 + 0.05 * rng.standard_normal(count))
