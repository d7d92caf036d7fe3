"""Monitored training on two ranks, in the ways in which one rank could keep the other waiting."""

import itertools
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

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


def train_all(kind: str, folder: str, faults: list[str]) -> dict[str, list[float]]:
    """The losses of a rank without a monitor, with one, and with each fault; all in one pair of processes."""
    losses = {"unwatched": train(kind, "")}
    for k, fault in enumerate(["", *faults]):
        with ExitStack() as patches:
            patches.enter_context(patch.object(rank_group, "_numbers", itertools.count(1000 * k)))
            _plant(fault, dist.get_rank(), patches)
            losses[fault] = train(kind, f"{folder}/{fault or 'run'}", fault)
        dist.barrier()
    return losses


def train(kind: str, directory: str, fault: str = "") -> list[float]:
    """The losses of a rank; without a directory there is no monitor."""
    rank = dist.get_rank()
    if kind == "fsdp2":
        model: nn.Module = ranks.fsdp2(2)
    else:
        model = nn.parallel.DistributedDataParallel(ranks.model_of())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = None
    if directory and not (fault == "only the first rank has a monitor" and rank):
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
    if monitor is not None and not (fault == "only the first rank closes" and rank):
        monitor.close()
    return losses


def _plant(fault: str, rank: int, patches: ExitStack) -> None:
    if fault:  # without, no rank is waited for in vain, and a slow machine may take its time
        for name in ("START_SECONDS", "END_SECONDS"):
            patches.enter_context(patch.object(rank_group, name, 2.0))
    if fault == "the first rank is slow" and rank == 0:
        patches.enter_context(_slow(Session, "handle", 0.05))
        patches.enter_context(_slow(Quantities, "after", 0.2))
    elif fault == "the second rank is slow" and rank == 1:
        patches.enter_context(_slow(Quantities, "after", 0.2))
    elif fault == "the planner fails" and rank == 0:
        patches.enter_context(_failing(Planner, "at"))
    elif fault == f"the {('first', 'second')[rank]} rank's measurement fails":
        patches.enter_context(_failing(Quantities, "_measured", at=3))
    elif fault == "the thread dies" and rank == 0:
        patches.enter_context(_failing(Session, "handle", at=3))
    elif fault == "the study cannot be made" and rank == 0:
        patches.enter_context(_failing(Session, "__init__"))


def _slow(cls: Any, name: str, seconds: float) -> Any:
    original = getattr(cls, name)

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return original(*arguments, **options)

    return patch.object(cls, name, slow)


def _failing(cls: Any, name: str, at: int = 1) -> Any:
    original, calls = getattr(cls, name), []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) >= at:
            raise RuntimeError(f"{name} failed for a test")
        return original(*arguments, **options)

    return patch.object(cls, name, failing)
