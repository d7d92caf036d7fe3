"""A plain PyTorch loop, monitored: a small model of characters, trained on a module of Python's library."""

import argparse
from pathlib import Path

import torch
from torch import nn

import toposcope as ts

STEPS, CONTEXT, WIDTH = 200, 64, 64


class Model(nn.Module):
    """A causal transformer of two blocks."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))


torch.manual_seed(0)
text = Path(argparse.__file__).read_text(encoding="utf-8")
characters = sorted(set(text))
data = torch.tensor([characters.index(c) for c in text])

model = Model(len(characters))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)

with ts.Monitor(model, "runs/plain", every=20, last_step=STEPS) as monitor:
    monitor.attach(optimizer)
    for _ in range(STEPS):
        starts = torch.randint(len(data) - CONTEXT - 1, (16,))
        rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss, lr=schedule.get_last_lr()[0])
        schedule.step()
