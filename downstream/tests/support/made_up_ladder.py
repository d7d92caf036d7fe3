"""A made-up ladder of models on made-up tasks, as a tidy table: the score at any size is known."""

import json
from pathlib import Path

import numpy as np

SIZES = (5e7, 1e8, 2e8, 4e8, 8e8)
LENGTHS = (20, 40, 80, 160)
"""Tokens for each parameter."""
TASKS = {"bridges": (0.25, 0.9, 5.0, 1.0), "harbours": (0.5, 0.95, 4.0, 0.9)}
"""Chance, best score, slope and midpoint of the link."""
QUESTIONS = 4000
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0)


def true_loss(N: float, D: float) -> float:
    """Bits per byte of a task's right answers."""
    return float(0.45 + 40 / N**0.25 + 60 / D**0.22)


def true_score(task: str, N: float, D: float) -> float:
    """The score without noise."""
    chance, best, slope, midpoint = TASKS[task]
    return float(chance + (best - chance) / (1 + np.exp(slope * (true_loss(N, D) - midpoint))))


def write_ladder(path: Path, *, chance_task: bool = False, seed: int = 0) -> Path:
    """Write ``run,N,D,task,metric,value,n``: accuracy and bits per byte along the training of twenty runs.

    With `chance_task` also a task ``riddles`` on which every model guesses among four.
    """
    draw = np.random.default_rng(seed)
    lines = ["run,N,D,task,metric,value,n"]
    for N in SIZES:
        for length in LENGTHS:
            for D in (share * length * N for share in SHARES):
                start = f"{N / 1e6:.0f}M-{length}x,{N:.0f},{D:.0f}"
                for task in TASKS:
                    score = draw.binomial(QUESTIONS, true_score(task, N, D)) / QUESTIONS
                    loss = true_loss(N, D) * (1 + 0.003 * draw.normal())
                    lines += [f"{start},{task},acc,{score},{QUESTIONS}", f"{start},{task},bits_per_byte,{loss},"]
                if chance_task:
                    lines.append(f"{start},riddles,acc,{draw.binomial(400, 0.25) / 400},400")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_results(folder: Path, seed: int = 0) -> Path:
    """Write results as lm-evaluation-harness does, a folder for each run at its end, and ``runs.csv`` beside them."""
    draw = np.random.default_rng(seed)
    runs = ["run,N,D"]
    for N in SIZES:
        for length in LENGTHS:
            name, D = f"made/{N / 1e6:.0f}M-{length // 20}xC", length * N
            runs.append(f"{name},{N:.0f},{D:.0f}")
            shares = {task: draw.binomial(QUESTIONS, true_score(task, N, D)) / QUESTIONS for task in TASKS}
            results = {
                task: {"alias": task, "acc,none": share, "acc_stderr,none": (share * (1 - share) / QUESTIONS) ** 0.5}
                for task, share in shares.items()
            }
            found = {
                "results": results,
                "n-shot": dict.fromkeys(TASKS, 5),
                "n-samples": {task: {"original": QUESTIONS, "effective": QUESTIONS} for task in TASKS},
                "higher_is_better": {task: {"acc": True} for task in TASKS},
                "config": {"model": "hf", "model_args": f"pretrained={name}"},
                "date": 1764000000.0,
                "model_name": name,
            }
            place = folder / name.replace("/", "__") / "results_2026-11-24T10-00-00.000000.json"
            place.parent.mkdir(parents=True)
            place.write_text(json.dumps(found), encoding="utf-8")
    (folder / "runs.csv").write_text("\n".join(runs) + "\n", encoding="utf-8")
    return folder
