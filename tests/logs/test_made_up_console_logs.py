"""The console logs that readers are tried on say what they claim to say."""

import math
import random
import re

import pytest
from console_logs import (
    ENCODINGS,
    LISTS,
    WRAPPERS,
    WRITERS,
    ConsoleLog,
    Writer,
    cut_short,
    diverged,
    made_up_run,
    resumed,
)

EVERY = WRITERS + LISTS


def numbers(text: str) -> set[float]:
    return {float(n) for n in re.findall(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|NaN|nan", text)}


def values(log: ConsoleLog) -> list[float]:
    series = log.loss, log.validation, log.rates, log.grad_norms
    return [value for s in series for value in s.values() if not math.isnan(value)]


@pytest.mark.parametrize("write", EVERY, ids=lambda write: write.__name__)
def test_each_value_is_printed(write: Writer) -> None:
    for seed in range(3):
        run = made_up_run(seed, 30, 10 ** (1 + seed), seen=0.5 + 0.2 * seed)
        log = write(run)
        assert set(values(log)) <= numbers(log.text)
        assert write(run) == log


@pytest.mark.parametrize("write", EVERY, ids=lambda write: write.__name__)
def test_a_diverged_run_prints_its_nan(write: Writer) -> None:
    log = write(diverged(made_up_run(1, 30), 12))
    losses = log.loss or log.validation
    assert not losses or (math.isnan(list(losses.values())[-1]) and "nan" in log.text.lower())


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_what_stands_around_rows_changes_no_value(write: Writer) -> None:
    log = write(made_up_run(2, 30))
    for wrap in WRAPPERS:
        wrapped = wrap(log, random.Random(3))
        assert values(wrapped) == values(log)
        assert set(values(log)) <= numbers(re.sub(r"\x1b\[[\d;]*m", "", wrapped.text))
        assert all(isinstance(encode(wrapped.text), bytes) for encode in ENCODINGS)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_resumed_log_says_what_the_whole_one_says(write: Writer) -> None:
    run = made_up_run(4, 40)
    for seed in range(5):
        log = resumed(write, run, random.Random(seed))
        assert (log.loss, log.validation, log.last_step) == (
            write(run).loss,
            write(run).validation,
            write(run).last_step,
        )


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_log_cut_short_lacks_its_last_loss(write: Writer) -> None:
    run = made_up_run(4, 40)
    log = cut_short(write, run, random.Random(5))
    assert log.loss.items() <= write(run).loss.items()
    assert len(log.text) <= len(write(run).text)
