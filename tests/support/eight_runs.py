"""Eight runs in the formats of real tools: five that need a person, and three that do not."""

import json
import os
import time
from pathlib import Path

import numpy as np

PLANNED = 1000
NEED_A_PERSON = {"nan", "diverged", "plateau", "silent", "crashed"}
TRACEBACK = """Traceback (most recent call last):
  File "/home/someone/train.py", line 312, in <module>
    loss = model(X, Y)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
"""


def losses(n: int, seed: int = 0) -> np.ndarray:
    t = np.arange(1, n + 1)
    return np.asarray(2 + 6 * t**-0.4 + np.random.default_rng(seed).normal(0, 0.02, n))


def csv(path: Path, values: np.ndarray) -> Path:
    t = np.arange(1, len(values) + 1)
    rates = 3e-4 * (0.55 + 0.45 * np.cos(np.pi * t / PLANNED))
    rows = [f"{step},{loss:.5f},{rate:.8f},{PLANNED}" for step, loss, rate in zip(t, values, rates, strict=True)]
    return _written(path, "\n".join(["step,loss,lr,max_steps", *rows]) + "\n")


def trainer_state(path: Path, values: np.ndarray) -> Path:
    history = [{"step": step, "loss": round(float(loss), 4)} for step, loss in enumerate(values, 1)]
    return _written(path, json.dumps({"log_history": history, "max_steps": PLANNED, "global_step": len(values)}))


def console(path: Path, values: np.ndarray, end: str = "") -> Path:
    lines = [f"iter {step}: loss {loss:.4f}, time 130.22ms, mfu 41.10%" for step, loss in enumerate(values, 1)]
    return _written(path, "\n".join(lines) + f"\n{end}")


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def hours_old(path: Path, hours: float) -> None:
    os.utime(path, (time.time() - 3600 * hours,) * 2)


def write_eight(folder: Path) -> Path:
    csv(folder / "healthy" / "log.csv", losses(500))
    trainer_state(folder / "finished" / "trainer_state.json", losses(PLANNED, 1))
    csv(folder / "nan" / "log.csv", np.append(losses(400, 2), np.full(60, np.nan)))
    csv(folder / "diverged" / "log.csv", np.append(losses(400, 3), np.linspace(3, 90, 60)))
    csv(folder / "plateau" / "log.csv", 10.4 + np.random.default_rng(4).normal(0, 0.01, 500))
    hours_old(csv(folder / "silent" / "log.csv", losses(500, 5)), 5)
    csv(folder / "started" / "log.csv", losses(3, 6))
    console(folder / "crashed" / "train.log", losses(500, 7), TRACEBACK)
    return folder
