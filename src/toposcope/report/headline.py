"""The features the report speaks of by name; the tables hold all of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    """A feature, what the text calls it, and its axis label."""

    feature: str
    name: str
    axis: str


NP = Headline("neural_persistence np_mean", "Mean neural persistence", "mean neural persistence (0 to 1)")
H0 = Headline("rips H0.total", "H0 total", "H0 total persistence (weight units)")
H1 = Headline("rips H1.total", "H1 total", "H1 total persistence (weight units)")

TRAJECTORIES = (NP, H0, H1)

HEADLINES = (
    *TRAJECTORIES,
    Headline("rips:pooled=true H0.total", "H0 total, pooled", ""),
    Headline("rips:pooled=true H1.total", "H1 total, pooled", ""),
    Headline("rips H0.entropy", "H0 entropy", ""),
    Headline("gradient_rips H0.total", "H0 total of gradients", ""),
    Headline("distances H0.wasserstein_2", "H0 change (Wasserstein-2)", ""),
    Headline("controls frobenius_norm", "Weight norm (control)", ""),
    Headline("log grad_norm_mean", "Gradient norm (control)", ""),
    Headline("controls stable_rank", "Stable rank (control)", ""),
)

TARGETS = {
    "validation_loss": "validation loss",
    "smoothed_loss": "smoothed training loss",
    "batch_loss": "loss of the last batch",
}
