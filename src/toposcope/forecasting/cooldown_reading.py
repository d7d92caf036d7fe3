"""A cool-down from a series of checkpoints: its rates, and the losses of raw and merged checkpoints on a text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from toposcope.checkpoints import Access, Checkpoint, Series
from toposcope.checkpoints import series as open_series
from toposcope.checkpoints.decay import decay_weights
from toposcope.checkpoints.merging import merge
from toposcope.checkpoints.sources import local_path
from toposcope.errors import ToposcopeError, choices
from toposcope.extras import require
from toposcope.family import Corpus
from toposcope.forecasting.cooldown import (
    DECAYS,
    MAX_COOL_DOWN,
    Course,
    Decay,
    Merged,
    best_of,
    check_course,
    cool_down_forecast,
    windows,
)
from toposcope.forecasting.cooldown_report import HELD_OUT, CoolDownReport
from toposcope.forecasting.forecaster import RefusedError
from toposcope.integrity.finding import short_steps
from toposcope.logs import Run, find_log, read_log
from toposcope.logs.schedules.logged import logged_rates
from toposcope.logs.table import ByStep, LogTable
from toposcope.models import Origin, Text, TokenSequence, load_model, load_tokenizer, token_losses
from toposcope.models.family_model import RUN
from toposcope.models.origin import read_object
from toposcope.models.texts import passage
from toposcope.progress import Progress, silent
from toposcope.study.corpora import OWN_FILE
from toposcope.wording import counted

SHARES = (0.05, 0.1, 0.2)  # of the steps so far: the lengths of the table; the middle one where none is asked for
N_RAW = 10  # raw checkpoints that are read, over the steps that are merged
LENGTH = 512  # longest window of the text, in tokens
MAX_TOKENS, MIN_TOKENS = 100_000, 10_000  # of the text, where their number is not given
OPERATIONS = 2e13  # of all readings together, to which a text is shortened: minutes on a CPU
STAGE = "checkpoints"
CHARACTERS_PER_TOKEN = 8  # more than any text has on average
COOLED = 0.05  # share of the rate: a cool-down has ended
MAX_UNLOGGED = 0.02  # share of the steps so far, between the last rate logged and the last checkpoint


def cooldown(
    series: Series | Path | str,
    *,
    text: str = "",
    steps: int | None = None,
    decay: Decay = "linear",
    at: int | None = None,
    log: Run | Path | str | None = None,
    constant: bool = False,
    tokens: int | None = None,
    tokenizer: str = "",
    access: Access | None = None,
    progress: Progress = silent,
) -> CoolDownReport:
    """Return what the loss would be after a cool-down that starts now, from the checkpoints at constant rate so far.

    Averages of the last checkpoints and of those before are read on a text, and raw ones; how the averages fall,
    carried on to the end of the cool-down, gives the loss (docs/methods/cool-down.md).

    Parameters
    ----------
    series : Series, Path or str
        Of a language model of transformers, nanoGPT or the family.
    text : str
        A text file, a folder of texts, ``python-docs`` or ``hf:owner/name``, as far as possible held out from the
        training; by default the held-out part of the corpus of a run of ours, else the built-in documentation.
    steps : int, optional
        Of the cool-down; a tenth of the steps so far by default.
    decay : {"linear", "1-sqrt", "cosine"}
        Of the rate, to zero.
    at : int, optional
        The step of a checkpoint from which to cool down; the last by default.
    log : Run, Path or str, optional
        Learning rates; by default what lies with the checkpoints.
    constant : bool
        Whether the rate is known to be constant, where it was not logged; rates of the log count before it.
    tokens : int, optional
        Of the text; by default 100,000, or as many as are read in minutes.
    tokenizer : str
        In place of the model's: a ``tokenizer.json``, its folder, ``hf:owner/name``, or ``characters``.
    access : Access, optional
        How remote bytes are fetched and cached.
    progress : callable

    Returns
    -------
    CoolDownReport

    Raises
    ------
    ToposcopeError
        If there is no log with learning rates and `constant` is not set, or no model can read the text.

    Examples
    --------
    >>> found = toposcope.cooldown("runs/small-1", steps=600)  # doctest: +SKIP
    >>> found.headline(), found.answer.gain, found.save("cooled")  # doctest: +SKIP
    """
    require("torch", "toposcope.cooldown")
    if decay not in DECAYS:
        raise ToposcopeError(f"decay {decay!r}: {choices(decay, DECAYS)}")
    access = access or Access()
    whole = series if isinstance(series, Series) else open_series(series, access=access)
    now = _now(whole, at)
    seen = whole[: whole.steps.index(now) + 1]
    rates, remarks = _logged(whole, log, now, constant=constant)
    real = None if rates is None else _real(whole, now, rates)
    asked = steps or (real.step - now if real else round(SHARES[1] * now))
    if not asked:
        raise ToposcopeError(
            f"{whole.spec}: a tenth of {counted(now, 'step')} is no cool-down; take a later checkpoint"
        )
    course = Course(ByStep(np.array([now]), np.array([np.nan])), 0, rates)
    chosen: dict[int, tuple[list[int], ...]] = {}
    refused: dict[int, str] = {}
    longest = int(MAX_COOL_DOWN * now)
    for length in sorted({*(min(round(share * now), longest) for share in SHARES), asked} - {0}):
        try:
            check_course(course, length)
            chosen[length] = windows(seen.steps, length)
        except RefusedError as error:
            refused[length] = str(error)
    if steps is None and asked not in chosen and chosen:
        asked = max(chosen)
    if asked not in chosen:
        return CoolDownReport(seen, "", (), refused, asked, course, (), None, tuple(remarks))
    to_merge = {tuple(each) for lists in chosen.values() for each in lists}
    needed = sorted(to_merge, key=lambda each: (each[-1], len(each)))
    first = chosen[asked][1][0]
    raw = _spread([checkpoint for checkpoint in seen if checkpoint.step >= first], N_RAW)
    origin = Origin(whole.source, tokenizer, _corpus(whole), access)
    total, losses = len(raw) + len(needed) + bool(real), list[float]()
    reading = _Reading.of(seen[-1], origin, text, tokens, total)
    averages = (merge(seen, window=(each[0], each[-1])) for each in needed)
    for checkpoint in [*raw, *averages, *([real] if real else [])]:
        progress(STAGE, len(losses), total)
        losses.append(reading.loss(checkpoint))
    progress(STAGE, total, total)
    held_out = ByStep(np.array([checkpoint.step for checkpoint in raw]), np.array(losses[: len(raw)]))
    course = Course(held_out, reading.tokens, rates)
    merged = {
        each: Merged(each, loss, tuple(decay_weights(each).tolist()))
        for each, loss in zip(needed, losses[len(raw) :], strict=False)
    }
    best = best_of(merged.values(), now)
    answers = []
    for length, lists in chosen.items():
        try:
            last, *fall = (merged[tuple(each)] for each in lists)
            found = cool_down_forecast(course, last, (fall[0], fall[1]), length, decay)
            answers.append(replace(found, merged=best))
        except RefusedError as error:
            refused[length] = str(error)
    return CoolDownReport(
        series=seen,
        text=reading.name,
        answers=tuple(answers),
        refused=refused,
        asked=asked,
        course=course,
        merged=tuple(merged.values()),
        real=(real.step - now, losses[-1]) if real else None,
        remarks=(*remarks, *reading.remarks),
    )


def _now(series: Series, at: int | None) -> int:
    if not len(series):
        raise ToposcopeError(f"{series.spec}: no checkpoint; name the folder of a series")
    if at is not None and at not in series.steps:
        raise ToposcopeError(f"{series.spec}: no checkpoint of step {at}; its steps are {short_steps(series.steps)}")
    return series.steps[-1] if at is None else at


def _logged(
    series: Series, log: Run | Path | str | None, now: int, *, constant: bool
) -> tuple[ByStep | None, list[str]]:
    """Return the learning rates of a log, None where they are declared to be constant, and what there is to say."""
    remarks: list[str] = []
    if log is None:
        table = find_log(series.source, series.axis) if series.source else None
    else:
        log = log if isinstance(log, Run) else read_log(log)
        table = log.table
        remarks += log.remarks
    rates = None if table is None else _rates(table)
    if constant and (rates is None or rates.steps[-1] < (1 - MAX_UNLOGGED) * now):
        return None, [*remarks, "the learning rate is taken to be constant, as declared"]
    if rates is None:
        raise ToposcopeError(
            f"{series.spec}: no learning rates with it; name a log that has them with --log FILE (log=...), or say "
            "that the rate was held with --constant (constant=True)"
        )
    if rates.steps[-1] < (1 - MAX_UNLOGGED) * now:
        raise ToposcopeError(
            f"{series.spec}: learning rates are logged up to step {rates.steps[-1]:,}, and the last checkpoint is "
            f"of step {now:,}; give the whole log, or a checkpoint before its end with --at STEP (at=...)"
        )
    return rates, remarks


def _rates(table: LogTable) -> ByStep | None:
    """Return the learning rates of a log, without slips; None if none was logged."""
    found = logged_rates(Run("log", np.array([1]), np.ones(1), np.ones(1), table=table)) if len(table.steps) else None
    known = found is not None and np.isfinite(table.values["learning_rate"]).any()
    return ByStep(found.steps.astype(np.int64), found.rates) if found is not None and known else None


def _real(series: Series, now: int, rates: ByStep) -> Checkpoint | None:
    """Return the checkpoint at the end of the cool-down that a run went on to make from a step; None without one."""
    level = float(np.interp(now, *rates))
    later = rates.steps > now
    cold = rates.steps[later & (rates.values <= COOLED * level)]
    if not len(cold) or np.diff(rates.values[later & (rates.steps <= cold[0])]).max(initial=0.0) > 0:
        return None
    ends = [checkpoint for checkpoint in series if checkpoint.step >= cold[0]]
    return ends[0] if ends and ends[0].step <= (1 + MAX_COOL_DOWN) * now else None


def _spread(items: Sequence[Checkpoint], count: int) -> list[Checkpoint]:
    """Return some of the items, evenly spread, the last one among them."""
    last = len(items) - 1
    places = {round(last * k / max(1, count - 1)) for k in range(count)} if last >= count else range(last + 1)
    return [items[place] for place in sorted(places)]


def _corpus(series: Series) -> Path | None:
    """Return the tokens that a run of a study was trained on, next to which its tokenizer lies."""
    path = local_path(series.spec).absolute().parent.parent / OWN_FILE
    return path if path.is_file() else None


@dataclass(frozen=True)
class _Reading:
    """A text, cut into tokens, and where models find their files."""

    origin: Origin
    sequences: tuple[TokenSequence, ...]
    tokens: int  # predicted
    name: str
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, last: Checkpoint, origin: Origin, text: str, tokens: int | None, readings: int) -> Self:
        """Read a text: as many tokens as were asked for, else as many as all readings get through in minutes."""
        wanted, remarks = tokens or MAX_TOKENS, []
        operations = 2 * sum(math.prod(entry.shape) for entry in last.entries) * readings
        if tokens is None and operations * MAX_TOKENS > OPERATIONS:
            wanted = max(MIN_TOKENS, int(OPERATIONS / operations))
            remarks.append(
                f"only {wanted:,} tokens of the text are read, as the model is large: --tokens N (tokens=N) reads more"
            )
        content, name, foreign = _text(last, origin, text, CHARACTERS_PER_TOKEN * wanted)
        if foreign:
            remarks.append(
                f"no text of the run is known, so that it is read on {name}: give one with --text (text=...)"
            )
        model = load_model(last, origin)
        whole = passage(content, load_tokenizer(last, origin), min(LENGTH, model.context)).sequences
        predicted = [len(sequence.ids) - max(1, sequence.n_prefix) for sequence in whole]
        count = min(len(whole), -(-wanted * len(whole) // max(1, sum(predicted))))
        places = np.unique(np.linspace(0, len(whole) - 1, count).round().astype(np.int64)).tolist()
        n_tokens = sum(predicted[place] for place in places)
        if tokens is None and not remarks and n_tokens < MAX_TOKENS / 2:
            remarks.append(f"the text has {n_tokens:,} tokens; with {MAX_TOKENS:,} or more the answer is surer")
        return cls(origin, tuple(whole[place] for place in places), n_tokens, name, tuple(remarks))

    def loss(self, checkpoint: Checkpoint) -> float:
        """Return the loss of a checkpoint, in nats per token."""
        losses = token_losses(load_model(checkpoint, self.origin), self.sequences)
        return losses.total / losses.n_tokens


def _text(last: Checkpoint, origin: Origin, text: str, characters: int) -> tuple[str, str, bool]:
    """Return a text, what it is, and whether it is of no known relation to the run."""
    if text:
        return Text(source=text, characters=characters).read(Corpus()), Path(text).name, False
    described = origin.find(last, RUN)
    try:
        content = {} if described is None else read_object(described)
        corpus = msgspec.convert(content["run"]["corpus"], Corpus)
        digest = str(content["corpus_sha256"])
    except (KeyError, TypeError, msgspec.ValidationError):
        return Text(characters=characters).read(Corpus()), "python-docs (held-out part)", True
    try:
        return Text(characters=characters).read(corpus, digest), f"{HELD_OUT} of {corpus.source}", False
    except ToposcopeError as error:
        advice = "give one with --text (text=...)"
        raise ToposcopeError(str(error).replace("name a source under [text]", advice)) from error
