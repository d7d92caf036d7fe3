"""Continue, cool down or scale: where the next FLOP of a run in progress should go, and why."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.cooldown import MEAN_RATES, CoolDown
from toposcope.forecasting.decision.calibration import ASSUMED, Calibration
from toposcope.forecasting.decision.cooled_now import CooledNow, affordable, cooled_sentences
from toposcope.forecasting.scaling.planner import check_positive, optimal_split
from toposcope.forecasting.scaling.scaling_law import ScalingLaw
from toposcope.wording import short

# Scaling laws and decisions: docs/methods/scaling.md, docs/decision.md
CONTINUE_BELOW, SCALE_ABOVE = 0.2, 0.8  # probabilities that scaling wins; undecided between them

COOL_DOWN = 0.2  # share of the steps of a run at constant rate that its cool-down takes (Hagele et al. 2024, section 3)
TOKENS_PER_PARAMETER = 20.0  # of the rule that Hoffmann et al. 2022 are quoted for
MARGIN_LEVEL = 0.9  # of the interval of the margin, and of the bands of a figure
DERIVATIVE_STEP = 1e-3  # of a numeric derivative, as a share of the budget
SIGNALS = {
    "score": "the score turned to capacity-limited",
    "tokens per parameter": f"D/N = {TOKENS_PER_PARAMETER:g}",
    "marginal price": "its last FLOP brought less than that of the best run of all the compute",
}


@dataclass(frozen=True)
class RunInProgress:
    """A run in progress, and the compute that could go into it or into another one."""

    parameters: float
    tokens: float
    budget: float
    cool_down: float = 0.0

    def __post_init__(self) -> None:
        for name in ("parameters", "tokens", "budget"):
            check_positive(name, getattr(self, name))
        if not 0 <= self.cool_down < 1:
            raise ToposcopeError(
                f"cool-down: {self.cool_down:g} given; expected a share of the steps, from 0 to below 1"
            )

    @property
    def spent(self) -> float:
        """Compute spent so far, 6 N0 D0."""
        return 6 * self.parameters * self.tokens

    @property
    def tokens_if_continued(self) -> float:
        """Tokens of the run if the whole budget goes into it, D0 + dC / 6 N0."""
        return self.tokens + self.budget / (6 * self.parameters)


@dataclass(frozen=True)
class Arm:
    """One way to spend the budget."""

    parameters: float
    tokens: float  # at the end
    loss: float  # predicted
    marginal: float  # nats that the last FLOP of the budget brings


@dataclass(frozen=True)
class Signal:
    """A moment at which one could stop the run."""

    name: str  # ``score``, ``tokens per parameter`` or ``marginal price``
    tokens: float  # at which it comes; infinite if never
    saved: float  # share of the run's whole compute that stopping there would save; 0 if the signal comes later
    loss_paid: float  # nats by which the loss would end higher for it


@dataclass(frozen=True)
class Decision:
    """Whether to continue the run or to scale, and the quantities behind it."""

    run: RunInProgress
    answer: str  # ``continue``, ``scale`` or ``undecided``; ``cool down`` by `with_cool_down` alone
    probability: float  # that a fresh run ends lower, with the scatter of single runs
    share: float  # the same as the bare share of the bootstrap laws
    continued: Arm  # the run to the end of the budget
    scaled: Arm  # the best fresh run of the budget
    margin: float  # nats by which the fresh run ends lower by the law; negative if it ends higher
    low: float  # with `high` the interval at `MARGIN_LEVEL` of the margin over the bootstrap laws
    high: float
    score: float  # s at (N0, D0): below 0 data-limited, above 0 capacity-limited
    floor: float  # E + A N0^-alpha, which the run never gets below
    rule_of_20: str  # ``continue`` while D0 / N0 is below 20, else ``scale``
    break_even: tuple[float, ...]  # budgets at which the law's answer flips, ascending; empty if none was found
    signals: tuple[Signal, ...]
    cooled: CooledNow | None = None  # the run cooled down now, if that was measured

    def ways(self) -> "dict[str, Arm | CooledNow]":
        """Return the ways to spend the budget, by what they are called."""
        ways: dict[str, Arm | CooledNow] = {"continue the run": self.continued, "best fresh run": self.scaled}
        return ways if self.cooled is None else {**ways, "cool down now": self.cooled}


def continue_or_scale(
    law: ScalingLaw, bootstrap: Sequence[ScalingLaw], run: RunInProgress, calibration: Calibration = ASSUMED
) -> Decision:
    """Decide whether a run should go on or a fresh one of another size should begin.

    The compute spent so far is sunk: the run continues if E + A N0^-alpha + B (D0 + dC / 6 N0)^-beta is at most the
    minimum over N of E + A N^-alpha + B (dC / 6 N)^-beta. How sure that is comes from the laws of the bootstrap,
    blurred by the scatter of single runs about the law.
    """
    for what, factor in (("parameters", law.A), ("tokens", law.B)):
        if not factor > 0:
            raise ToposcopeError(f"by these points more {what} bring nothing: there is nothing to decide between")
    laws = [each for each in bootstrap if each.A > 0 and each.B > 0]
    if len(laws) < 2:
        raise ToposcopeError(
            "decision: most resamples of the runs determine no law, so nothing shows how sure a decision would be; "
            "give more runs, of more sizes and numbers of tokens"
        )
    margins = np.array([_margin(each, run) for each in laws])
    margin = _margin(law, run)
    probability = float(calibration.probability(margins))
    low, high = np.percentile(margins, [50 * (1 - MARGIN_LEVEL), 50 * (1 + MARGIN_LEVEL)])
    return Decision(
        run=run,
        answer=answer_of(probability),
        probability=probability,
        share=float((margins > 0).mean()),
        continued=continued(law, run),
        scaled=scaled(law, run),
        margin=margin,
        low=float(low),
        high=float(high),
        score=float(law.score(run.parameters, run.tokens)),
        floor=float(law.loss(run.parameters, np.inf)),
        rule_of_20="continue" if run.tokens < TOKENS_PER_PARAMETER * run.parameters else "scale",
        break_even=break_even(law, run),
        signals=signals(law, run),
    )


def with_cool_down(decision: Decision, law: ScalingLaw, cool_downs: Sequence[CoolDown]) -> Decision:
    """Add the third way: to cool the run down now, over the longest measured cool-down that the budget pays for.

    Where no fresh run wins and the rest of the budget brings no more than the error of the measured loss, the answer is
    ``cool down``. By the law the tokens of the cool-down count as those at the end of the other ways do.

    Raises
    ------
    ToposcopeError
        If the budget pays for none of them.
    """
    run = decision.run
    measured, tokens = affordable(cool_downs, run.tokens, run.tokens_if_continued - run.tokens)
    counted = tokens * (MEAN_RATES[measured.decay] if run.cool_down > 0 else 1.0)
    budget = min(6 * run.parameters * tokens, run.budget)
    loss = float(law.loss(run.parameters, run.tokens + counted))
    cooled = CooledNow(
        measured=measured,
        parameters=run.parameters,
        tokens=run.tokens + tokens,
        share=budget / run.budget,
        loss=loss,
        rest=max(loss - decision.continued.loss, 0.0),
        fresh=_best(law, run, budget)[2],
    )
    answer = "cool down" if decision.answer != "scale" and cooled.is_enough else decision.answer
    return replace(decision, answer=answer, cooled=cooled)


def answer_of(probability: float) -> str:
    """Return ``continue``, ``scale`` or, from 20% to 80%, ``undecided``."""
    if probability < CONTINUE_BELOW:
        return "continue"
    return "scale" if probability > SCALE_ABOVE else "undecided"


def continued(law: ScalingLaw, run: RunInProgress) -> Arm:
    """Return where the run ends if the budget goes into it."""
    marginal = _marginal(lambda budget: _continued_loss(law, run, budget), run.budget)
    return Arm(run.parameters, run.tokens_if_continued, _continued_loss(law, run, run.budget), marginal)


def scaled(law: ScalingLaw, run: RunInProgress) -> Arm:
    """Return the best fresh run of the budget, min over N of L(N, dC / 6 N)."""
    N, D, loss = _best(law, run, run.budget)
    return Arm(N, D, loss, _marginal(lambda budget: _best(law, run, budget)[2], run.budget))


def break_even(law: ScalingLaw, run: RunInProgress) -> tuple[float, ...]:
    """Return the budgets at which the answer of the law flips, ascending; empty if it never does.

    With nothing to spend the run is ahead of any fresh one; with all the compute there is it is held by its floor. So
    the answer flips an odd number of times: once as a rule, three times where a smaller fresh run wins first, the run
    then catches up, and a larger one wins in the end. Flips are looked for from 1e-6 to 1e9 times the compute spent.
    """
    from scipy.optimize import brentq

    def margin(log_budget: float) -> float:
        return _margin(law, replace(run, budget=float(np.exp(log_budget))))

    logs = np.log(run.spent) + np.linspace(np.log(1e-6), np.log(1e9), 600)
    signs = np.sign([margin(each) for each in logs])
    flips = np.flatnonzero(signs[1:] * signs[:-1] < 0)
    return tuple(float(np.exp(brentq(margin, logs[i], logs[i + 1], xtol=1e-12))) for i in flips)


def signals(law: ScalingLaw, run: RunInProgress) -> tuple[Signal, ...]:
    """Return when each signal to stop the run comes, and what stopping there would save and cost.

    The score is 0 where a 1% larger model would bring as much as 1% more tokens. The marginal price is what the last
    FLOP of the best fresh run of all the compute, 6 N0 D0 + dC, brings: a run that brings less for a FLOP is past it.
    """
    N = run.parameters
    whole = run.spent + run.budget
    # By the envelope theorem the least loss falls as fast as that of the best run with more tokens.
    price = law.beta * law.B * optimal_split(law, whole)[1] ** -law.beta / whole
    capacity = law.alpha * law.A * N**-law.alpha
    moments = {
        "score": float((capacity / (law.beta * law.B)) ** (-1 / law.beta)),
        "tokens per parameter": TOKENS_PER_PARAMETER * N,
        "marginal price": float((6 * N * price / (law.beta * law.B)) ** (-1 / (law.beta + 1))),
    }
    end = run.tokens_if_continued
    ended = float(law.loss(N, end))
    return tuple(
        Signal(name, tokens, 1 - min(tokens, end) / end, float(law.loss(N, min(tokens, end))) - ended)
        for name, tokens in moments.items()
    )


def _margin(law: ScalingLaw, run: RunInProgress) -> float:
    """Return the nats by which the best fresh run ends below the continued one."""
    return _continued_loss(law, run, run.budget) - _best(law, run, run.budget)[2]


def _continued_loss(law: ScalingLaw, run: RunInProgress, budget: float) -> float:
    """Return the loss of the continued run; a token counts half where the learning rate falls."""
    new = budget / (6 * run.parameters)
    cooling = min(new, run.cool_down * (run.tokens + new))
    return float(law.loss(run.parameters, run.tokens + new - cooling / 2))


def _best(law: ScalingLaw, run: RunInProgress, budget: float) -> tuple[float, float, float]:
    """Return N, D and loss of the best fresh run of a budget."""
    # By the law in all of its tokens, of which those of the cool-down count half.
    cooled = replace(law, B=law.B * (1 - run.cool_down / 2) ** -law.beta)
    N, D = optimal_split(cooled, budget)
    return N, D, float(cooled.loss(N, D))


def _marginal(loss: Callable[[float], float], budget: float) -> float:
    """Return the nats that the last FLOP of a budget brings."""
    return (loss(budget * (1 - DERIVATIVE_STEP)) - loss(budget * (1 + DERIVATIVE_STEP))) / (
        2 * DERIVATIVE_STEP * budget
    )


def reasons(decision: Decision, *, signals: bool = True) -> tuple[str, ...]:
    """Return the answer and its reasons, a sentence each, the answer first; with or without the signals to stop."""
    sentences = (_stop_sentence(decision, signal) for signal in decision.signals) if signals else ()
    cooled = () if decision.cooled is None else cooled_sentences(decision.cooled)
    arms, *others = _reasons(decision)
    return (_answer(decision), arms, _break_even(decision), *cooled, *others, *sentences)


def _answer(decision: Decision) -> str:
    sure = f"the probability that a fresh run ends lower is {_percent(decision.probability)}"
    model = f"a fresh run of {short(decision.scaled.parameters)} parameters"
    if decision.answer == "scale":
        word = "Start afresh, smaller" if decision.scaled.parameters < decision.run.parameters else "Scale"
        return f"{word}: {model} on {short(decision.scaled.tokens)} tokens is expected to end lower; {sure}."
    if decision.answer == "cool down" and (cooled := decision.cooled) is not None:
        return (
            f"Cool down now: what the rest of the budget would bring the run, {cooled.rest:.3f} nats by the law, is "
            f"within the error of a cool-down over {cooled.measured.length:,} steps, {cooled.half_width:.3f}; {sure}."
        )
    if decision.answer == "continue":
        return f"Continue: the run is expected to end lower than {model}; {sure}."
    return f"Undecided: {sure}, between 20% and 80%."


def _reasons(decision: Decision) -> Iterator[str]:
    run, continued, scaled = decision.run, decision.continued, decision.scaled
    yield (
        f"With {run.budget:.3g} FLOP more the run ends at {continued.loss:.3f} nats after {short(continued.tokens)} "
        f"tokens; the best fresh run of as much, {short(scaled.parameters)} parameters on {short(scaled.tokens)} "
        f"tokens, at {scaled.loss:.3f}: {abs(decision.margin):.3f} {'lower' if decision.margin > 0 else 'higher'} "
        f"({MARGIN_LEVEL:.0%} of the resampled laws: {_signed(-decision.high, 3)} to {_signed(-decision.low, 3)})."
    )
    yield (
        f"Of the resampled laws {_percent(decision.share)} let the fresh run end lower; with the scatter of single "
        f"runs about the law the probability is {_percent(decision.probability)}."
    )
    limited = (
        "data-limited: more tokens bring more" if decision.score < 0 else "capacity-limited: a larger model brings more"
    )
    yield f"Score {_signed(decision.score, 2)}: at {short(run.tokens)} tokens the run is {limited}."
    yield (
        f"The run never gets below {decision.floor:.3f} nats, its floor; "
        f"{continued.loss - decision.floor:.3f} nats above it are left at the end of the budget."
    )
    percent = 0.01 * run.budget
    yield (
        f"The last 1% of the budget brings {1e3 * continued.marginal * percent:.3g} thousandths of a nat to the run, "
        f"{1e3 * scaled.marginal * percent:.3g} to the fresh one ({continued.marginal:.2e} and {scaled.marginal:.2e} "
        "nats per FLOP)."
    )
    ratio = run.tokens / run.parameters
    agreement = {"undecided": "here", "cool down": "here", decision.rule_of_20: "as well"}
    agrees = agreement.get(decision.answer, "on the contrary")
    yield f"The rule D/N = {TOKENS_PER_PARAMETER:g} says {decision.rule_of_20} {agrees}: D/N is {ratio:.3g}."


def _break_even(decision: Decision) -> str:
    """Say what would flip the answer: another budget, or losses that are off the law."""
    found, run = decision.break_even, decision.run
    off = f"{abs(decision.margin):.3f} nats between the two ways, against the law, would flip it as well"
    if not found:
        better = "continue" if decision.margin <= 0 else "start afresh"
        return f"By the law no budget flips this: {better} from 1e-6 to 1e9 times what was spent; {off}."
    ways = ("continue", "start afresh")
    # The answer at this budget and the number of flips below it give the answer below all flips.
    first = (int(decision.margin > 0) + sum(each < run.budget for each in found)) % 2
    below, above = ways[first], ways[1 - first]
    flips = ", ".join(f"{each:.3g} FLOP ({each / run.budget:.2g} times this budget)" for each in found)
    turns = f"above {above}" if len(found) == 1 else f"then by turns {above} and {below}"
    return f"By the law the answer flips at {flips}: below {below}, {turns}; {off}."


def _stop_sentence(decision: Decision, signal: Signal) -> str:
    what, run = SIGNALS[signal.name], decision.run
    if signal.tokens >= decision.continued.tokens:
        return f"Had it been stopped when {what}: that comes only after the budget ({short(signal.tokens)} tokens)."
    when = "passed" if signal.tokens <= run.tokens else "to come"
    return (
        f"Stopped when {what} ({short(signal.tokens)} tokens, {when}) it would save {_percent(signal.saved)} of its "
        f"compute and end {signal.loss_paid:.3f} nats above the end of the budget."
    )


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _percent(share: float) -> str:
    if 0 < share < 0.01:
        return "under 1%"
    if 0.99 < share < 1:
        return "over 99%"
    return f"{100 * share:.0f}%"
