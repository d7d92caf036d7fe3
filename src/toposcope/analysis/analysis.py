"""All analyses of a study, as tables."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.adjustment import Method
from toposcope.analysis.change_points import change_points
from toposcope.analysis.matched import COLLAPSE, MATCHED, collapse, matched
from toposcope.analysis.phases import phases, sensitivity
from toposcope.analysis.references import references
from toposcope.analysis.representation_phases import SCHEMA as REPRESENTATION_PHASES
from toposcope.analysis.representation_phases import representation_phases
from toposcope.analysis.scaling import PowerLaw, power_law
from toposcope.analysis.table import SEED, association, comparisons
from toposcope.analysis.trajectories import Trajectory, cloud_feature, trajectories
from toposcope.probes.feature import TOPOLOGY, Feature
from toposcope.seeds import derive_seed
from toposcope.study.kinds import PUBLISHED

NP_MEAN = Feature("neural_persistence", "", "np_mean", TOPOLOGY)
PHASED = (
    NP_MEAN,
    Feature(PUBLISHED, "", "np_mean", TOPOLOGY),
    Feature("rips", "", "H0.total", TOPOLOGY),
    Feature("rips", "", "H1.total", TOPOLOGY),
    Feature("distances", "", "H0.wasserstein_2", TOPOLOGY),
)
"""Features whose phases are told."""
PHASED_STATES = ("rankme", "effective_rank", "H0.total", "H1.total", "H1.entropy")
"""The same of hidden states: of the first probe of them declared, and of published ones."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """What a study says.

    Attributes
    ----------
    trajectories : list of Trajectory
    association : polars.DataFrame
        See `toposcope.analysis.table.association`.
    comparisons : polars.DataFrame
        See `toposcope.analysis.table.comparisons`.
    phases : polars.DataFrame
        ``run, feature, largest_change, diminishing_returns`` by the published rule; over other settings of it the first
        and last step found, ``largest_change_first, largest_change_last, diminishing_first, diminishing_last``,
        ``n_settings`` and the share that agree, ``share_same``.
    change_points : polars.DataFrame
        ``run, feature, step, low, high, p_smooth, explained``.
    scaling : polars.DataFrame
        Of final values: ``quantity, n, n_sizes, factor, exponent, r_squared, low, high, offset, offset_exponent, rho,
        p_exact, p_least``.
    references : polars.DataFrame
        See `toposcope.analysis.references.references`.
    matched, collapse : polars.DataFrame
        See `toposcope.analysis.matched`.
    representation_phases : polars.DataFrame
        See `toposcope.analysis.representation_phases.representation_phases`.
    adjusted_by : "holm", "bonferroni" or "bh"
        How p-values of the association are adjusted.
    """

    trajectories: list[Trajectory]
    association: pl.DataFrame
    comparisons: pl.DataFrame
    phases: pl.DataFrame
    change_points: pl.DataFrame
    scaling: pl.DataFrame
    references: pl.DataFrame
    matched: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MATCHED))
    collapse: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COLLAPSE))
    representation_phases: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=REPRESENTATION_PHASES))
    adjusted_by: Method = "holm"


def analyse(
    features: pl.DataFrame,
    labels: pl.DataFrame,
    log: pl.DataFrame,
    runs: pl.DataFrame,
    *,
    protocol: str = "exact",
    adjust: Method = "holm",
    tokens_per_step: Mapping[str, float] | None = None,
) -> Analysis:
    """Analyse a study.

    Parameters
    ----------
    features, labels, log, runs : polars.DataFrame
        From the methods of `Study` of those names (`features` from `Study.frame`).
    protocol : "exact" or "published"
        Under the published protocol the first target is the loss of one batch.
    adjust : "holm", "bonferroni" or "bh"
        How p-values are adjusted for the number of rows.
    tokens_per_step : mapping of str to float, optional
        By run; for checkpoints whose tokens the log does not tell.
    """
    batch_first = protocol == "published"
    found = trajectories(features, labels, log, batch_first=batch_first, tokens_per_step=tokens_per_step)
    at_equal = matched(found, dict(runs.select("run", "n_parameters").drop_nulls().iter_rows()))
    return Analysis(
        trajectories=found,
        association=association(found, adjust),
        comparisons=comparisons(found),
        phases=_phases(found),
        change_points=_change_points(found),
        scaling=_scaling(found, runs),
        references=references(found),
        matched=at_equal,
        collapse=collapse(at_equal),
        representation_phases=representation_phases(found),
        adjusted_by=adjust,
    )


def _phased(found: list[Trajectory]) -> Iterator[tuple[str, str, NDArray[np.int64], NDArray[np.float64]]]:
    """Yield run, feature, steps and values of the features whose phases are told, where they are known."""
    for trajectory in found:
        for feature in (*PHASED, *_phased_states(trajectory)):
            if feature in trajectory.features:
                values = trajectory.features[feature]
                known = np.isfinite(values)
                yield trajectory.run, str(feature), trajectory.steps[known], values[known]


def _phased_states(trajectory: Trajectory) -> list[Feature]:
    clouds = [next(iter(trajectory.clouds.values()), ""), PUBLISHED]
    told = dict.fromkeys(cloud for cloud in clouds if cloud in trajectory.clouds)
    return [cloud_feature(cloud, name) for cloud in told for name in PHASED_STATES]


def _phases(found: list[Trajectory]) -> pl.DataFrame:
    rows = [
        {"run": run, "feature": feature, **asdict(phases(steps, values)), **asdict(sensitivity(steps, values))}
        for run, feature, steps, values in _phased(found)
    ]
    steps = ("largest_change", "diminishing_returns")
    ranges = ("largest_change_first", "largest_change_last", "diminishing_first", "diminishing_last", "n_settings")
    schema = {"run": pl.String, "feature": pl.String, **dict.fromkeys((*steps, *ranges), pl.Int64)}
    return pl.DataFrame(rows, schema={**schema, "share_same": pl.Float64})


def _change_points(found: list[Trajectory]) -> pl.DataFrame:
    rows = [
        {"run": run, "feature": feature, **asdict(point)}
        for run, feature, steps, values in _phased(found)
        for point in change_points(steps, values, derive_seed(SEED, "change points", run, feature))
    ]
    schema = {"run": pl.String, "feature": pl.String, **dict.fromkeys(("step", "low", "high"), pl.Int64)}
    return pl.DataFrame(rows, schema={**schema, "p_smooth": pl.Float64, "explained": pl.Boolean})


def sizes_of_complete(found: list[Trajectory], runs: pl.DataFrame) -> dict[str, int]:
    """Return the parameters of complete runs whose last checkpoint was measured, by run."""
    last = {t.run: int(t.steps[-1]) for t in found}
    complete = runs.filter(status="complete").select("run", "n_parameters", "last_step").drop_nulls()
    return {run: n for run, n, step in complete.iter_rows() if last.get(run) == step}


def _scaling(found: list[Trajectory], runs: pl.DataFrame) -> pl.DataFrame:
    """Fit final values of complete runs against their size."""
    sizes = sizes_of_complete(found, runs)
    finals: dict[str, list[tuple[float, float]]] = {}
    for trajectory in found:
        if trajectory.run in sizes:
            for name, values in trajectory.named_values().items():
                if np.isfinite(values[-1]):
                    finals.setdefault(name, []).append((float(sizes[trajectory.run]), float(values[-1])))
    rows = []
    for name, pairs in finals.items():
        n_parameters, values = np.array(pairs).T
        law = power_law(n_parameters, values, derive_seed(SEED, "scaling", name))
        if law is not None:
            rows.append({"quantity": name, **asdict(law)})
    counts = {"quantity": pl.String, "n": pl.Int64, "n_sizes": pl.Int64}
    names = [field.name for field in fields(PowerLaw) if field.name not in counts]
    return pl.DataFrame(rows, schema={**counts, **dict.fromkeys(names, pl.Float64)})
