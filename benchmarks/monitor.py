"""Step time with a monitor: toposcope's beside W&B's and TensorBoard's histograms, and norms taken in the loop.

    python benchmarks/monitor.py [--quick]

Each contestant trains the same GPT in a process of its own. All processes but one are stopped at any time: blocks of
steps take turns, so that what else the machine does meets all contestants alike. Ratios are to training with nothing,
with intervals of 95% from resampling rounds of blocks. It uses a GPU when there is one; its figures are of CPUs.
"""

import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np
import torch
from rich.progress import track

from bench import Column, alone, command, show, write
from result_files import Spread
from toposcope.family import build
from toposcope.family.run import ModelSize

Row = dict[str, object]
Run = Callable[[int, torch.Tensor], None]

THREADS = 2
RESAMPLES = 10_000
LEARNING_RATE = 1e-4
NOTHING, OURS = "nothing", "toposcope"


@dataclass(frozen=True)
class Case:
    """A model, its batch, and how long it trains."""

    name: str
    size: ModelSize
    tokens: int
    steps: int
    blocks: int
    every: int = 100


CASES = (
    Case("10M", ModelSize(hidden=384, layers=5, heads=6, vocabulary=3000, context=128), 64, 50, 12),
    Case("100M", ModelSize(hidden=768, layers=12, heads=12, vocabulary=19_000, context=128), 16, 10, 24),
)
SHORT_SIZE = ModelSize(hidden=128, layers=4, heads=4, vocabulary=512, context=256)
SHORT_SECONDS, SHORT_BLOCKS = (10, 50, 200), 10
QUICK = (Case("0.1M", ModelSize(hidden=64, layers=2, heads=2, context=64), 64, 10, 3, every=10),)

STEPS = (
    Column("model", "model"),
    Column("with", "contestant"),
    Column("ms a step, mean of blocks", "milliseconds"),
    Column("time / nothing", "ratio"),
    Column("95% interval", "interval"),
    Column("start, s", "start"),
    Column("end, s", "end"),
)
ACCOUNT = (
    Column("model", "model"),
    Column("steps", "steps"),
    Column("training, s", "trained_seconds"),
    Column("its cost, s", "cost_seconds"),
    Column("cost / training", "share"),
    Column("outside the budget, s", "start_seconds"),
    Column("measurements", "n_measured"),
    Column("left out at the last", "last_skipped"),
)
SHORT = (
    Column("run, s", "seconds"),
    Column("steps", "steps"),
    Column("its cost, s", "cost_seconds"),
    Column("cost / training", "share"),
    Column("outside the budget, s", "start_seconds"),
    Column("measurements", "n_measured"),
    Column("forecasts", "forecasts"),
    Column("first at", "first"),
    Column("time / nothing", "ratio"),
    Column("95% interval", "interval"),
)
BETWEEN = (
    Column("a step, ms", "step"),
    Column("steps", "steps"),
    Column("on the training thread, us a step", "hooks"),
    Column("on other threads, us a step", "beside"),
    Column("both / step", "share"),
    Column("rows kept", "kept"),
)


@command("monitor", "a tiny model, figures that mean little", None)
def main(quick: bool, out: Path) -> None:
    """Compare the time of training steps, and write the results."""
    from toposcope.monitor.measuring import warm_up
    from toposcope.monitor.monitor import DEFAULT_PROBES

    warm_up(list(DEFAULT_PROBES), "float32")  # compiles, once on a machine
    load, rows, accounts = os.getloadavg()[0], list[Row](), list[Row]()
    for case in QUICK if quick else CASES:
        of_steps, account = compare(case)
        rows += of_steps
        accounts.append(account)
    cases = QUICK if quick else CASES
    between = [alone(overhead, s, round((1 if quick else 15) / s)) for s in (0.002, 0.01, 0.1)]
    short = [short_run(seconds) for seconds in ((2,) if quick else SHORT_SECONDS)]
    titles = {
        "Step time": (rows, STEPS),
        "Short runs": (short, SHORT),
        "What the monitor says itself": (accounts, ACCOUNT),
        "Steps at which nothing is due": (between, BETWEEN),
    }
    for title, (table, columns) in titles.items():
        show(table, columns, title)
    facts = {
        "device": "cuda" if torch.cuda.is_available() else f"cpu, {THREADS} threads",
        "load of the machine before": f"{load:.1f}, of others than this benchmark"
        + ("; it was busy, so intervals are wide" if load > 0.5 else ""),
        "training": "AdamW in float32 on random tokens, "
        + "; ".join(
            f"{c.name}: {c.size.n_parameters:,} parameters, {c.tokens} tokens a step, {c.blocks} blocks of {c.steps}"
            for c in cases
        ),
        "toposcope": f"every={cases[0].every}, budget=0.01, default probes, two values logged at every step",
        "W&B": f'offline, watch(log="all", log_freq={cases[0].every}), loss logged at every step',
        "TensorBoard": f"histograms of all weights every {cases[0].every} steps, loss at every step",
        "norms": "torch.linalg.norm of every parameter at every step, read as a number",
        "time / nothing": f"sums over all blocks; percentiles of {RESAMPLES:,} resamples of rounds of blocks",
        "nothing is due": "steps that multiply matrices on one thread, three values logged; time of all processors",
        "short runs": f"a GPT of {SHORT_SIZE.n_parameters:,} parameters, last_step given, beside a run without",
        "start, end": "what making the contestant and closing it took, which is no step",
    }
    write("monitor", out, facts, titles, ("toposcope", "torch", "wandb", "tensorboard"))


def overhead(step_seconds: float, n_steps: int) -> Row:
    """Return the processor time that a monitor takes, by steps with it and without in turn; in a process of its own."""
    from toposcope import Monitor
    from toposcope.study import Study

    torch.set_num_threads(1)
    values = torch.ones(256, 256)
    monitored, bare = (_small() for _ in range(2))
    spent = {"monitored": 0.0, "bare": 0.0}

    def timed(what: str, run: Callable[[], object]) -> None:
        end = perf_counter() + step_seconds
        while perf_counter() < end:
            values @ values
        started = thread_time()
        run()
        spent[what] += thread_time() - started

    with tempfile.TemporaryDirectory() as folder:
        with Monitor(monitored[0], Path(folder) / "run", every=10**9, quiet=True) as monitor:

            def update() -> None:
                monitored[1].step()
                monitor.log(loss=3 + monitor.step % 7 / 10, lr=LEARNING_RATE, grad_norm=1.0)

            monitor.attach(monitored[1], step=0)
            for _ in range(n_steps // 4):
                timed("bare", bare[1].step)
                timed("monitored", update)
            hooks = (spent["monitored"] - spent["bare"]) / (n_steps // 4)
            begin, own = process_time(), thread_time()
            for _ in range(n_steps):
                timed("monitored", update)
            beside = process_time() - begin - (thread_time() - own)
        kept = len(Study.load(Path(folder) / "run").log())
    return {
        "step": 1000 * step_seconds,
        "steps": n_steps + n_steps // 4,
        "hooks": f"{1e6 * hooks:.0f}",
        "beside": f"{1e6 * beside / n_steps:.0f}",
        "share": f"{(hooks + beside / n_steps) / step_seconds:.4f}",
        "kept": kept,
    }


def _small() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(8, 8)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def short_run(seconds: float) -> Row:
    """Return what the monitor of a run of so many seconds says of itself, and the time beside a run without one."""
    begin = perf_counter()
    model, tokens = build(SHORT_SIZE), torch.zeros(1, SHORT_SIZE.context + 1, dtype=torch.int64)
    for _ in range(20):
        model.loss(tokens).backward()  # type: ignore[no-untyped-call]
    step_seconds = (perf_counter() - begin) / 20
    steps = max(2, round(seconds / step_seconds / SHORT_BLOCKS))
    case = Case(f"{seconds} s", SHORT_SIZE, SHORT_SIZE.context, steps, SHORT_BLOCKS)
    rows, account = compare(case, (NOTHING, OURS))
    return {**rows[1], **account, "seconds": f"{account['trained_seconds']:.0f}"}


def compare(case: Case, names: Sequence[str] = ()) -> tuple[list[Row], Row]:
    """Train with all contestants in turn, or those named; return a row for each, and the monitor's own account."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = {}
        for name in names or CONTESTANTS:
            (folder / name).mkdir()
            runs[name] = stack.enter_context(contestant(name, case, folder / name))
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for k in track(range(case.blocks), description=case.name):
            names = list(runs)
            for name in names[k % len(names) :] + names[: k % len(names)]:
                seconds[name].append(runs[name].block(case.steps))
        ends = {name: run.end() for name, run in runs.items()}
    nothing = seconds[NOTHING]
    rows: list[Row] = []
    for name, run in runs.items():
        low, high = interval(seconds[name], nothing)
        rows.append(
            {
                "model": case.name,
                "contestant": name,
                "milliseconds": Spread.of([1000 * s / case.steps for s in seconds[name]]),
                "ratio": f"{sum(seconds[name]) / sum(nothing):.3f}",
                "interval": "" if name == NOTHING else f"{low:.3f} to {high:.3f}",
                "start": f"{run.start:.2f}",
                "end": f"{ends[name][0]:.2f}",
                "seconds_of_blocks": seconds[name],
            }
        )
    status = ends[OURS][1]
    share = f"{status['cost_seconds'] / status['trained_seconds']:.4f}"
    last = "; ".join(status["last_skipped"])
    account = {"model": case.name, "steps": case.steps * case.blocks, **status, "share": share, "last_skipped": last}
    return rows, account


def interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the ratio of two sums, whose terms are paired."""
    picks = np.random.default_rng(0).integers(len(above), size=(RESAMPLES, len(above)))
    ratios = np.array(above)[picks].sum(axis=1) / np.array(below)[picks].sum(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


class Contestant:
    """A process that trains when it is its turn, and is stopped else, its threads and its own processes too."""

    def __init__(self, process: Any, talk: Connection, stopped: Any) -> None:
        self._process, self._talk, self._stopped = process, talk, stopped
        self.start: float = talk.recv()
        self._halt()

    def block(self, steps: int) -> float:
        """Return the seconds that so many steps take."""
        self._resume()
        self._talk.send(steps)
        seconds: float = self._talk.recv()
        self._halt()
        return seconds

    def end(self) -> tuple[float, dict[str, Any]]:
        """Return the seconds that closing takes, and what the contestant says of itself."""
        self._resume()
        self._talk.send(None)
        answer: tuple[float, dict[str, Any]] = self._talk.recv()
        self._process.join()
        return answer

    def _halt(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)
        self._since = perf_counter()

    def _resume(self) -> None:
        self._stopped.value += perf_counter() - self._since
        os.killpg(self._process.pid, signal.SIGCONT)


@contextmanager
def contestant(name: str, case: Case, folder: Path) -> Iterator[Contestant]:
    """Start a contestant; whatever happens, its processes end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stopped = context.Value("d", 0.0, lock=False)
    process = context.Process(target=train, args=(name, case, folder, theirs, stopped))
    process.start()
    theirs.close()
    assert process.pid is not None
    try:
        yield Contestant(process, ours, stopped)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def train(name: str, case: Case, folder: Path, talk: Connection, stopped: Any) -> None:
    """Train blocks of steps as they are asked for; runs in a process and a process group of its own."""
    os.setpgid(0, 0)
    os.chdir(folder)
    torch.set_num_threads(THREADS)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(case.size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(0)

    def step() -> torch.Tensor:
        tokens = torch.randint(case.size.vocabulary, (1, case.tokens + 1), generator=generator).to(device)
        loss: torch.Tensor = model.loss(tokens)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    for _ in range(3):
        step()
    begin = perf_counter()
    log, close = CONTESTANTS[name](model, optimizer, case, lambda: perf_counter() - stopped.value)
    talk.send(perf_counter() - begin)
    done = 0
    while (steps := talk.recv()) is not None:
        begin = perf_counter()
        for _ in range(steps):
            loss = step()
            done += 1
            log(done, loss)
        if device.type == "cuda":
            torch.cuda.synchronize()
        talk.send(perf_counter() - begin)
    begin = perf_counter()
    said = close()
    talk.send((perf_counter() - begin, said))


def nothing(*_: Any) -> tuple[Run, Callable[[], dict[str, Any]]]:
    """Train and do nothing else."""
    return (lambda step, loss: None), dict


def toposcope(model: Any, optimizer: Any, case: Case, clock: Any) -> tuple[Run, Callable[[], dict[str, Any]]]:
    """Monitor with the defaults; the clock leaves out the time in which the process was stopped."""
    from toposcope import Monitor
    from toposcope.study import Study

    last_step = case.steps * case.blocks
    monitor = Monitor(model, "run", every=case.every, last_step=last_step, quiet=True, clock=clock)
    monitor.attach(optimizer, step=0)

    def close() -> dict[str, Any]:
        monitor.close()
        study = Study.load(Path("run"))
        status: dict[str, Any] = json.loads(study.meta("monitor run"))
        made = study.forecasts()["step"].to_list()
        return {**status, "forecasts": len(made), "first": f"{made[0] / last_step:.0%}" if made else "none"}

    return (lambda step, loss: monitor.log(loss=loss, lr=LEARNING_RATE)), close


def wandb(model: Any, optimizer: Any, case: Case, clock: Any) -> tuple[Run, Callable[[], dict[str, Any]]]:
    """Watch weights and gradients with W&B, offline."""
    import wandb

    run = wandb.init(mode="offline", dir=".", settings=wandb.Settings(silent=True))
    run.watch(model, log="all", log_freq=case.every)

    def close() -> dict[str, Any]:
        run.finish()
        return {}

    return (lambda step, loss: run.log({"loss": loss.item()})), close


def tensorboard(model: Any, optimizer: Any, case: Case, clock: Any) -> tuple[Run, Callable[[], dict[str, Any]]]:
    """Write histograms of all weights with TensorBoard."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("events")

    def log(step: int, loss: torch.Tensor) -> None:
        writer.add_scalar("loss", loss.item(), step)
        if step % case.every == 0:
            for name, parameter in model.named_parameters():
                writer.add_histogram(name, parameter, step)

    def close() -> dict[str, Any]:
        writer.close()
        return {}

    return log, close


def norms(model: Any, *_: Any) -> tuple[Run, Callable[[], dict[str, Any]]]:
    """Take the norm of every parameter in the loop."""
    parameters = list(model.parameters())

    def log(step: int, loss: torch.Tensor) -> None:
        for parameter in parameters:
            torch.linalg.norm(parameter.detach()).item()

    return log, dict


CONTESTANTS: dict[str, Callable[..., tuple[Run, Callable[[], dict[str, Any]]]]] = {
    NOTHING: nothing,
    OURS: toposcope,
    "wandb.watch, histograms": wandb,
    "TensorBoard histograms": tensorboard,
    "torch.linalg.norm each step": norms,
}


if __name__ == "__main__":
    main()
