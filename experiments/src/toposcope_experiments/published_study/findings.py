"""A study's tables, looked up by the quantity that a publication names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from toposcope.analysis import Trajectory
from toposcope.extend import NETWORK, PUBLISHED, STATES, TEXT_LOSS
from toposcope.probes import Feature

STEP = "step"  # in place of a quantity: the correlation of the step with the loss
FORECASTERS = ("loss_only", "tda_only", "combined")  # those of the published study
NAMES = {
    "np_mean": "Mean neural persistence",
    "H0.total": "H0 total",
    "H1.total": "H1 total",
    "H1.entropy": "H1 entropy",
    "effective_rank": "Effective rank",
    "top_eigenvalue": "Top eigenvalue",
}


def chart_name(prefix: str, quantity: str) -> str:
    """Return the name of the chart of a quantity."""
    return f"{prefix}-{quantity.lower().replace('.', '-').replace('_', '-')}"


BATCH_LOSS = "batch_loss"
ProbeInput = Literal["weights", "hidden_states"]

_PUBLISHED_CLOUD = {"pooled": "true", "sample": "random"}
_INEXACT = ("pooled", "sample", "threshold")


@dataclass(frozen=True, eq=False)
class StudyTables:
    """A study's tables, looked up by the quantity that a publication names."""

    association: pl.DataFrame  # of `Analysis`
    scaling: pl.DataFrame  # of `Analysis`
    trajectories: dict[str, Trajectory]  # by run
    subject: ProbeInput = field(default="weights", kw_only=True)  # what the publication measured

    def target(self, run: str) -> str:
        """Return the reference target of a run, the first one of the study's protocol; empty if there is none."""
        names = list(self.trajectories[run].targets) if run in self.trajectories else []
        return next((name for name in names if name != BATCH_LOSS), names[0] if names else "")

    def published_target(self, run: str) -> str:
        """Return the target of a publication: one batch's loss; of hidden states the loss on a text, if it is known."""
        if self.subject == "weights":
            return BATCH_LOSS
        known = self.trajectories[run].targets if run in self.trajectories else {}
        return TEXT_LOSS if TEXT_LOSS in known else self.target(run)

    def feature(self, run: str, quantity: str, *, published: bool) -> Feature | None:
        """Return the feature that is a quantity in a run, or None."""
        if run not in self.trajectories:
            return None
        return feature_of(quantity, self.trajectories[run].features, published, self.subject)

    def associated(self, run: str, quantity: str, *, published: bool, target: str = "") -> dict[str, Any]:
        """Return the association of a quantity with the loss (the publication's if published), or an empty dictionary.

        Of the step it has ``rho`` alone.
        """
        target = target or (self.published_target(run) if published else self.target(run))
        rows = self.association.filter(run=run, group=NETWORK, target=target)
        if quantity == STEP:
            known = rows.filter(pl.col("rho_step").is_finite()).sort("n", descending=True, maintain_order=True)
            return {"rho": known.item(0, "rho_step")} if len(known) else {}
        rows = rows.filter(feature=str(self.feature(run, quantity, published=published) or ""))
        return rows.row(0, named=True) if len(rows) else {}

    def law(self, quantity: str, *, published: bool) -> dict[str, Any]:
        """Return the power law of a quantity's final values, or an empty dictionary."""
        names = dict.fromkeys(
            (BATCH_LOSS if published else self.target(run))
            if quantity == "loss"
            else str(self.feature(run, quantity, published=published) or "")
            for run in self.trajectories
        )
        rows = self.scaling.filter(pl.col("quantity").is_in([name for name in names if name]))
        return rows.sort("n", descending=True, maintain_order=True).row(0, named=True) if len(rows) else {}


def feature_of(
    quantity: str, features: Iterable[Feature], published: bool, subject: ProbeInput = "weights"
) -> Feature | None:
    """Return which feature is a quantity (``np_mean``, ``H0.total`` ...), or None.

    As published: the released value where a study was imported; else mean neural persistence, or the pooled cloud of
    rows drawn at random; of hidden states the cloud of principal components. Exact: mean neural persistence, or the sum
    over layers of uncapped clouds; of hidden states all points in all their components. The label with the fewest
    options first.
    """
    features = [feature for feature in features if feature.statistic == quantity]
    released = [feature for feature in features if feature.probe == PUBLISHED]
    if published and released:
        return released[0]
    probe = STATES if subject == STATES else "neural_persistence" if quantity.startswith("np_") else "rips"
    fitting = [f for f in features if f.probe == probe and _fits(probe, f.option_values(), published)]
    return min(fitting, key=lambda f: (len(f.option_values()), str(f)), default=None)


def _fits(probe: str, options: Mapping[str, str], published: bool) -> bool:
    """Return whether a probe with these options is the published one, or an exact one."""
    if probe == STATES:
        projected = options.get("pca", "0") != "0"
        if published:
            return projected and options.get("sample") == "random"
        return not projected and options.get("sample") != "random" and not options.keys() & {"metric", "normalize"}
    if probe == "rips" and published:
        return all(options.get(key) == value for key, value in _PUBLISHED_CLOUD.items())
    return not any(options.get(key, "") not in ("", "false", "farthest") for key in _INEXACT)
