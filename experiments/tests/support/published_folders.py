"""Folders of a study as others publish one: of weights, and of hidden states."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from small_studies import write_series

STEPS = [0, 10, 20, 30]


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def rows(seed: int, steps: list[int] | range = range(0, 300, 10), **more: Any) -> list[dict[str, Any]]:
    """Published features of one run, and the loss."""
    draw = np.random.default_rng(seed)
    return [
        {"step": s, "loss": draw.normal(), "h0_total_persistence": draw.normal(), "np_mean": draw.random(), **more}
        for s in steps
    ]


def hidden_states(folder: Path, models: tuple[str, ...] = ("pythia-70m", "pythia-160m", "pythia-410m")) -> Path:
    """A study of hidden states as it is published: a file for each model, one of all of them, and statistics."""
    steps = [0, 1, 2, 4, 8, 16]
    all_rows = {}
    for i, model in enumerate(models):
        draw = np.random.default_rng(i)
        all_rows[model] = [
            {"model": f"EleutherAI/{model}", "checkpoint": f"step{s}", "step": s, "perplexity": 1000.0 - 10 * s,
             "pca_dim": 50, "n_points": 200, "total_time_s": 1.5, "h0_total_persistence": draw.random(),
             "effective_rank": draw.random()}
            for s in steps
        ]  # fmt: skip
        write(folder / f"{model}_results.json", all_rows[model])
    write(folder / "all_results.json", all_rows)
    write(folder / "config.json", {"seed": 42, "models": list(models)})
    statistics = {
        model: {
            "h0_total_persistence": {"mean": 3.0, "spearman_rho_vs_ppl": -0.5 - 0.1 * i, "spearman_p_vs_ppl": 0.01},
            "h0_n_features": {"mean": 199.0, "spearman_rho_vs_ppl": math.nan},
            "eigenspectrum_decay_alpha": {"mean": 1.0, "spearman_rho_vs_ppl": 0.5},
            "perplexity": {"mean": 500.0},
        }
        for i, model in enumerate(models)
    }
    write(folder / "statistics.json", statistics)
    return folder


def published_weights(folder: Path) -> Path:
    """Two runs with checkpoints, logs and features; a third with features alone; correlations; and something else."""
    for seed, run in enumerate(("first", "second")):
        place = write_series(folder / "checkpoints" / run, STEPS, seed)
        log = [{"step": s, "loss": 5 - s / 30, "weight_norm_total": 10.0 + s} for s in range(31)]
        write(place / "training_log.json", log)
    features = {run: rows(i, STEPS) for i, run in enumerate(("first", "second", "third"))}
    write(folder / "results" / "features.json", features)
    told = {"first": {"h0_total_vs_loss": {"rho": -0.5, "p": 0.1}, "np_mean_vs_loss": {"rho": math.nan, "p": math.nan}}}
    moved = {"first": {"max_change_step": 10, "diminishing_step": 20}}
    write(folder / "analysis.json", {"correlations": told, "transitions": moved})
    write(folder / "results" / "machines.json", {"host": "a"})
    return folder
