"""The Trainer of transformers, monitored: a small GPT-2, trained on the characters of a module of Python's library."""

import argparse
from pathlib import Path

from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import toposcope as ts

CONTEXT = 64


class Characters(Dataset):
    """Rows of characters, by number."""

    def __init__(self) -> None:
        text = Path(argparse.__file__).read_text(encoding="utf-8")
        number = {c: i for i, c in enumerate(sorted(set(text)))}
        self.ids, self.vocabulary = [number[c] for c in text], len(number)

    def __len__(self) -> int:
        return len(self.ids) // CONTEXT

    def __getitem__(self, row: int) -> dict[str, list[int]]:
        ids = self.ids[row * CONTEXT : (row + 1) * CONTEXT]
        return {"input_ids": ids, "labels": ids}


data = Characters()
trainer = Trainer(
    GPT2LMHeadModel(
        GPT2Config(vocab_size=data.vocabulary, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, eos_token_id=0)
    ),
    TrainingArguments(
        "checkpoints",
        max_steps=100,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=1,
        save_steps=50,
        report_to="none",
    ),
    train_dataset=data,
)
trainer.add_callback(ts.Monitor(directory="runs/trainer", every=10).for_trainer())
trainer.train()
