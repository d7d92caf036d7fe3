"""Forecasts that a monitor stores while small models train, against the final loss of each: calibration and presence.

    python benchmarks/running_forecasts.py [--quick]

Thirty trainings of a few seconds: GPTs and perceptrons on the next byte of Python's own library, perceptrons on a
mixture of normal clusters; AdamW and SGD, four schedules, three batch sizes, with and without a validation loss, logged
at every step and at every fifth. The monitor's clock is simulated: a step lasts half a second, so the runs last three
to eight minutes, and budgets and intervals are those of such runs. What a forecast costs is real.
"""

import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from time import sleep

import numpy as np
import polars as pl
import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

from bench import Column, command, show, write
from small_families import learning_rates, mlp
from toposcope import Monitor
from toposcope.family import build
from toposcope.family.run import ModelSize
from toposcope.logs import read_log
from toposcope.monitor.monitored_run import MonitoredRun
from toposcope.study import Study

Row = dict[str, object]
Loss = Callable[[torch.Generator, int], Tensor]  # takes the generator and the size of a batch

STEP_SECONDS = 0.5  # of a training step, by the simulated clock
CONTEXT = 32
MODULES = ("argparse", "doctest", "inspect", "pickle", "tarfile", "typing", "unittest.mock", "zipfile")
MODELS = ("GPT, 7k", "GPT, 30k", "GPT, 100k", "perceptron, bytes", "perceptron, clusters")
KINDS, BATCHES, LENGTHS = ("cosine", "wsd", "constant", "linear"), (8, 16, 48), (400, 700, 1000)
SPANS = (0.1, 0.25, 0.5, 0.75, 1.0)  # shares of the run between which forecasts are counted together

RUNS = (
    Column("run", "run"),
    Column("forecasts", "forecasts"),
    Column("first at", "first"),
    Column("longest gap", "gap"),
    Column("loss", "target"),
    Column("final loss", "final"),
    Column("intervals that hold it", "held"),
    Column("error at half, %", "error"),
    Column("half width there, %", "width"),
)
COVERAGE = (
    Column("share of the run seen", "span"),
    Column("forecasts", "forecasts"),
    Column("hold the final loss", "held"),
    Column("median error, %", "error"),
    Column("median half width, %", "width"),
)


@dataclass(frozen=True)
class Training:
    """One small training."""

    number: int

    @property
    def model(self) -> str:
        """Which model it trains."""
        return MODELS[self.number % len(MODELS)]

    @property
    def kind(self) -> str:
        """The schedule of its learning rate."""
        return KINDS[self.number % len(KINDS)]

    @property
    def is_sgd(self) -> bool:
        """Whether SGD with momentum trains it, in place of AdamW."""
        return self.number // len(MODELS) % 2 == 1

    @property
    def batch(self) -> int:
        """Sequences or points in a batch."""
        return BATCHES[self.number % len(BATCHES)]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return LENGTHS[self.number // 2 % len(LENGTHS)]

    @property
    def validated_every(self) -> int:
        """Steps between validation losses; 0 if there are none."""
        return (0, self.steps // 50, self.steps // 25)[self.number // 3 % 3]

    @property
    def logged_every(self) -> int:
        """Steps between rows of the log."""
        return (1, 5)[self.number // 7 % 2]

    def __str__(self) -> str:
        validated = f", validated every {self.validated_every}" if self.validated_every else ""
        optimizer = "SGD" if self.is_sgd else "AdamW"
        return f"{self.model}, {optimizer}, {self.kind}, batch {self.batch}, {self.steps} steps{validated}"


@command("running_forecasts", "two runs", None)
def main(quick: bool, out: Path) -> None:
    """Train, compare the stored forecasts with the final losses, and write the results."""
    tables = [forecasts_of(Training(k)) for k in track(range(2 if quick else 30), description="trainings")]
    rows = [summary(table) for table in tables]
    coverage = coverages(pl.concat(tables))
    titles = {"Coverage": (coverage, COVERAGE), "Runs": (rows, RUNS)}
    for title, (table, columns) in titles.items():
        show(table, columns, title)
    facts = {
        "a step": f"{STEP_SECONDS} s by the simulated clock",
        "monitor": "defaults: budget=0.01, last_step given; no siblings",
        "final loss": "of the complete log, as `toposcope forecast` reports it",
        "hold": "share of the stored 90% intervals that hold the final loss",
    }
    write("running-forecasts", out, facts, titles, ("toposcope", "torch"))


def forecasts_of(training: Training) -> pl.DataFrame:
    """Train with a monitor; return its stored forecasts next to the final loss."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "parent" / f"run{training.number}"
        target = train(training, directory)
        log, made = read_log(directory), Study.load(directory).forecasts()
    final = log.final_loss()[0]
    assert log.is_validation == (target == "validation loss")
    return made.select(
        pl.lit(str(training)).alias("run"),
        (pl.col("step") / training.steps).alias("share"),
        pl.lit(target).alias("target"),
        pl.lit(final).alias("final"),
        ((pl.col("low") <= final) & (pl.col("high") >= final)).alias("held"),
        (100 * (pl.col("loss") / final).log().abs()).alias("error"),
        (50 * (pl.col("high") / pl.col("low")).log()).alias("width"),
    )


def train(training: Training, directory: Path) -> str:
    """Train a model under a monitor whose clock is simulated; return which loss it forecast."""
    torch.set_num_threads(1)
    torch.manual_seed(training.number)
    generator = torch.Generator().manual_seed(training.number)
    model, loss_of = task(training)
    peak = (0.1 if training.is_sgd else 3e-3) * (0.3 if "GPT" not in training.model and not training.is_sgd else 1)
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), peak, momentum=0.9)
        if training.is_sgd
        else torch.optim.AdamW(model.parameters(), peak)
    )
    rates, now = peak * learning_rates(training.kind, training.steps), [0.0]
    monitor = Monitor(model, directory, last_step=training.steps, quiet=True, clock=lambda: now[0])
    monitor.attach(optimizer)
    for step in range(1, training.steps + 1):
        optimizer.param_groups[0]["lr"] = float(rates[step])
        loss = loss_of(generator, training.batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        now[0] += STEP_SECONDS
        optimizer.step()
        values = {"loss": loss.item()} if step % training.logged_every == 0 else {}
        if training.validated_every and step % training.validated_every == 0:
            with torch.no_grad():
                values["val_loss"] = loss_of(torch.Generator().manual_seed(10**6), 256).item()
        if values:
            monitor.log(None, **values, lr=float(rates[step]))
        if step % max(1, training.steps // 100) == 0:
            idle(monitor)
    assert isinstance(monitor._run, MonitoredRun)
    status = monitor._run._session.status()
    monitor.close()
    return str(status["forecast_target"])


def idle(monitor: Monitor) -> None:
    """Let the monitor's thread write and forecast, as it does by itself within a quarter of a second."""
    run = monitor._run
    assert isinstance(run, MonitoredRun)
    for _ in range(2):  # the thread idles after each job: at the second, the first time is over
        run._worker.put(lambda: None)
    while run._worker.unfinished:
        sleep(0.0005)


def task(training: Training) -> tuple[nn.Module, Loss]:
    """Return the model and how it gets the loss of a batch."""
    if training.model == "perceptron, clusters":
        return clusters()
    text = library()
    if training.model == "perceptron, bytes":
        embedding, rest = nn.Embedding(128, 12), mlp(96, 128)(48)
        model: nn.Module = nn.ModuleList([embedding, rest])

        def next_byte(generator: torch.Generator, size: int) -> Tensor:
            tokens = windows(text, generator, 8 * size, 9)
            return F.cross_entropy(rest(embedding(tokens[:, :-1]).flatten(1)), tokens[:, -1])

        return model, next_byte
    hidden, layers = {"GPT, 7k": (16, 1), "GPT, 30k": (32, 2), "GPT, 100k": (56, 2)}[training.model]
    gpt = build(ModelSize(hidden=hidden, layers=layers, heads=2, vocabulary=128, context=CONTEXT))
    return gpt, lambda generator, size: gpt.loss(windows(text, generator, size, CONTEXT + 1))


def library() -> Tensor:
    """Return the source text of modules of Python's library, its ASCII bytes."""
    text = "".join(inspect.getsource(import_module(name)) for name in MODULES)
    return torch.tensor(list(text.encode("ascii", "ignore")))


def windows(text: Tensor, generator: torch.Generator, size: int, length: int) -> Tensor:
    """Return random windows of a text, shape (size, length)."""
    starts = torch.randint(len(text) - length, (size, 1), generator=generator)
    return text[starts + torch.arange(length)]


def clusters() -> tuple[nn.Module, Loss]:
    """Return a perceptron, and its loss on points of twenty overlapping normal clusters."""
    centres = 1.5 * torch.randn(20, 16, generator=torch.Generator().manual_seed(7))
    model = mlp(16, 20)(64)

    def loss(generator: torch.Generator, size: int) -> Tensor:
        labels = torch.randint(20, (4 * size,), generator=generator)
        return F.cross_entropy(model(centres[labels] + torch.randn(4 * size, 16, generator=generator)), labels)

    return model, loss


def summary(made: pl.DataFrame) -> Row:
    """Return the row of a run."""
    shares = np.array([*made["share"], 1.0])
    half = made.sort((pl.col("share") - 0.5).abs()).row(0, named=True)
    return {
        "run": half["run"],
        "forecasts": len(made),
        "first": f"{shares[0]:.0%}",
        "gap": f"{np.diff(shares).max():.1%}",
        "target": half["target"],
        "final": f"{half['final']:.3f}",
        "held": f"{made['held'].sum()} of {len(made)}",
        "error": f"{half['error']:.1f}",
        "width": f"{half['width']:.1f}",
    }


def coverages(made: pl.DataFrame) -> list[Row]:
    """Return a row for each span of the runs, and one of all."""
    spans = [(0.0, SPANS[0]), *pairwise(SPANS)]
    parts = [
        (f"{low:.0%} to {high:.0%}", made.filter(pl.col("share") > low, pl.col("share") <= high)) for low, high in spans
    ]
    return [
        {
            "span": span,
            "forecasts": len(part),
            "held": f"{np.mean(part['held'].to_numpy()):.1%}" if len(part) else None,
            "error": f"{np.median(part['error'].to_numpy()):.1f}" if len(part) else None,
            "width": f"{np.median(part['width'].to_numpy()):.1f}" if len(part) else None,
        }
        for span, part in [*parts, ("all", made)]
    ]


if __name__ == "__main__":
    main()
