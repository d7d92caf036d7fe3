"""A loop with Accelerate, monitored, with gradient accumulation: a small network that learns the parity of bits."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import toposcope as ts

BITS, STEPS = 10, 150

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
torch.manual_seed(0)
bits = torch.randint(2, (4096, BITS))
rows = DataLoader(TensorDataset(bits.float(), bits.sum(1) % 2), 32, shuffle=True)
model = nn.Sequential(nn.Linear(BITS, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, rows = accelerator.prepare(model, optimizer, rows)

with ts.Monitor(model, "runs/accelerate", every=20, last_step=STEPS) as monitor:
    monitor.attach(optimizer)
    while monitor.step < STEPS:
        for inputs, parity in rows:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), parity)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                monitor.log(loss=loss)
            if monitor.step == STEPS:
                break
