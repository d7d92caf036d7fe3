"""A small training that is monitored, killed and resumed; run as ``python -m monitored FOLDER STEPS [KILL_AT]``."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from toposcope.monitor.monitor import Monitor

SAVE_EVERY = 10


def model_of(width: int = 24) -> nn.Module:
    """Return a small network with two layers that are analysed."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))


def train(folder: Path, steps: int, kill_at: int | None = None) -> None:
    """Train, saving now and then; go on from the last save; die without a word at a step."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    saved = folder / "last.pt"
    first = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = int(state["step"])
    monitor = Monitor(model, folder / "run", every=5, quiet=True)
    monitor.attach(optimizer)
    for step in range(first + 1, steps + 1):
        generator = torch.Generator().manual_seed(step)
        loss = model(torch.randn(16, 8, generator=generator)).square().mean() + 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss, lr=1e-2)
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % SAVE_EVERY == 0:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(content, folder / "new.pt")
            (folder / "new.pt").rename(saved)
    monitor.close()


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
