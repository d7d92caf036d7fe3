"""Training steps per second: toposcope's loop against the loop tutorials write, on the same model and text.

    python benchmarks/training.py [--quick]

What is timed is the update loop alone, without checkpoints and validation. Before that, both must give the same loss
and the same gradients from the same weights on the same batch.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import click
import torch
from rich.progress import track

from bench import Column, command, interleaved, show, write
from result_files import Spread
from textbook import textbook_model, textbook_steps
from toposcope.family import SIZES, Corpus, FamilyRun, TrainingOptions, build
from toposcope.family.corpus import Tokens, load, prepare, spread_sequences
from toposcope.family.run_folder import Outcome
from toposcope.family.training import Trainer
from toposcope.progress import silent

CORPUS = Corpus(source="python-docs")
THREADS = (1, 2)
WARM_UP = 3
LEAST_STEPS = 3
COLUMNS = (
    Column("threads", "threads"),
    Column("size", "size"),
    Column("toposcope steps/s", "toposcope"),
    Column("textbook steps/s", "textbook"),
    Column("ratio", "ratio"),
)


@command("training", "3 repeats of 0.2 seconds, figures that mean little")
@click.option("--seconds", type=float, default=3.0, show_default=True, help="About how long one sample lasts.")
def main(quick: bool, repeats: int, seconds: float, out: Path) -> None:
    """Compare training steps per second with a textbook loop: five sizes, on one and on two torch threads.

    The two loops are sampled in turn. A ratio is that of neighbouring samples; in brackets, the lowest and the highest.
    """
    if quick:
        repeats, seconds = 3, 0.2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.safetensors"
        prepare(CORPUS, path)
        tokens = load(path)
        cases = [(threads, size) for threads in THREADS for size in SIZES]
        for size in SIZES:
            check_agreement(size, tokens)
        rows = [
            compare(size, threads, tokens, Path(folder), repeats, seconds)
            for threads, size in track(cases, description="training")
        ]
    show(rows, COLUMNS, "Training: median (lowest-highest)")
    facts = {
        "timed": "the update loop alone, without checkpoints and validation",
        "settings": f"batch size {TrainingOptions().batch_size}, context {SIZES['tiny-3k'].context}, as published",
        "corpus": f"{CORPUS.source}, {tokens.n_characters} characters, SHA-256 {tokens.sha256}",
        "samples": f"{repeats} of about {seconds:g} s each, in turn; median (lowest-highest)",
    }
    write("training", out, facts, {"Steps per second": (rows, COLUMNS)}, ("toposcope", "torch", "numpy"))


def compare(
    size: str, threads: int, tokens: Tokens, folder: Path, repeats: int, seconds: float
) -> dict[str, str | int | Spread]:
    """Time both loops on one size."""
    long = tokens.training.long()
    training = TrainingOptions(steps=10**6)
    model = textbook_model(size, training.seed)
    trainer = Trainer(FamilyRun(name=size, size=SIZES[size], corpus=CORPUS, training=training), tokens, folder / size)
    trainer.outcome = Outcome("running", 0)

    def ours(steps: int) -> None:
        trainer.advance(trainer.outcome.step + steps, silent)

    with _threads(threads):
        ours(WARM_UP)
        textbook_steps(model, long, training, WARM_UP)
        begin = perf_counter()
        textbook_steps(model, long, training, WARM_UP)
        steps = max(LEAST_STEPS, round(seconds * WARM_UP / (perf_counter() - begin)))
        taken = interleaved(
            {"toposcope": lambda: ours(steps), "textbook": lambda: textbook_steps(model, long, training, steps)},
            repeats,
        )
    return {
        "size": size,
        "parameters": SIZES[size].n_parameters,
        "threads": threads,
        "steps": steps,
        **{name: Spread.of([steps / s for s in samples]) for name, samples in taken.items()},
        "ratio": Spread.of([b / a for a, b in zip(taken["toposcope"], taken["textbook"], strict=True)]),
    }


def check_agreement(size: str, tokens: Tokens) -> None:
    """Refuse to time two loops that do not compute the same loss and gradients."""
    batch = spread_sequences(tokens.training, 8, SIZES[size].context + 1, "training")
    gradients = []
    for model in (build(size, seed=1), textbook_model(size, seed=1)):
        loss = model.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients.append([loss.detach(), *(p.grad for p in model.parameters())])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-6)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    main()
