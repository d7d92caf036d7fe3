"""Trains the demo's runs one after another with the monitor attached, in a plain loop."""

from pathlib import Path

import torch
from torch import nn

from toposcope.family import FamilyRun
from toposcope.family import corpus as corpora
from toposcope.family.batches import validation_sequences
from toposcope.family.model import build
from toposcope.monitor.monitor import Monitor
from toposcope.progress import Progress, silent
from toposcope.seeds import derive_seed
from toposcope.study import Declaration

BUDGET = 0.2  # budget of the monitor; high, since a step of so small a model takes only as long as a measurement
EVERY = 40
VALIDATED_EVERY = 100
CORPUS = "corpus.safetensors"


def train_monitored(declaration: Declaration, directory: Path, progress: Progress = silent) -> None:
    """Train the declared runs with the monitor attached, each into its own study; existing studies are skipped."""
    torch.set_num_threads(1)  # more threads only slow down models this small
    directory.mkdir(parents=True, exist_ok=True)
    corpora.prepare(declaration.corpus, directory / CORPUS)
    tokens = corpora.load(directory / CORPUS)
    for run in declaration.resolved_runs():
        if not (directory / run.name / "study.db").exists():
            train_run(run, tokens, directory / run.name, progress)


def train_run(run: FamilyRun, tokens: corpora.Tokens, directory: Path, progress: Progress = silent) -> None:
    """Train one run with the monitor attached."""
    training, length = run.training, run.size.context + 1
    model = build(run.size, seed=training.seed)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)
    validation = validation_sequences(run, tokens)
    batches = torch.Generator().manual_seed(derive_seed(training.seed, "batches"))
    window, last = torch.arange(length), len(tokens.training) - length
    n_tokens = training.batch_size * run.size.context
    with Monitor(
        model, directory, every=EVERY, budget=BUDGET, last_step=training.steps, tokens_per_step=n_tokens, quiet=True
    ) as monitor:
        monitor.attach(optimizer)
        for step in range(1, training.steps + 1):
            starts = torch.randint(0, last + 1, (training.batch_size, 1), generator=batches)
            optimizer.param_groups[0]["lr"] = training.rate(step)
            loss = model.loss(tokens.training[starts + window])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = nn.utils.clip_grad_norm_(parameters, training.gradient_clip)
            optimizer.step()
            monitor.log(loss=loss, lr=training.rate(step), grad_norm=norm)
            if step % VALIDATED_EVERY == 0 or step == training.steps:
                with torch.no_grad():
                    monitor.log(val_loss=model.loss(validation))
                progress(run.name, step, training.steps)
