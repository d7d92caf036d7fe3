"""The features the report speaks of by name; the tables hold all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from toposcope.analysis.verdict import LEVEL


@dataclass(frozen=True)
class Headline:
    """A feature, what the text calls it, and its axis label."""

    feature: str
    name: str
    axis: str


NP = Headline("neural_persistence np_mean", "Mean neural persistence", "mean neural persistence (0 to 1)")
H0 = Headline("rips H0.total", "H0 total", "H0 total persistence (weight units)")
H1 = Headline("rips H1.total", "H1 total", "H1 total persistence (weight units)")
GRADIENT_H0 = Headline("gradient_rips H0.total", "H0 total of gradients", "H0 total of gradients (gradient units)")
GRADIENT_H1 = Headline("gradient_rips H1.total", "H1 total of gradients", "H1 total of gradients (gradient units)")
GRADIENT_NORM = "gradient_rips gradient_norm"
WEIGHT_NORM = "controls frobenius_norm"

TRAJECTORIES = (NP, H0, H1)

HEADLINES = (
    *TRAJECTORIES,
    Headline("rips:pooled=true H0.total", "H0 total, pooled", ""),
    Headline("rips:pooled=true H1.total", "H1 total, pooled", ""),
    Headline("rips H0.entropy", "H0 entropy", ""),
    GRADIENT_H0,
    Headline("distances H0.wasserstein_2", "H0 change (Wasserstein-2)", ""),
    Headline(WEIGHT_NORM, "Weight norm (control)", ""),
    Headline("log grad_norm_mean", "Gradient norm (control)", ""),
    Headline("controls stable_rank", "Stable rank (control)", ""),
)

TARGETS = {
    "validation_loss": "validation loss",
    "smoothed_loss": "smoothed training loss",
    "batch_loss": "loss of the last batch",
}


def ranked(law: Mapping[str, float]) -> str:
    """Say what the order of the sizes amounts to, and what so few sizes allow; the row is of the scaling table."""
    least = law["p_least"]
    told = f"the exact p of the ranks is {law['p_exact']:.3f}"
    if least >= LEVEL:
        return f"{told}, and {law['n_sizes']:g} sizes allow none below {least:.3f}"
    return f"{told} ({law['n_sizes']:g} sizes allow {least:.3f} at best)" if least > LEVEL / 10 else told
