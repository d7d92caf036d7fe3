"""A training loop as tutorials write it, the baseline of `benchmarks/training.py`: same model, data and optimizer."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from toposcope.family import GPT, SIZES, TrainingOptions, build
from toposcope.family.model import Attention


class TextbookAttention(nn.Module):
    """Scores, an explicit mask, an explicit softmax."""

    def __init__(self, source: Attention, hidden: int, context: int) -> None:
        super().__init__()
        self.heads = source.heads
        self.qkv, self.proj = source.qkv, source.proj
        self.width = hidden // source.heads
        self.register_buffer("mask", torch.tril(torch.ones(context, context)).view(1, 1, context, context))

    def forward(self, x: Tensor) -> Tensor:
        """Mix a batch of sequences, shape (batch, time, hidden)."""
        batch, time, hidden = x.shape
        query, key, value = self.qkv(x).split(hidden, dim=2)
        query = query.view(batch, time, self.heads, self.width).transpose(1, 2)
        key = key.view(batch, time, self.heads, self.width).transpose(1, 2)
        value = value.view(batch, time, self.heads, self.width).transpose(1, 2)
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(self.width)
        mask = self.get_buffer("mask")[:, :, :time, :time]
        weights = functional.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1)
        mixed = (weights @ value).transpose(1, 2).contiguous().view(batch, time, hidden)
        projected: Tensor = self.proj(mixed)
        return projected


def textbook_model(size_name: str, seed: int) -> GPT:
    """Make the family's model with the same initial weights and the textbook attention."""
    size = SIZES[size_name]
    model = build(size, seed=seed)
    for block in model.layers:
        attention = block.attn
        assert isinstance(attention, Attention)
        block.attn = TextbookAttention(attention, size.hidden, size.context)
    return model


def textbook_steps(model: GPT, data: Tensor, training: TrainingOptions, steps: int) -> list[float]:
    """Train for some steps and return every loss.

    Parameters
    ----------
    model : GPT
        From `textbook_model`.
    data : Tensor, shape (n,), int64
    training : TrainingOptions
    steps : int
    """
    size = model.size
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    generator = torch.Generator().manual_seed(training.seed)
    losses = []
    for step in range(1, steps + 1):
        starts = torch.randint(0, len(data) - size.context - 1, (training.batch_size,), generator=generator)
        x = torch.stack([data[i : i + size.context] for i in starts])
        y = torch.stack([data[i + 1 : i + 1 + size.context] for i in starts])
        for group in optimizer.param_groups:
            group["lr"] = training.rate(step)
        logits = model(x)
        loss = functional.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = 0.0
        for parameter in model.parameters():
            if parameter.grad is not None:
                norm += parameter.grad.norm(2).item() ** 2
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clip)
        optimizer.step()
        losses.append(loss.item())
    return losses
