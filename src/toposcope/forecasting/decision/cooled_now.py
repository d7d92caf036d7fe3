"""The third way to spend a budget: cool the run in progress down now, and keep the rest of the budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from toposcope.errors import ToposcopeError
from toposcope.forecasting.cooldown import CoolDown
from toposcope.wording import short


@dataclass(frozen=True)
class CooledNow:
    """The run cooled down from now on: as merged checkpoints measure it, and by the law that the other ways go by."""

    measured: CoolDown
    parameters: float
    tokens: float  # at the end
    share: float  # of the budget that it takes, at most 1
    loss: float  # by the law
    rest: float  # nats by which the run would end lower with the rest of the budget, by the law; at least 0
    fresh: float  # loss of the best fresh run of as much compute, by the law

    @property
    def half_width(self) -> float:
        """Of the interval of the measured loss, nats."""
        return self.measured.high - self.measured.loss

    @property
    def is_enough(self) -> bool:
        """Whether what the rest of the budget brings is within the error of the measured loss."""
        return self.rest <= self.half_width


def affordable(cool_downs: Sequence[CoolDown], tokens: float, new: float) -> tuple[CoolDown, float]:
    """Return the longest cool-down of a run after `tokens` that `new` tokens pay for, and the tokens that it takes.

    Raises
    ------
    ToposcopeError
        If they pay for none.
    """
    taken = {each.length: (each, each.length * tokens / max(each.step, 1)) for each in cool_downs}
    paid = [length for length, (_, needed) in taken.items() if needed <= new * (1 + 1e-9)]
    if not paid:
        shortest, needed = taken[min(taken)]
        raise ToposcopeError(
            f"the shortest that was measured, {shortest.length:,} steps, takes {short(needed)} tokens, and the budget "
            f"pays for {short(new)}"
        )
    return taken[max(paid)]


def cooled_sentences(cooled: CooledNow) -> tuple[str, ...]:
    """Return what the cool-down would bring at the compute that it takes, and what the rest of the budget would."""
    now = cooled.measured
    first = (
        f"Cooled down from now on over {now.length:,} steps, {cooled.share:.0%} of the budget, the run would end at "
        f"{now.loss:.3f} nats ({now.low:.3f} to {now.high:.3f}) on the text of its merged checkpoints, {now.gain:.3f} "
        f"below going on at the rate of now for as many steps. By the law that is {cooled.loss:.3f}, and "
        f"{cooled.fresh:.3f} for a fresh run of as much compute."
    )
    if cooled.share >= 1:
        return (first,)
    return (
        first,
        f"The other {1 - cooled.share:.0%} of the budget would bring the run {cooled.rest:.3f} nats more, by the law.",
    )
