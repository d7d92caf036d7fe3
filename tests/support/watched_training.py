"""A small language model trained in the ways people train, with a monitor and without."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from monitored import SlowSteps
from property_examples import THOROUGH
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from toposcope.monitor.monitor import Monitor

STEPS, EVERY, WIDTH, CONTEXT, VOCABULARY = 100 if THOROUGH else 40, 5, 64, 32, 97
WAYS = (
    *("plain", "dropout", "fused", "foreach", "sgd", "compiled", "autocast", "scaled", "scaled fused"),
    *("accumulated", "checkpointed", "clipped", "half", "two threads"),
)


class Model(nn.Module):
    """Two blocks of attention and MLP between tied embeddings."""

    def __init__(self, dropout: float, *, recompute: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        made = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout, batch_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(made)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        x = self.embed_tokens(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=x.device, dtype=x.dtype)
        for layer in self.layers:
            x = checkpoint(layer, x, mask, use_reentrant=False) if self.recompute else layer(x, mask)
        logits: Tensor = self.lm_head(x)
        return logits


def train(
    way: str, directory: Path | None, steps: int = STEPS, every: int = EVERY, device: str = "cpu"
) -> tuple[list[float], list[Tensor]]:
    """Losses, weights and the state of the random numbers after training, with a monitor in a directory or without."""
    torch.set_num_threads(2 if way == "two threads" else 1)
    torch.manual_seed(0)
    model = Model(0.1 if way in {"dropout", "checkpointed", "compiled"} else 0.0, recompute=way == "checkpointed")
    model = model.to(device, torch.bfloat16 if way == "half" else torch.float32)
    called: Any = torch.compile(model, backend="aot_eager", fullgraph=True) if way == "compiled" else model
    optimizer = _optimizer(way, model)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**16, growth_interval=20, enabled=way.startswith("scaled"))
    losses = []
    clock = SlowSteps()
    # Much is measured: a budget that training would feel.
    batch = (torch.arange(2 * CONTEXT) % VOCABULARY).reshape(2, CONTEXT).to(device)
    watching = (
        nullcontext()
        if directory is None
        else Monitor(called, directory, every=every, budget=0.9, batch=batch, quiet=True, clock=clock)
    )
    with watching as monitor:
        if monitor is not None:
            monitor.attach(optimizer)
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(2 if way == "accumulated" else 1):
                tokens = torch.randint(VOCABULARY, (8, CONTEXT + 1)).to(device)
                with torch.autocast(device, torch.bfloat16, enabled=way == "autocast"):
                    logits = called(tokens[:, :-1])
                    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            if way == "clipped":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if monitor is not None:
                clock.before_step(monitor)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            if monitor is not None:
                monitor.log(loss=loss)
    return losses, [*(p.detach().clone() for p in model.parameters()), torch.get_rng_state()]


def _optimizer(way: str, model: nn.Module) -> torch.optim.Optimizer:
    if way == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options: dict[str, Any] = {"fused": True} if "fused" in way else {"foreach": True} if way == "foreach" else {}
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
