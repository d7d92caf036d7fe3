"""The reasons of a decision, in sentences."""

from collections.abc import Iterator

from toposcope.forecasting.decision.decision import TOKENS_PER_PARAMETER, Decision, Signal
from toposcope.forecasting.wording import short

SIGNALS = {
    "score": "the score turned to capacity-limited",
    "tokens per parameter": f"D/N = {TOKENS_PER_PARAMETER:g}",
    "marginal price": "its last FLOP brought less than that of the best run of all the compute",
}


def reasons(decision: Decision, *, signals: bool = True) -> tuple[str, ...]:
    """Return the answer and its reasons, a sentence each, the answer first; with or without the signals to stop."""
    sentences = (_signal(decision, signal) for signal in decision.signals) if signals else ()
    return (_answer(decision), *_reasons(decision), *sentences)


def _answer(decision: Decision) -> str:
    sure = f"the probability that a fresh run ends lower is {_percent(decision.probability)}"
    model = f"a fresh run of {short(decision.scaled.parameters)} parameters"
    if decision.answer == "scale":
        word = "Start afresh, smaller" if decision.scaled.parameters < decision.run.parameters else "Scale"
        return f"{word}: {model} on {short(decision.scaled.tokens)} tokens is expected to end lower; {sure}."
    if decision.answer == "continue":
        return f"Continue: the run is expected to end lower than {model}; {sure}."
    return f"Undecided: {sure}, between 20% and 80%."


def _reasons(decision: Decision) -> Iterator[str]:
    run, continued, scaled = decision.run, decision.continued, decision.scaled
    yield (
        f"With {run.budget:.3g} FLOP more the run ends at {continued.loss:.3f} nats after {short(continued.tokens)} "
        f"tokens; the best fresh run of as much, {short(scaled.parameters)} parameters on {short(scaled.tokens)} "
        f"tokens, at {scaled.loss:.3f}: {abs(decision.margin):.3f} {'lower' if decision.margin > 0 else 'higher'} "
        f"(90% of the resampled laws: {_signed(-decision.high, 3)} to {_signed(-decision.low, 3)})."
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
    yield _marginals(decision)
    yield _break_even(decision)
    ratio = run.tokens / run.parameters
    contrary = {"continue", "scale"} - {decision.rule_of_20}
    agrees = (
        "here" if decision.answer == "undecided" else "on the contrary" if decision.answer in contrary else "as well"
    )
    yield f"The rule D/N = {TOKENS_PER_PARAMETER:g} says {decision.rule_of_20} {agrees}: D/N is {ratio:.3g}."


def _marginals(decision: Decision) -> str:
    continued, scaled = decision.continued.marginal, decision.scaled.marginal
    unit = 0.01 * decision.run.budget
    return (
        f"The last 1% of the budget brings {1e3 * continued * unit:.3g} thousandths of a nat to the run, "
        f"{1e3 * scaled * unit:.3g} to the fresh one ({continued:.2e} and {scaled:.2e} nats per FLOP)."
    )


def _break_even(decision: Decision) -> str:
    found, run = decision.break_even, decision.run
    if not found:
        better = "continue" if decision.margin <= 0 else "start afresh"
        return f"There is no break-even: {better} at every budget from 1e-6 to 1e9 times what was spent."
    ways = ("continue", "start afresh")
    # The answer at this budget and the number of flips below it give the answer below all flips.
    first = (int(decision.margin > 0) + sum(each < run.budget for each in found)) % 2
    below, above = ways[first], ways[1 - first]
    if len(found) == 1:
        side = "below" if run.budget < found[0] else "above"
        return f"Break-even at {found[0]:.3g} FLOP: below {below}, above {above}; this budget is {side} it."
    flips = ", ".join(f"{each:.3g}" for each in found)
    return f"Break-evens at {flips} FLOP: below the first {below}, then by turns {above} and {below}."


def _signal(decision: Decision, signal: Signal) -> str:
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
