"""Monitored training on two ranks, in the ways in which one rank could keep the other waiting."""

import time
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
from torch import nn

from toposcope.monitor import ranks as rank_group
from toposcope.monitor.budget import Planner
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.quantities import Quantities
from toposcope.monitor.session import Session

STEPS, EVERY = 20, 4


def train(kind: str, directory: str, trouble: str = "") -> list[float]:
    """The losses of a rank; `trouble` says what goes wrong. Without a directory there is no monitor."""
    rank = dist.get_rank()
    if trouble:  # without, no rank is waited for in vain, and a slow machine may take its time
        rank_group.START_SECONDS = rank_group.END_SECONDS = 2.0
    if kind == "fsdp2":
        model: nn.Module = ranks.fsdp2(2)
    else:
        model = nn.parallel.DistributedDataParallel(ranks.model_of())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    _prepare(trouble, rank)
    monitor = None
    if directory and not (trouble == "only the first rank has a monitor" and rank):
        monitor = Monitor(model, Path(directory), every=EVERY, budget=0.9, quiet=True)
        monitor.attach(optimizer)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(ranks.data(rank, 2)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if monitor is not None:
            monitor.log(loss=loss)
    if monitor is not None and not (trouble == "only the first rank closes" and rank):
        monitor.close()
    return losses


def _prepare(trouble: str, rank: int) -> None:
    if trouble == "the first rank is slow" and rank == 0:
        _slow(Session, "handle", 0.05)
        _slow(Quantities, "after", 0.2)
    elif trouble == "the second rank is slow" and rank == 1:
        _slow(Quantities, "after", 0.2)
    elif trouble == "the planner fails" and rank == 0:
        _failing(Planner, "at")
    elif trouble == f"the {('first', 'second')[rank]} rank's measurement fails":
        _failing(Quantities, "_measured", at=3)
    elif trouble == "the thread dies" and rank == 0:
        _failing(Session, "handle", at=3)
    elif trouble == "the study cannot be made" and rank == 0:
        _failing(Session, "__init__")


def _slow(cls: Any, name: str, seconds: float) -> None:
    original = getattr(cls, name)

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return original(*arguments, **options)

    setattr(cls, name, slow)


def _failing(cls: Any, name: str, at: int = 1) -> None:
    original, calls = getattr(cls, name), []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) >= at:
            raise RuntimeError(f"{name} failed for a test")
        return original(*arguments, **options)

    setattr(cls, name, failing)
