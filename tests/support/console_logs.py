"""Excerpts of the console logs of training tools, the numbers in them, and what may stand around their lines."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "logs" / "console"


@dataclass(frozen=True)
class Excerpt:
    """A log, and by column and step the numbers of its rows, as they are printed."""

    tool: str
    text: str
    values: dict[str, dict[int, str]]
    last_step: int | None = None
    counted: bool = False
    """True if the text states no step: steps are then 1, 2, 3, ... by rows with a loss."""
    table: bool = False
    """True if the text is one table or one animated line, before whose lines nothing can be put."""
    suffix: str = ".log"

    @property
    def target(self) -> str:
        return "loss" if "loss" in self.values else "validation_loss"

    def places(self) -> list[tuple[int, int]]:
        """Where each row's loss begins and ends in the text; no rows if it cannot be found."""
        found: list[tuple[int, int]] = []
        for printed in self.values[self.target].values():
            place = re.compile(rf"(?<![\w.]){re.escape(printed)}(?!\.?\d)").search(
                self.text, found[-1][1] if found else 0
            )
            assert place, f"{self.tool} prints no {printed}"
            found.append(place.span())
        return found

    def line_ends(self) -> list[int]:
        """Where the line of each row's loss ends; the last one ends with the text."""
        ends = [re.compile(r"[\r\n]|$").search(self.text, end) for _, end in self.places()[:-1]]
        return [*(end.end() for end in ends if end), len(self.text)]


def _excerpts() -> list[Excerpt]:
    read = json.loads((FOLDER / "values.json").read_text())
    excerpts = []
    for path in sorted(FOLDER.iterdir()):
        if entry := read.get(path.stem):
            values = {k: {int(s): v for s, v in x.items()} for k, x in entry.items() if isinstance(x, dict)}
            more = {k: entry[k] for k in ("last_step", "counted", "table") if k in entry}
            text = path.read_bytes().decode()
            excerpts.append(Excerpt(path.stem, text, values, suffix=path.suffix, **more))
    return excerpts


EXCERPTS = _excerpts()


def diverged(log: Excerpt, step: int) -> str:
    """The text with NaN for all losses from a step on."""
    losses = [row for column in ("loss", "validation_loss") for row in log.values.get(column, {}).items()]
    lost = "|".join(re.escape(text) for at, text in losses if at >= step)
    start = next(end for at, end in zip(log.values[log.target], [0, *log.line_ends()], strict=False) if at == step)
    nan = "NaN" if log.suffix == ".json" else "nan"
    return log.text[:start] + re.sub(rf"(?<![\w.])({lost})(?!\.?\d)", nan, log.text[start:])


def resumed(log: Excerpt) -> str:
    """A run that was stopped and went on two rows back, in one log: these rows are there twice."""
    ends = log.line_ends()
    message = (
        "slurmstepd: error: *** JOB 4242 ON node-17 CANCELLED DUE TO PREEMPTION ***\nResuming from out/checkpoint\n"
    )
    return f"{_ended(log.text[: ends[-2]])}{message}{log.text[ends[-4] :]}"


def cut_short(log: Excerpt) -> str:
    """A log that was cut within its last loss."""
    start, end = log.places()[-1]
    return log.text[: (start + end) // 2]


Wrapper = Callable[[Excerpt, random.Random], str]


def _prefix(prefix: Callable[[int], str]) -> Wrapper:
    """Something before each line, and before no drawing of a bar within one."""

    def prefixed(log: Excerpt, rng: random.Random) -> str:
        lines = [] if log.table else log.text.splitlines(keepends=True) if "\r" not in log.text else _lines(log.text)
        return "".join(prefix(i) + line for i, line in enumerate(lines)) or log.text

    return prefixed


def _lines(text: str) -> list[str]:
    """Return lines with their ends; a carriage return ends none."""
    return re.findall(r"[^\n]*\n|[^\n]+$", text)


def _time(i: int) -> str:
    return f"2024-11-28 23:58:{i % 60:02d}"


PREFIXES = tuple(
    map(
        _prefix,
        (
            lambda i: "INFO:__main__:",
            lambda i: f"{_time(i)},{417 + i % 500:03d} - train.py:123 - INFO - ",
            lambda i: f"[{_time(i)},417][__main__][INFO][rank0] - ",
            lambda i: f"{_time(i)}.417 | INFO     | __main__:train:88 - ",  # Loguru's
            lambda i: f"I1128 23:58:{i % 60:02d}.417123 140123456789 train.py:231] ",  # absl's
            lambda i: f"{_time(i).replace(' ', 'T')}.{417123456 + i}Z ",  # containers' and CI's
            lambda i: f"[{1.93 * i:12.6f}] ",
            lambda i: "[rank0]: ",
        ),
    )
)


def _ranks(*ranks: str) -> Wrapper:
    def all_ranks(log: Excerpt, rng: random.Random) -> str:
        if log.table or log.counted:  # every rank would count
            return log.text
        return "".join(f"{rank}{line}\n" for line in log.text.removesuffix("\n").split("\n") for rank in ranks)

    return all_ranks


RANKS = (
    _ranks("0: ", "1: ", "2: ", "3: "),  # srun --label
    _ranks("[default0]:", "[default1]:"),  # torchrun --tee 3
    _ranks("worker-1: [rank0] ", "worker-2: [rank8] "),  # DeepSpeed
)


def coloured_lines(log: Excerpt, rng: random.Random) -> str:
    return re.sub(r"[^\r\n]+", "\x1b[32m\\g<0>\x1b[0m", log.text)


def coloured_numbers(log: Excerpt, rng: random.Random) -> str:
    """Rich's highlighting, of numbers with a point."""
    number = r"(?<![\w.])\d+\.\d+(?![\w.])"
    return log.text if "\x1b" in log.text else re.sub(number, "\x1b[1;36m\\g<0>\x1b[0m", log.text)


def windows_lines(log: Excerpt, rng: random.Random) -> str:
    return log.text.replace("\n", "\r\n")


BARS = (
    "\rMap:  33%|███▎      | 333/999 [00:01<00:03, 2.33it/s]\rMap: 100%|██████████| 999/999 [00:04<00:00, 2.33it/s]",
    "\rLoading checkpoint shards:  67%|██████▋   | 2/3 [00:00<00:00,  2.33it/s]",
)
NOISE = (
    *BARS,
    "wandb: Currently logged in as: someone (a-team). Use `wandb login --relogin` to force relogin",
    "wandb: Tracking run with wandb version 0.17.5",
    "wandb: ⭐️ View project at https://wandb.ai/a-team/gpt2-124m",
    "Requirement already satisfied: torch>=2.0 in /usr/lib/python3/dist-packages (2.4.0)",
    "/opt/conda/lib/python3.11/site-packages/torch/utils/checkpoint.py:464: UserWarning: use_reentrant is deprecated",
    "  warnings.warn(",
    "[W NNPACK.cpp:61] Could not initialize NNPACK! Reason: Unsupported hardware.",
    "Saving model checkpoint to out/checkpoint-500",
    "GPU 0: 72C, 85% util, 301W / 400W, 71.2GiB / 79.1GiB",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.",
    "2024-11-29 00:12:31.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] use AVX2 FMA instructions.",
    "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 32.0",
    "Epoch took 312.4 seconds, 1.21 GB read",
    "",
)


def noise(log: Excerpt, rng: random.Random) -> str:
    """Lines of other tools, between lines."""
    lines = ["", log.text] if log.table else _lines(log.text)
    return "".join(f"{rng.choice(NOISE)}\n{line}" if rng.random() < 0.2 else line for line in lines)


def _ended(text: str) -> str:
    """The text with the end of its last line."""
    return text if text.endswith("\n") or not text else text + "\n"


def _above(*texts: str) -> Wrapper:
    return lambda log, rng: f"{rng.choice(texts)}\n{log.text}"


def _below(text: str) -> Wrapper:
    return lambda log, rng: f"{_ended(log.text)}{text}"


WANDB_SUMMARY = """wandb: \nwandb: Run history:\nwandb:   train/loss █▇▅▃▂▂▁▁\nwandb: \nwandb: Run summary:
wandb:   train/loss 2.87123\nwandb:   val/loss 2.9\nwandb: \nwandb: 🚀 View run fine-wood-12 at: https://wandb.ai/a-team/3x7
"""
SOURCE = '''"""Train a model: python train.py --learning_rate=6e-4 --max_iters=600000"""
learning_rate = 6e-4 # max learning rate
loss = 0.0
best_val_loss = 1e9
for step in range(max_iters):
    loss, grad_norm = train_step(step)  # iter 10: loss 9.99, time 1.00ms
    if step % 10 == 0:
        print(f"iter {step}: loss {loss.item():.4f}, time {dt*1000:.2f}ms, mfu {mfu*100:.2f}%")
        print("step %d/%d | loss %.6f | lr %.2e" % (step, max_iters, loss, learning_rate))
        logger.info({"step": step, "loss": loss, "lr": learning_rate, "epoch": 1})
    assert loss < 1e4, "loss: 10000.0 at step 7 is too high"
====================================================================================================
'''


def source_above(log: Excerpt, rng: random.Random) -> str:
    return log.text if log.counted else f"{SOURCE}\n{log.text}"  # its lines would count


SETTINGS: dict[str, object] = {
    "learning_rate": 0.0006, "loss": "cross_entropy", "loss_scale": 128, "log_interval": 10, "warmup_steps": 100,
    "weight_decay": 0.1, "batch_size": 12, "eval_steps": 200, "label_smoothing": 0.0,
}  # fmt: skip
CONFIGURATIONS = (
    "".join(f"{name}: {value}\n" for name, value in SETTINGS.items()),
    f"Namespace({', '.join(f'{name}={value!r}' for name, value in SETTINGS.items())})\n",
    f"{SETTINGS}\n",
    json.dumps(SETTINGS, indent=2) + "\n",
    "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in SETTINGS.items()),
    "".join(f"| {name:<20} | {value!s:<20} |\n" for name, value in SETTINGS.items()),
    "[2024-11-28 23:57:00][INFO] config:\n" + "".join(f"    {name} = {v}\n" for name, v in SETTINGS.items()),
)
TRACE = """Traceback (most recent call last):
  File "/home/someone/train.py", line 312, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of
which 1.21 GiB is free. Process 3371 has 77.92 GiB memory in use.
E1129 00:31:12.123000 139 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0
"""


def shell_around(log: Excerpt, rng: random.Random) -> str:
    head = "(base) someone@node-17:~/gpt$ python train.py --lr 0.001 --steps=1e4 2>&1 | tee run.log\n"
    return f"{head}{_ended(log.text)}\nreal\t12m3.412s\nuser\t11m58.2s\n(base) someone@node-17:~$ \n"


WRAPPERS: tuple[Wrapper, ...] = (
    *PREFIXES,
    *RANKS,
    *(coloured_lines, coloured_numbers, windows_lines, noise, shell_around),
    *(source_above, _above(*CONFIGURATIONS), _below(TRACE), _below(WANDB_SUMMARY)),
)

ENCODINGS: tuple[Callable[[str], bytes], ...] = (
    str.encode,
    lambda text: text.encode("utf-8-sig"),
    lambda text: text.encode("utf-16"),  # what PowerShell's > writes
    # a name with an accent above; what latin-1 lacks, as bars, becomes ?
    lambda text: f"Données : /home/rené/corpus\n{text}".encode("latin-1", errors="replace"),
    lambda text: b"sample: caf\xc3\xa9 \xe2\x96\n" + text.encode(),  # a byte that is no UTF-8: a sample that was cut
)


def wrapped(log: Excerpt, wrap: Wrapper, seed: int) -> Excerpt:
    """The excerpt with something around its lines."""
    return replace(log, text=wrap(log, random.Random(seed)))
