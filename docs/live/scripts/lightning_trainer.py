"""The Trainer of Lightning, monitored: a small network that learns the parity of bits."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import toposcope as ts

BITS = 10


class Parity(lightning.LightningModule):
    """A network with two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(BITS, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 2))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


lightning.seed_everything(0)
bits = torch.randint(2, (2000, BITS))
rows = TensorDataset(bits.float(), bits.sum(1) % 2)
train, held_out = torch.utils.data.random_split(rows, [1600, 400])

trainer = lightning.Trainer(
    max_epochs=6,
    accelerator="cpu",
    logger=False,
    log_every_n_steps=1,
    callbacks=[ts.Monitor(directory="runs/lightning", every=20).for_lightning()],
)
trainer.fit(Parity(), DataLoader(train, 64, shuffle=True), DataLoader(held_out, 64))
