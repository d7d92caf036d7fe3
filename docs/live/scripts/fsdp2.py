"""A sharded model (FSDP2, as in torchtitan), monitored: torchrun --nproc-per-node 2 fsdp2.py."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import toposcope as ts

STEPS, CONTEXT, WIDTH = 60, 64, 64


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        read = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(read.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def main() -> None:
    """Train on what each rank draws for itself."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    text = Path(argparse.__file__).read_text(encoding="utf-8")
    characters = sorted(set(text))
    data = torch.tensor([characters.index(c) for c in text])

    torch.manual_seed(0)
    blocks = [Block() for _ in range(2)]
    model = nn.Sequential(nn.Embedding(len(characters), WIDTH), *blocks, nn.Linear(WIDTH, len(characters), bias=False))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    torch.manual_seed(dist.get_rank())
    # every rank creates a monitor and logs; rank 0 writes the study
    with ts.Monitor(model, "runs/fsdp2", every=20, last_step=STEPS) as monitor:
        monitor.attach(optimizer)
        for _ in range(STEPS):
            starts = torch.randint(len(data) - CONTEXT - 1, (8,))
            rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
            loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
