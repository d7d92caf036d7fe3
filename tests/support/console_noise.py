"""What stands around the rows of real console logs: it changes the text of a log, and nothing of what it says."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from console_runs import ConsoleLog, Run, Writer, bar

Wrapper = Callable[[ConsoleLog, random.Random], ConsoleLog]


def _prefixed(log: ConsoleLog, prefix: Callable[[int], str]) -> ConsoleLog:
    """The log with something before each line, and before no drawing of a bar within one."""
    if log.table:
        return log
    lines = log.text.split("\n")
    ends = [f"{prefix(i)}{line}" for i, line in enumerate(lines[:-1])]
    return replace(log, text="\n".join([*ends, lines[-1] and prefix(len(ends)) + lines[-1]]))


def _time(i: int) -> datetime:
    return datetime(2024, 11, 28, 23, 58, 2, 417000) + timedelta(seconds=1.93 * i)


def _prefix(prefix: Callable[[int], str]) -> Wrapper:
    return lambda log, rng: _prefixed(log, prefix)


PREFIXES = tuple(
    map(
        _prefix,
        (
            lambda i: "INFO:__main__:",
            lambda i: f"{_time(i):%Y-%m-%d %H:%M:%S},{417 + i % 500:03d} - train.py:123 - INFO - ",
            lambda i: f"[{_time(i):%Y-%m-%d %H:%M:%S},417][__main__][INFO][rank0] - ",
            lambda i: f"{_time(i):%Y-%m-%d %H:%M:%S}.417 | INFO     | __main__:train:88 - ",  # Loguru's
            lambda i: f"I{_time(i):%m%d %H:%M:%S}.417123 140123456789 train.py:231] ",  # absl's
            lambda i: f"{_time(i):%Y-%m-%dT%H:%M:%S}.{417123456 + i}Z ",  # containers' and CI's
            lambda i: f"[{1.93 * i:12.6f}] ",
            lambda i: "[rank0]: ",
        ),
    )
)


def _ranks(*ranks: str) -> Wrapper:
    return lambda log, rng: _all_ranks(log, ranks)


RANKS = (
    _ranks("0: ", "1: ", "2: ", "3: "),  # srun --label
    _ranks("[default0]:", "[default1]:"),  # torchrun --tee 3
    _ranks("worker-1: [rank0] ", "worker-2: [rank8] "),  # DeepSpeed
)


def _all_ranks(log: ConsoleLog, ranks: tuple[str, ...]) -> ConsoleLog:
    if log.table or log.counted:  # every rank would count
        return log
    lines = log.text.removesuffix("\n").split("\n")
    return replace(log, text="".join(f"{rank}{line}\n" for line in lines for rank in ranks))


def coloured_lines(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    return replace(log, text=re.sub(r"[^\r\n]+", "\x1b[32m\\g<0>\x1b[0m", log.text))


def coloured_numbers(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    """Rich's highlighting, of numbers with a point."""
    if "\x1b" in log.text:
        return log
    return replace(log, text=re.sub(r"(?<![\w.])\d+\.\d+(?![\w.])", "\x1b[1;36m\\g<0>\x1b[0m", log.text))


def windows_lines(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    return replace(log, text=log.text.replace("\n", "\r\n"))


def other_bars(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    """Bars of data and shards, drawn over, between lines."""

    def drawn() -> str:
        name, total = rng.choice((("Map", 10000), ("Loading checkpoint shards", 3), ("Generating train split", 52002)))
        return "".join(f"\r{name}: {bar(total * k // 3, total)}" for k in range(4)) + "\n"

    return _between(log, rng, drawn)


NOISE = (
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


def noise(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    """Lines of other tools, between lines."""
    return _between(log, rng, lambda: rng.choice(NOISE) + "\n")


def _ended(text: str) -> str:
    """The text with the end of its last line."""
    return text if text.endswith("\n") or not text else text + "\n"


def _between(log: ConsoleLog, rng: random.Random, text: Callable[[], str]) -> ConsoleLog:
    if log.table:
        return replace(log, text=text() + log.text)
    lines = log.text.splitlines(keepends=True) if "\r" not in log.text else re.split(r"(?<=\n)", log.text)
    return replace(log, text="".join(text() + line if rng.random() < 0.1 else line for line in lines))


def wandb_summary(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    """The end of a run as wandb prints it: last values, and no step."""
    return replace(
        log,
        text=f"{_ended(log.text)}wandb: \nwandb: Run history:\nwandb:   train/loss █▇▅▃▂▂▁▁\nwandb: \n"
        "wandb: Run summary:\nwandb:   train/loss 2.87123\nwandb:   val/loss 2.9\nwandb: \n"
        "wandb: 🚀 View run fine-wood-12 at: https://wandb.ai/a-team/gpt2-124m/runs/3x7\n",
    )


SOURCE = '''"""Train a model: python train.py --learning_rate=6e-4 --max_iters=600000"""
import torch

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
'''


def source_above(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    return replace(log, text=f"{SOURCE}\n{'=' * 100}\n{log.text}")


def config_above(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    """The settings of a run, in one of the usual forms; planned steps only where the log states them."""
    settings: dict[str, object] = {
        "learning_rate": 0.0006,
        "loss": "cross_entropy",
        "loss_scale": 128,
        "log_interval": 10,
        "warmup_steps": 100,
        "weight_decay": 0.1,
        "batch_size": 12,
        "eval_steps": 200,
        "label_smoothing": 0.0,
    }
    if log.last_step is not None and not log.step_name.startswith("epochs"):
        settings["max_steps"] = log.last_step
    forms = (
        "".join(f"{name}: {value}\n" for name, value in settings.items()),
        f"Namespace({', '.join(f'{name}={value!r}' for name, value in settings.items())})\n",
        f"{settings}\n",
        json.dumps(settings, indent=2) + "\n",
        "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in settings.items()),
        "".join(f"| {name:<20} | {value!s:<20} |\n" for name, value in settings.items()),
        "[2024-11-28 23:57:00][INFO] config:\n" + "".join(f"    {name} = {v}\n" for name, v in settings.items()),
    )
    return replace(log, text=f"{rng.choice(forms)}\n{log.text}")


TRACE = """Traceback (most recent call last):
  File "/home/someone/train.py", line 312, in <module>
    loss.backward()
  File "/opt/conda/lib/python3.11/site-packages/torch/_tensor.py", line 521, in backward
    torch.autograd.backward(
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of
which 1.21 GiB is free. Process 3371 has 77.92 GiB memory in use.
E1129 00:31:12.123000 139 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0
srun: error: node-17: task 0: Exited with exit code 1
"""


def stack_trace(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    return replace(log, text=f"{_ended(log.text)}{TRACE}")


def shell_around(log: ConsoleLog, rng: random.Random) -> ConsoleLog:
    head = "(base) someone@node-17:~/gpt$ python train.py --lr 0.001 --steps=1e4 2>&1 | tee run.log\n"
    return replace(log, text=f"{head}{_ended(log.text)}\nreal\t12m3.412s\nuser\t11m58.2s\n(base) someone@node-17:~$ \n")


WRAPPERS: tuple[Wrapper, ...] = (
    *PREFIXES,
    *RANKS,
    *(coloured_lines, coloured_numbers, windows_lines, other_bars, noise, wandb_summary, source_above, config_above),
    *(stack_trace, shell_around),
)


ENCODINGS: tuple[Callable[[str], bytes], ...] = (
    str.encode,
    lambda text: text.encode("utf-8-sig"),
    lambda text: text.encode("utf-16"),  # what PowerShell's > writes
    # a name with an accent above; what latin-1 lacks, as bars, becomes ?
    lambda text: f"Données : /home/rené/corpus\n{text}".encode("latin-1", errors="replace"),
    lambda text: b"sample: caf\xc3\xa9 \xe2\x96\n" + text.encode(),  # a byte that is no UTF-8: a sample that was cut
)


def resumed(write: Writer, run: Run, rng: random.Random) -> ConsoleLog:
    """A run that was stopped and started again some rows back, in one log: these rows are there twice."""
    rows = len(run.steps)
    stop = rng.randint(rows // 3, rows - 2)
    back = rng.randint(max(1, stop - rows // 5), stop)
    first, second = write(run.part(0, stop)), write(run.part(back))
    if first.counted or first.table:
        return write(run)
    text = f"{_ended(first.text)}slurmstepd: error: *** JOB 4242 ON node-17 CANCELLED DUE TO PREEMPTION ***\n"
    step = run.steps[back]
    text += f"Resuming from checkpoint out/checkpoint-{step} (step {step})\n{second.text}"
    return replace(
        second,
        text=text,
        loss=first.loss | second.loss,
        validation=first.validation | second.validation,
        rates=first.rates | second.rates,
        grad_norms=first.grad_norms | second.grad_norms,
    )


def cut_short(write: Writer, run: Run, rng: random.Random) -> ConsoleLog:
    """A log that was cut within its last loss: that loss was not printed; of its row's other values nothing is said."""
    rows = len(run.steps) - (run.steps[-1] in run.validations)
    whole, shorter = write(run.part(0, rows)), write(run.part(0, rows - 1))
    lost = [value for step, value in whole.loss.items() if step not in shorter.loss]
    if whole.table or not lost:
        return shorter
    differ = (i for i, (a, b) in enumerate(zip(shorter.text, whole.text, strict=False)) if a != b)
    start = next(differ, len(shorter.text))
    numbers = re.compile(r"\d+\.\d{2,}").finditer(whole.text, start)
    near = [number for number in numbers if abs(float(number[0]) / lost[0] - 1) < 1e-3]
    if not near or float(near[0][0]) != lost[0]:
        return shorter
    return replace(shorter, text=whole.text[: rng.randrange(near[0].start() + 1, near[0].end())])
