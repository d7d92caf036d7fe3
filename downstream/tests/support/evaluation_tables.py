"""Tables of evaluations as leaderboards and papers write them, with what is right in each."""

import random
from collections.abc import Callable
from dataclasses import dataclass

TASKS = (
    *"ARC ARC-c arc_challenge ARC-Easy HellaSwag MMLU MMLU-Pro TruthfulQA Winogrande GSM8K BBH IFEval GPQA".split(),
    *"MUSR CEval CMMLU C-Eval AGIEval HumanEval MBPP DROP Frobnicate zorp_qa Näive-QA 问答 Kobest LiveBench".split(),
    *("MATH Lvl 5", "SuperTask 2", "belebele", "ARC-AGI"),
)
AVERAGES = ("Average", "Avg.", "avg", "Mean", "Overall", "macro_avg", "Average score", "Avg acc", "AVERAGE (all tasks)")
MARKS = ("", "", " ⬆️", " ↑", " 🔥", "📚 ")
OTHERS: dict[str, Callable[[random.Random], str]] = {
    "Likes": lambda rng: str(rng.randrange(90)),
    "Hub ❤️": lambda rng: str(rng.randrange(90)),
    "CO₂ cost (kg)": lambda rng: f"{rng.uniform(0, 9):.2f}",
    "Precision": lambda rng: rng.choice(["bfloat16", "float16"]),
    "Rank": lambda rng: str(rng.randrange(1, 50)),
    "Elo": lambda rng: str(rng.randrange(900, 1300)),
    "Latency (ms)": lambda rng: str(rng.randrange(5, 95)),
    "License": lambda rng: "apache-2.0",
    "MT-Bench": lambda rng: f"{rng.uniform(3, 9):.1f}",
    "Release date": lambda rng: "2024-05-01",
    "Context length": lambda rng: "32",
    "Unnamed: 0": lambda rng: str(rng.randrange(90)),
    "Flagged": lambda rng: rng.choice(["True", "False"]),
}
"""Columns that are no tasks."""
GAPS = ("", "-", "N/A", "—", "n/a")
SIZES = (0.1, 0.4, 1.0, 3.0, 7.0, 13.0)
"""Parameters of the models, in billions."""


@dataclass(frozen=True)
class EvaluationTable:
    """A table's text and what is in it."""

    text: str
    scores: dict[str, list[float | None]]
    """Shares from 0 to 1 by the column's name, a run each."""
    averages: list[str]
    others: list[str]
    sizes: list[float]


def evaluation_table(seed: int) -> EvaluationTable:
    """Return a table with columns in any order; the same of the same seed."""
    rng = random.Random(seed)
    separator = rng.choice([",", "\t", ";"])
    models = [f"model-{letter}" for letter in "abcdef"[: rng.randrange(2, 7)]]
    sizes = [1e9 * size for size in SIZES[: len(models)]]
    unit = rng.choice(["share", "number", "percent", "some"])
    columns: dict[str, list[str]] = {}
    scores: dict[str, list[float | None]] = {}
    for task in rng.sample(TASKS, rng.randrange(3, 9)):
        name = _decorated(task, rng)
        shares: list[float | None] = [round(rng.uniform(0.12, 0.95), 4) for _ in models]
        if rng.random() < 0.3:
            shares[rng.randrange(1, len(models))] = None
        signed = unit == "percent" or (unit == "some" and rng.random() < 0.5)
        columns[name] = [_cell(share, unit, signed, rng) for share in shares]
        scores[name] = shares
    averages = [_marked(name, rng) for name in rng.sample(AVERAGES, rng.randrange(3))]
    for name in averages:
        columns[name] = [_cell(rng.uniform(0.2, 0.9), unit, unit == "percent", rng) for _ in models]
    others = rng.sample(sorted(OTHERS), rng.randrange(4))
    for name in others:
        columns[name] = [OTHERS[name](rng) for _ in models]
    name, written = rng.choice(
        [
            ("#Params (B)", [f"{size / 1e9:g}" for size in sizes]),
            ("Size", [f"{size / 1e9:g}B" for size in sizes]),
            ("params", [f"{size:.0f}" for size in sizes]),
            ("Params (M)", [f"{size / 1e6:g}" for size in sizes]),
        ]
    )
    columns[name] = written
    names = sorted(columns)
    rng.shuffle(names)
    first = rng.choice(["Model", "model_name", "run"])
    if rng.random() < 0.2:
        models = [f"[{model}](https://example.org/{model})" for model in models]
    rows = [[first, *names], *([model, *(columns[n][i] for n in names)] for i, model in enumerate(models))]
    text = "".join(separator.join(row) + "\n" for row in rows)
    return EvaluationTable(text, scores, averages, others, sizes)


def _decorated(task: str, rng: random.Random) -> str:
    return _marked(task + rng.choice(["", "", "", " (5-shot)", " (10-shot)", " (acc)", " Score"]), rng)


def _marked(name: str, rng: random.Random) -> str:
    mark = rng.choice(MARKS)
    return mark + name if mark.endswith(" ") else name + mark


def _cell(share: float | None, unit: str, signed: bool, rng: random.Random) -> str:
    if share is None:
        return rng.choice(GAPS)
    if unit == "share":
        return f"{share:.4f}"
    spread = rng.choice(["", "", "", " ± 0.3"])
    return f"{100 * share:.2f}" + ("%" if signed else "") + spread
