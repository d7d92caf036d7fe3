"""The association table of a study: every feature of every run and group of layers, with a verdict."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.adjustment import Method, pairing_p
from toposcope.analysis.association import COLUMNS, MIN_CHECKPOINTS, AssociationTask, FeatureSeries, associate
from toposcope.analysis.association_verdict import with_verdicts
from toposcope.analysis.comparison import against
from toposcope.analysis.efficiency import paces
from toposcope.analysis.given_covariates import STEP, covariate_basis
from toposcope.analysis.power import with_power
from toposcope.analysis.trajectory import Features, SeriesByName, Trajectory, cloud_feature
from toposcope.probes.feature import NETWORK, TOPOLOGY, Feature
from toposcope.probes.point_clouds import SPECTRAL
from toposcope.progress import Progress, silent
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Matrix, Vector

MAX_COMPARED = 24
"""Runs that are compared with each other; of more, each block of so many is by itself, and groups of layers are left
out: a population is about what differs between runs."""
SCHEMA = {
    **dict.fromkeys(("run", "group", "target", "feature", "kind"), pl.String),
    **dict.fromkeys(("n", "design"), pl.Int64),
    **dict.fromkeys(COLUMNS, pl.Float64),
}


def association_table(
    trajectories: Sequence[Trajectory], method: Method = "holm", progress: Progress = silent
) -> pl.DataFrame:
    """Measure the association of every feature with the targets of its run (docs/methods/association.md).

    Features of the whole network are measured against every target, those of groups of layers against the first, most
    reliable one; of more than 24 runs only the network is. The speed of neural persistence is measured against the
    loss gained per step and per token.

    Parameters
    ----------
    trajectories : sequence of Trajectory
    method : "holm", "bonferroni" or "bh"
        How p-values are adjusted.
    progress : callable, optional
        Called with the groups of features that are done, of those of up to 24 runs.

    Returns
    -------
    polars.DataFrame
        ``run, group, target, feature, kind, n``, the columns of `toposcope.analysis.association.COLUMNS`, ``p_pairing``
        of `toposcope.analysis.adjustment.pairing_p`, and those of
        `toposcope.analysis.association_verdict.with_verdicts`.
    """
    grouped = len(trajectories) <= MAX_COMPARED
    designs: Designs = {}
    blocks = []
    for i, runs in enumerate(_batches(trajectories)):
        blocks.append(_block_rows(runs, i, designs, grouped, progress))
        blocks.append(_block_rows([*map(paces, runs)], i, designs, grouped=False, progress=silent))
    return with_power(with_verdicts(pl.concat(blocks), method), [design for _, design in designs.values()])


def _batches(trajectories: Sequence[Trajectory]) -> list[Sequence[Trajectory]]:
    """Divide runs, in their order, into as few equal blocks as `MAX_COMPARED` allows; no run is one empty block."""
    count = max(1, -(-len(trajectories) // MAX_COMPARED))
    ends = [round(len(trajectories) * i / count) for i in range(count + 1)]
    return [trajectories[begin:end] for begin, end in pairwise(ends)]


Designs = dict[tuple[str, bytes, bytes, bytes], tuple[int, AssociationTask]]
"""The targets and covariates that rows are measured against, each once, and their numbers."""


def _block_rows(
    trajectories: Sequence[Trajectory], block: int, designs: Designs, grouped: bool, progress: Progress
) -> pl.DataFrame:
    """Return the rows, without verdicts, of runs that are compared with each other."""
    tasks = [
        (trajectory, group, target)
        for trajectory in trajectories
        for i, target in enumerate(trajectory.targets)
        for group in (_features(trajectory) if grouped and i == 0 else [NETWORK])
    ]
    parts = []
    bases = {t.run: covariate_basis(t.steps, t.covariates) for t in trajectories if len(t.steps) >= MIN_CHECKPOINTS}
    for done, (trajectory, group, target) in enumerate(tasks, start=1):
        parts.append(_group_rows(trajectory, group, target, trajectories, bases, designs))
        progress("association", done, len(tasks))
    table = pl.concat([pl.DataFrame(schema=SCHEMA), *(rows for rows, _ in parts)])
    pairings = _pairings(table, [strengths for _, strengths in parts], trajectories)
    return table.with_columns(block=pl.lit(block, pl.Int64), p_pairing=pairings)


def _pairings(table: pl.DataFrame, strengths: Sequence[Matrix], trajectories: Sequence[Trajectory]) -> pl.Series:
    """Return, by row, the p of its feature's pairing with the losses of all runs; targets pair by their rank."""
    place = {trajectory.run: i for i, trajectory in enumerate(trajectories)}
    order = {(t.run, target): i for t in trajectories for i, target in enumerate(t.targets)}
    keys = table.select("run", "group", "target", "feature").rows()
    rows = np.concatenate([np.empty((0, len(trajectories))), *strengths])
    matrices: dict[tuple[str, int, str], dict[int, int]] = {}
    for i, (run, group, target, feature) in enumerate(keys):
        matrices.setdefault((group, order[run, target], feature), {})[place[run]] = i
    p = np.full(len(keys), np.nan)
    for members in matrices.values():
        runs, indices = list(members), list(members.values())
        p[indices] = pairing_p(rows[np.ix_(indices, runs)], derive_seed(SEED, "pairing"))
    return pl.Series(p, dtype=pl.Float64)


def _features(trajectory: Trajectory) -> dict[str, Features]:
    return {NETWORK: trajectory.features, **trajectory.groups}


def _group_rows(
    trajectory: Trajectory,
    group: str,
    target: str,
    trajectories: Sequence[Trajectory],
    bases: Mapping[str, Matrix],
    designs: Designs,
) -> tuple[pl.DataFrame, Matrix]:
    """Return the rows of a group, and how much stronger each run's features are against its target than its own."""
    features = _features(trajectory)[group]
    names = list(features)
    unknown = np.full(len(trajectory.steps), np.nan)
    if not names:
        return pl.DataFrame(schema=SCHEMA), np.empty((0, len(trajectories)))
    n = len(trajectory.steps)
    noise = trajectory.noise if group == NETWORK else {}
    task = AssociationTask(
        series=FeatureSeries(trajectory.steps, np.array([features[name] for name in names])),
        target=trajectory.targets[target],
        covariates=trajectory.covariates,
        others=[
            FeatureSeries(
                other.steps, _rows(_features(other).get(group, {}), names, len(other.steps)), bases.get(other.run)
            )
            for other in trajectories
            if other.run != trajectory.run
        ],
        twins=_rows(trajectory.twins.get(group, {}), names, n),
        noise=_rows(noise, names, n),
        scales=np.array([features.get(scale, unknown) if (scale := trajectory.scale(f)) else unknown for f in names]),
    )
    result = associate(task, derive_seed(SEED, "association", trajectory.run, target, group))
    rows = pl.DataFrame(
        {
            **{
                key: [value] * len(names)
                for key, value in (("run", trajectory.run), ("group", group), ("target", target))
            },
            "feature": [str(f) for f in names],
            "kind": [f.kind for f in names],
            "n": result.n,
            "design": [_design(trajectory.run, task, i, designs) for i in range(len(names))],
            **dict(zip(COLUMNS, result.table.T, strict=True)),
        },
        schema=SCHEMA,
    )
    return rows, np.insert(result.pairings, [other.run for other in trajectories].index(trajectory.run), 0.0, axis=1)


def _design(run: str, task: AssociationTask, row: int, designs: Designs) -> int:
    """Return the number of what a row is measured against; features with the same checkpoints and scale share it."""
    known = np.isfinite(task.series.features[row]) & np.isfinite(task.target)
    scales, steps = task.scales[row : row + 1, known], task.series.steps[known]
    key = (run, known.tobytes(), task.target.tobytes(), scales.tobytes())
    if key not in designs:
        covariates = {
            name: covariate[known] for name, covariate in task.covariates.items() if np.isfinite(covariate[known]).all()
        }
        empty = FeatureSeries(steps, np.empty((0, len(steps))))
        designs[key] = len(designs), AssociationTask(empty, task.target[known], covariates, scales=scales)
    return designs[key][0]


def _rows(features: Mapping[Feature, NDArray[np.float64]], names: Sequence[Feature], n: int) -> NDArray[np.float64]:
    return np.array([features.get(name, np.full(n, np.nan)) for name in names])


def comparison_table(trajectories: Sequence[Trajectory]) -> pl.DataFrame:
    """Compare the correlation of every feature of a network with the loss with that of a simpler quantity.

    All features are compared with the step; topological features of hidden states also with each spectral measure of
    the same cloud (`toposcope.probes.point_clouds.SPECTRAL`).

    Returns
    -------
    polars.DataFrame
        ``run, target, feature, other, test, difference, low, high, p``: a row for each test of
        `toposcope.analysis.comparison.against`, against the step without ``Fisher z``; differences are of the absolute
        rho, feature less other.
    """
    floats = dict.fromkeys(("difference", "low", "high", "p"), pl.Float64)
    schema = {**dict.fromkeys(("run", "target", "feature", "other", "test"), pl.String), **floats}
    return pl.DataFrame([row for t in trajectories for row in _comparisons(t)], schema=schema, orient="row")


Row = tuple[str | float, ...]


def _comparisons(trajectory: Trajectory) -> Iterator[Row]:
    """Compare every feature with the step, and topology of hidden states with the spectral measures of its cloud."""
    features = {str(feature): values for feature, values in trajectory.features.items()}
    yield from _compared(trajectory, features, {STEP: trajectory.covariates[STEP]}, ("Williams", "block bootstrap"))
    by_cloud: dict[str, SeriesByName] = {}
    for feature, values in trajectory.features.items():
        cloud = trajectory.clouds.get(feature.label)
        if cloud and feature.kind == TOPOLOGY:
            by_cloud.setdefault(cloud, {})[str(feature)] = values
    for cloud, topology in by_cloud.items():
        measures = [cloud_feature(cloud, statistic) for statistic in SPECTRAL]
        spectra = {str(f): trajectory.features[f] for f in measures if f in trajectory.features}
        yield from _compared(trajectory, topology, spectra, ("Williams", "block bootstrap", "Fisher z"))


def _compared(
    trajectory: Trajectory, features: SeriesByName, others: SeriesByName, tests: Sequence[str]
) -> Iterator[Row]:
    """Compare each feature with each of the others, against the first target, where all three are known."""
    for target, losses in list(trajectory.targets.items())[:1]:
        seed = derive_seed(SEED, "comparison", trajectory.run, target)
        for known_others, measured in _by_known_checkpoints(others, losses):
            shared = {name: np.where(known_others, values, np.nan) for name, values in features.items()}
            for known, names in _by_known_checkpoints(shared, losses):
                varied = [name for name in measured if np.ptp(others[name][known]) > 0]
                if not varied:
                    continue
                x, o = (np.array([s[name][known] for name in n]) for s, n in ((features, names), (others, varied)))
                comparisons = against(x, o, losses[known], seed)
                for i, name in enumerate(names):
                    for j, other in enumerate(varied):
                        for test in tests:
                            yield (trajectory.run, target, name, other, test, *comparisons[test][i, j].tolist())


def _by_known_checkpoints(features: SeriesByName, target: Vector) -> Iterator[tuple[NDArray[np.bool_], list[str]]]:
    """Group features that vary and are known at the same checkpoints, in the order of their first."""
    groups: dict[bytes, tuple[NDArray[np.bool_], list[str]]] = {}
    for name, values in features.items():
        known = np.isfinite(values) & np.isfinite(target)
        if known.sum() >= MIN_CHECKPOINTS and np.ptp(values[known]) > 0 and np.ptp(target[known]) > 0:
            groups.setdefault(known.tobytes(), (known, []))[1].append(name)
    yield from groups.values()
