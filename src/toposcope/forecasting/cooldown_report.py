"""What a cool-down of a series would bring: the first sentence, the table by length, and the model that is in hand."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from toposcope.checkpoints import Series
from toposcope.checkpoints.merging import merge
from toposcope.errors import ToposcopeError
from toposcope.forecasting.cooldown import CoolDown, Course, Merged, best_of, text_noise
from toposcope.wording import counted

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart

HELD_OUT = "the held-out part"  # how the text of a run of ours is named


@dataclass(frozen=True, eq=False)
class CoolDownReport:
    """What a cool-down would bring, for several lengths.

    Attributes
    ----------
    series : Series
        The checkpoints up to now.
    text : str
        What they were read on, in words.
    answers : tuple of CoolDown
        By length.
    refused : dict of str
        Length -> why there is no answer.
    asked : int
        The length that the first sentence is about.
    course : Course
        The losses of raw checkpoints, and the rates.
    merged : tuple of Merged
        Averages of checkpoints, by their last step.
    real : tuple of (int, float) or None
        Steps and loss of the cool-down that the run itself went on to make, where it did.
    remarks : tuple of str
        What was assumed or left out, a sentence each.
    """

    series: Series
    text: str
    answers: tuple[CoolDown, ...]
    refused: dict[int, str]
    asked: int
    course: Course
    merged: tuple[Merged, ...]
    real: tuple[int, float] | None = None
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<CoolDownReport of {self.series.spec}: {self.headline()}>"

    @property
    def answer(self) -> CoolDown | None:
        """The answer of the first sentence; None where it is refused."""
        return next((each for each in self.answers if each.length == self.asked), None)

    @property
    def digits(self) -> int:
        """Decimals that losses are written with: two of them within the narrowest interval."""
        widths = [(each.high - each.low) / 2 for each in self.answers]
        return int(np.clip(1 - np.floor(np.log10(min(widths))), 2, 6)) if widths else 4

    def headline(self) -> str:
        """Return the first sentence: what the cool-down that was asked for would bring, or why that is not known."""
        found = self.answer
        if found is None:
            return f"No answer: {self.refused[self.asked]}."
        loss, low, high, gain = (f"{each:.{self.digits}f}" for each in (found.loss, found.low, found.high, found.gain))
        begin = f"Cooling down over the next {found.length:,} steps would bring the {self._loss_words} to "
        ends = f"{begin}{loss} ({low} to {high})"
        if found.gain <= 0:
            return f"{ends}, no lower than holding the rate: {found.held:.{self.digits}f}."
        in_hand = f"{found.in_hand:.0%} of that is in hand now as a merged model, written with --save"
        return f"{ends}: {gain} below holding the rate; {in_hand}."

    @property
    def _loss_words(self) -> str:
        return "validation loss" if self.text.startswith(HELD_OUT) else f"loss on {self.text}"

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the columns and rows by the length of the cool-down."""
        columns = ("steps", "decay", "loss", "low", "high", "holding the rate", "gain", "in hand now")
        rows = [
            (
                f"{each.length:,}",
                each.decay,
                *(f"{v:.{self.digits}f}" for v in (each.loss, each.low, each.high, each.held, each.gain)),
                f"{each.in_hand:.0%}" if each.gain > 0 else "",
            )
            for each in self.answers
        ]
        return columns, rows

    def inputs(self) -> dict[str, str]:
        """Return sentences on the ``series``, what was ``read`` of it, and the ``real`` cool-down where it has one."""
        course, sentences = self.course, {"series": self.series.spec}
        if self.merged:
            sentences["read"] = (
                f"{counted(len(course.held_out.steps), 'checkpoint')} up to step {course.now:,} and "
                f"{counted(len(self.merged), 'average')} of them on {course.tokens:,} tokens of {self.text}; "
                f"{course.held_out.values[-1]:.{self.digits}f} now, and {text_noise(course.tokens):.4f} nats of noise "
                "in a difference"
            )
        else:
            sentences["read"] = "no checkpoint, as there is no answer"
        if self.real is not None:
            length, loss = self.real
            sentences["real"] = f"the run went on to cool down over {length:,} steps, to {loss:.{self.digits}f}"
        return sentences

    def losses(self) -> pl.DataFrame:
        """Return ``what, step, loss, low, high`` of everything that `plot` draws, in nats per token.

        There are none where nothing was read on the text.
        """
        from toposcope.charts import cooldown as drawn

        now, rows = self.course.now, list[tuple[Any, ...]]()
        if self.merged:
            rows += [(drawn.RAW, step, loss, None, None) for step, loss in zip(*self.course.held_out, strict=True)]
            rows += [(drawn.AVERAGE, each.steps[-1], each.loss, None, None) for each in self.merged]
        if self.answers:
            rows.append((drawn.HOLDING, now, self.answers[-1].now, None, None))
        rows += [(drawn.HOLDING, now + each.length, each.held, None, None) for each in self.answers]
        rows += [(drawn.COOLED, now + each.length, each.loss, each.low, each.high) for each in self.answers]
        if self.real is not None:
            rows.append((drawn.REAL, now + self.real[0], self.real[1], None, None))
        floats = dict.fromkeys(("step", "loss", "low", "high"), pl.Float64)
        return pl.DataFrame(rows, schema={"what": pl.String, **floats}, orient="row")

    def plot(self) -> "Chart":
        """Draw the losses of checkpoints and averages, and where holding the rate and cool-downs would end.

        Raises
        ------
        ToposcopeError
            If nothing was read that could be drawn.
        """
        from toposcope.charts.cooldown import cool_down_chart

        losses = self.losses()
        if losses.is_empty():
            raise ToposcopeError(
                f"{self.series.spec}: nothing was read that could be drawn: {self.refused[self.asked]}"
            )
        return cool_down_chart(losses, self.headline().rstrip("."))

    def other_refusals(self) -> list[str]:
        """Return why there is no answer for the lengths that the first sentence is not about."""
        return [f"over {length:,} steps: {why}" for length, why in self.refused.items() if length != self.asked]

    def all_remarks(self) -> list[str]:
        """Return the remarks of the report and of the answer in its first sentence."""
        return [*self.remarks, *(() if self.answer is None else self.answer.notes)]

    def best(self) -> Merged:
        """Return the average of checkpoints up to now with the lowest loss."""
        if not self.merged:
            raise ToposcopeError(f"{self.series.spec}: nothing was merged: {self.refused[self.asked]}")
        return best_of(self.merged, self.course.now)

    def save(self, folder: Path | str) -> Path:
        """Write the merged model that is in hand now: its weights, configuration, tokenizer, and what went into it.

        Parameters
        ----------
        folder : Path or str
            A new folder, written whole or not at all.

        Raises
        ------
        ToposcopeError
            If there is none, or the folder exists or cannot be written.
        """
        now = self.course.now
        return merge(self.series, window=(now - self.best().window, now)).save(folder)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, strings, lists and dictionaries; what is not finite stays so."""
        return {
            "headline": self.headline(),
            "series": self.series.spec,
            "step": self.course.now,
            "text": self.text,
            "tokens": self.course.tokens,
            "asked": self.asked,
            "answers": [
                {
                    "length": each.length, "decay": each.decay, "loss": each.loss, "low": each.low, "high": each.high,
                    "held": each.held, "now": each.now, "gain": each.gain, "beyond": each.beyond,
                    "in_hand": each.in_hand, "notes": list(each.notes),
                }
                for each in self.answers
            ],
            "refused": {str(length): why for length, why in self.refused.items()},
            "raw": {
                "steps": self.course.held_out.steps.tolist(), "losses": self.course.held_out.values.tolist()
            },
            "merged": [
                {"steps": list(each.steps), "loss": each.loss, "weights": list(each.weights)} for each in self.merged
            ],
            "real": None if self.real is None else {"length": self.real[0], "loss": self.real[1]},
            "remarks": self.all_remarks(),
        }  # fmt: skip
