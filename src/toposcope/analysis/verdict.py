"""The verdicts on what a quantity says about a loss: their words, a gloss of each, and the sentence that states one."""

LEVEL = 0.05
"""Adjusted p-values below this are significant."""
BEYOND, UNDETERMINED, TREND, NONE = "beyond trend", "cannot be told", "trend only", "none"
GLOSSES = {
    BEYOND: "passes every test, given the covariates and against other runs or controls",
    UNDETERMINED: "a test is not defined, or would miss an effect that matters",
    TREND: "goes with the loss, but no more than the step or another control explains",
    NONE: "does not go with the loss detectably",
}
VERDICTS = tuple(GLOSSES)
"""From the strongest to the weakest."""
MARKS = {BEYOND: "✓", UNDETERMINED: "?", TREND: "○", NONE: "–"}
"""Signs that say the same without colour."""
TEMPLATES = {
    BEYOND: "{who} says more about {what} than {known}",
    UNDETERMINED: "Whether {who} says more about {what} than {known} cannot be told",
    TREND: "{who} goes with {what}, but says no more about it than {known}",
    NONE: "Nothing found: {who} says no more about {what} than {known}",
}


def verdict_sentence(
    verdict: str, *, what: str = "the loss", known: str = "the training step", who: str = "topology", figures: str = ""
) -> str:
    """Return the sentence of a verdict without a full stop; the figures, or why it cannot be told, follow a colon."""
    text = TEMPLATES[verdict].format(who=who, what=what, known=known)
    return f"{text[:1].upper()}{text[1:]}{f': {figures}' if figures else ''}"


def strongest(verdicts: set[str]) -> str:
    """Return the strongest verdict of some."""
    return next(verdict for verdict in VERDICTS if verdict in verdicts)
