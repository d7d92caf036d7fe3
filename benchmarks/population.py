"""64 runs of each published size trained together, against the same runs side by side, or one after another on a GPU.

    python benchmarks/population.py [--quick]

What is timed is updates alone, without checkpoints and validation. Before that, the losses of both ways must agree.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import click
import numpy as np
import torch
from rich.progress import track

from bench import Column, command, interleaved, ratio, show, write
from result_files import Spread
from textbook import textbook_model, textbook_steps
from toposcope.family import SIZES, Corpus, FamilyRun, TrainingOptions
from toposcope.family.batched import group_runs
from toposcope.family.batched.packs import MAX_CPU_BYTES, MAX_CPU_RUNS, run_bytes
from toposcope.family.batched.training import PackTrainer
from toposcope.family.corpus import Tokens, load, prepare
from toposcope.family.run_folder import Outcome
from toposcope.family.training import Trainer
from toposcope.progress import silent

RUNS = 64
BATCHES = (8, 16, 64)
PROCESSES = 2
STEPS = 20_000
"""Declared; as many are never made."""
CHECKED_STEPS = 3
ON_CPU = (
    Column("size", "size"),
    Column("batch", "batch"),
    Column("together, ms a step of all", "together"),
    Column("side by side, ms a step of all", "alone"),
    Column("ratio", "ratio"),
    Column("chosen", "chosen"),
)
ON_GPU = (
    Column("size", "size"),
    Column("together, ms a step of all", "together"),
    Column("one run, ms a step", "one"),
    Column("64 one after another / together", "ratio"),
    Column("textbook loop, ms a step of one", "textbook"),
)


@command("population", "two sizes, batches of 8, 16 runs, 3 repeats", repeats=5)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Compare training runs as one model with training them by themselves: ratios above 1 favour one model.

    The two ways are sampled in turn. A ratio is that of neighbouring samples; in brackets, the lowest and the highest.
    """
    sizes, batches, count, repeats = (
        (["tiny-3k", "xl-97k"], (8,), 16, 3) if quick else (list(SIZES), BATCHES, RUNS, repeats)
    )
    facts: dict[str, object] = {
        "timed": "updates alone, without checkpoints and validation",
        "runs": f"{count} of one size, different seeds, context 128",
        "samples": f"{repeats} of each way in turn; median (lowest-highest)",
    }
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.safetensors"
        prepare(Corpus(), corpus)
        if torch.cuda.is_available():
            facts |= {"gpu": torch.cuda.get_device_name(), "batch": "64 sequences, as published"}
            rows = [on_gpu(size, count, corpus, Path(folder), repeats) for size in track(sizes, "population")]
            columns: tuple[Column, ...] = ON_GPU
        else:
            facts["processes"] = f"{PROCESSES}, one thread each, for both ways"
            cases = [(size, batch) for batch in batches for size in sizes]
            rows = [on_cpu(*case, count, corpus, repeats) for case in track(cases, "population")]
            columns = ON_CPU
    show(rows, columns, "Training together: median (lowest-highest)")
    write(
        "population", out, facts, {"Milliseconds a step of all runs": (rows, columns)}, ("toposcope", "torch", "numpy")
    )


def declared(size: str, batch: int, count: int) -> list[FamilyRun]:
    """Declare runs that differ in their seeds."""
    return [
        FamilyRun(
            name=f"{size}-{seed}",
            size=SIZES[size],
            corpus=Corpus(),
            training=TrainingOptions(steps=STEPS, seed=seed, batch_size=batch),
        )
        for seed in range(count)
    ]


def on_cpu(size: str, batch: int, count: int, corpus: Path, repeats: int) -> dict[str, object]:
    """Time both ways in processes that each have a share of the runs."""
    runs = declared(size, batch, count)
    with workers(runs, corpus) as both:

        def make(way: str, steps: int) -> None:
            for worker in both:
                worker.send((way, steps))
            for worker in both:
                worker.recv()

        make("alone", 1)
        begin = perf_counter()
        make("alone", 1)
        steps = max(1, round(0.5 / (perf_counter() - begin)))
        make("together", steps)
        ways: dict[str, Callable[[], object]] = {
            "together": lambda: make("together", steps),
            "alone": lambda: make("alone", steps),
        }
        taken = interleaved(ways, repeats)
    chosen = group_runs(runs, processes=PROCESSES)
    return {
        "size": size,
        "batch": batch,
        "steps": steps,
        **{way: Spread.of([1000 * seconds / steps for seconds in samples]) for way, samples in taken.items()},
        "ratio": ratio(taken["alone"], taken["together"]),
        "chosen": "side by side" if all(len(group) == 1 for group in chosen) else "together",
    }


@contextmanager
def workers(runs: list[FamilyRun], corpus: Path) -> Iterator[list[Connection]]:
    """Start processes that make updates of their share of the runs when they are told the way and how many."""
    context = get_context("spawn")
    pairs = [context.Pipe() for _ in range(PROCESSES)]
    started = [
        context.Process(target=serve, args=(end, runs[k::PROCESSES], corpus), daemon=True)
        for k, (_, end) in enumerate(pairs)
    ]
    for process in started:
        process.start()
    try:
        yield [own for own, _ in pairs]
    finally:
        for own, _ in pairs:
            own.send(None)
        for process in started:
            process.join()


def serve(connection: Connection, runs: list[FamilyRun], corpus: Path) -> None:
    """Make updates on one thread until there is nothing more to do."""
    torch.set_num_threads(1)
    tokens = load(corpus)
    most = max(1, min(MAX_CPU_RUNS, MAX_CPU_BYTES // run_bytes(runs[0])))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = [alone_trainer(run, tokens, folder) for run in runs]
        together = [pack_trainer(runs[i : i + most], tokens, folder) for i in range(0, len(runs), most)]
        check_agreement(alone[:most], together[0])
        while (wanted := connection.recv()) is not None:
            way, steps = wanted
            for trainer in alone if way == "alone" else []:
                trainer.advance(trainer.outcome.step + steps, silent)
            for pack in together if way == "together" else []:
                pack.advance(pack.step + steps)
            connection.send(None)


def alone_trainer(run: FamilyRun, tokens: Tokens, folder: Path) -> Trainer:
    """Return a trainer of one run, before its first update."""
    trainer = Trainer(run, tokens, folder / run.name)
    trainer.outcome = Outcome("running", 0)
    return trainer


def pack_trainer(runs: list[FamilyRun], tokens: Tokens, folder: Path, device: str = "cpu") -> PackTrainer:
    """Return a trainer of several runs as one model, before its first update."""
    trainer = PackTrainer(runs, [tokens] * len(runs), folder / "pack", torch.device(device))
    trainer.step = 0
    return trainer


def check_agreement(alone: list[Trainer], pack: PackTrainer) -> None:
    """Refuse to time two ways that do not give the same losses."""
    pack.advance(CHECKED_STEPS)
    for i, trainer in enumerate(alone):
        trainer.advance(CHECKED_STEPS, silent)
        found = pack.record.losses[i, 1 : CHECKED_STEPS + 1].numpy()
        if not np.allclose(found, trainer.log[1 : CHECKED_STEPS + 1, 1], rtol=1e-4):
            raise click.ClickException(f"{trainer.run.name}: the losses do not agree; nothing was timed")


def on_gpu(size: str, count: int, corpus: Path, folder: Path, repeats: int) -> dict[str, object]:
    """Time all runs as one model, one run by itself, and a textbook loop, on a GPU."""
    runs, tokens = declared(size, 64, count), load(corpus)
    together, one = (pack_trainer(part, tokens, folder, "cuda") for part in (runs, runs[:1]))
    check_agreement([alone_trainer(runs[0], tokens, folder)], together)
    training, data = runs[0].training, tokens.training.long().cuda()
    model = textbook_model(size, training.seed).cuda()
    steps = 100

    def advance(trainer: PackTrainer) -> None:
        trainer.advance(trainer.step + steps)

    ways: dict[str, Callable[[], object]] = {
        "together": lambda: advance(together),
        "one": lambda: advance(one),
        "textbook": lambda: textbook_steps(model, data, training, steps),
    }
    for run in ways.values():
        run()
    taken = interleaved(ways, repeats)
    return {
        "size": size,
        "steps": steps,
        **{way: Spread.of([1000 * seconds / steps for seconds in samples]) for way, samples in taken.items()},
        "ratio": ratio([count * seconds for seconds in taken["one"]], taken["together"]),
    }


if __name__ == "__main__":
    main()
