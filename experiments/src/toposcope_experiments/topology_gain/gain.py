"""Whether topology improves forecasts of the final loss beyond the loss so far, the laws and the norms.

See experiments/docs/topology-gain.md. Every configuration (size, peak rate, schedule) is held out with all its seeds; a
stack learns from the others and predicts it: from the laws alone, with norms, with topology. Topology has hundreds of
columns, which are reduced by a rule fixed beforehand, within the training runs. Placebos are treated in the same way.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.engine import TaskFailure, Workers, shared
from toposcope.extend import (
    BEYOND,
    COOLDOWN,
    LEVEL,
    NONE,
    STACKED_LAWS,
    TREND,
    UNDETERMINED,
    Indices,
    LoggedRun,
    Matrix,
    Progress,
    ToposcopeError,
    Vector,
    adjusted,
    complete_runs,
    derive_seed,
    fit_ridge,
    silent,
    verdict_sentence,
)
from toposcope.study import Study
from toposcope_experiments.backtest.backtesting import SKILLS, skills
from toposcope_experiments.topology_gain.held_out import Fold, HeldOut, hold_out_each
from toposcope_experiments.topology_gain.study_features import FeatureBlocks, study_features

PLAIN, NORMS, TOPOLOGY, BOTH = "stack", "stack + norms", "stack + topology", "stack + norms + topology"
TESTED = (TOPOLOGY, BOTH)  # tested against `NORMS`; p is adjusted over these at all fractions
RANDOM, OTHERS, OTHERS_OF_SIZE = "random numbers", "another run's", "another run's, of its size"
PLACEBOS = (RANDOM, OTHERS, OTHERS_OF_SIZE)
N_DRAWS = 9  # draws of each placebo
MIN_GROUPS = 15  # a verdict needs at least this many groups to hold out
MAX_DEVIATIONS = 3.0  # standard deviations at which values are clipped, as the stack clips its own
MAX_COMPONENTS = 5
MIN_RUNS_PER_COMPONENT = 5  # each principal component needs at least this many training runs

FORECASTS = {**dict.fromkeys(("run", "family", "group"), pl.String), "fraction": pl.Float64, "forecaster": pl.String}
FORECASTS |= dict.fromkeys(("predicted", "final"), pl.Float64)
GAINS = {"fraction": pl.Float64, "placebo": pl.String, "n_draws": pl.Int64}
GAINS |= {**dict.fromkeys(("skill", "skill_least", "skill_most"), pl.Float64), "n_as_good": pl.Int64}


@dataclass(frozen=True, eq=False)
class TopologyGain:
    """Errors of the forecasts with and without topology."""

    # ``fraction, forecaster, n, n_groups, mae`` (in the runs' unit), ``relative_median, skill`` (1 - MAE / MAE of the
    # stack with norms), ``skill_low, skill_high`` (95%, bootstrap over groups), ``p_wilcoxon`` (signed ranks) and ``p``
    # (sign flips) of the groups' mean differences, two-sided, and ``p_adjusted`` (of ``p``; Holm over the stacks with
    # topology at all fractions; null for the rest). Forecasters are the laws and the four stacks
    errors: pl.DataFrame
    # ``fraction, placebo, n_draws, skill, skill_least, skill_most`` (mean and range over draws, as above) and
    # ``n_as_good`` (draws that gain at least as much as topology). A placebo replaces topology by as many random
    # numbers, the topology of another run, or that of another run of the same size
    placebos: pl.DataFrame
    forecasts: pl.DataFrame  # ``run, family, group, fraction, forecaster, predicted, final``
    n_groups: int  # number of configurations, whether or not they can be predicted
    notes: tuple[str, ...]  # what was left out, one sentence each

    def verdict(self) -> str:
        """State whether topology improves the forecasts.

        It does if the error of the stack with norms and topology is lower than that of the stack with norms alone over
        at least 15 groups, with an adjusted p below .05, at any fraction, and no placebo gains as much.
        """
        rows = self.errors.filter(forecaster=BOTH).to_dicts()
        most = max((row["n_groups"] for row in rows), default=self.n_groups)
        enough = [row for row in rows if row["n_groups"] >= MIN_GROUPS]
        if not enough:
            few = f"{most} group{'s'[: most != 1]} to hold out; {MIN_GROUPS} are needed"
            return _sentence(UNDETERMINED, f"only {few}")
        shown = [row for row in enough if row["p_adjusted"] < LEVEL]
        gains = [row for row in shown if row["skill"] > 0]
        if gains:
            return self._gain(gains, most)
        least, highest = (f"{100 * end(row['skill'] for row in enough):+.0f}%" for end in (min, max))
        skill = f"over {most} groups its skill is {least} to {highest}, by fraction"
        if shown:
            return _sentence(NONE, f"{skill}; it makes the forecast worse at {_at(shown)}")
        lowest = min(row["p_adjusted"] for row in enough)
        return _sentence(NONE, f"{skill}; the lowest adjusted p is {lowest:.2g}")

    def _gain(self, gains: Sequence[Mapping[str, float]], n_groups: int) -> str:
        lower = [f"at {r['fraction']:.0%} the error is {r['skill']:.0%} lower (p {r['p_adjusted']:.2g})" for r in gains]
        words = f"over {n_groups} groups, {', '.join(lower)}"
        matched = set(self.placebos.filter(pl.col("n_as_good") > 0)["fraction"])
        own = [row for row in gains if row["fraction"] not in matched]
        if not own:
            return _sentence(TREND, words, known="a placebo")
        only = "" if len(own) == len(gains) else f"; except at {_at(own)}, a placebo gains as much"
        without = self.errors.filter(~pl.col("forecaster").is_in(TESTED)).group_by("fraction").agg(pl.col("mae").min())
        best = dict(without.iter_rows())
        beaten = any(row["mae"] < best[row["fraction"]] for row in own)
        lost = "" if beaten else "; but a forecaster without topology has a lower error still"
        return _sentence(BEYOND, f"{words}{only}{lost}")


def _sentence(verdict: str, figures: str, known: str = "the laws and the norms") -> str:
    return f"{verdict_sentence(verdict, what='the final loss', known=known, figures=figures)}."


def _at(rows: Sequence[Mapping[str, float]]) -> str:
    return ", ".join(f"{row['fraction']:.0%}" for row in rows)


def topology_gain(study: Study, *, workers: int | None = None, progress: Progress = silent) -> TopologyGain:
    """Measure how much topology improves the forecasts of a study."""
    from toposcope.logs import read_logs

    runs, remarks = complete_runs(read_logs(study.directory).logs)
    return measure_gain(runs, study_features(study), remarks, workers=workers, progress=progress)


def measure_gain(
    runs: Sequence[LoggedRun],
    blocks: Sequence[FeatureBlocks],
    remarks: Sequence[str] = (),
    *,
    draws: int = N_DRAWS,
    workers: int | None = None,
    progress: Progress = silent,
) -> TopologyGain:
    """Measure how much topology improves the forecasts of complete runs; see `topology_gain`."""
    progress("topology gain", 0, len(blocks))
    parts: dict[int, FractionResult] = {}
    count = max(1, min(workers or os.cpu_count() or 1, len(blocks)))
    with Workers(count, shared=(tuple(runs), tuple(blocks), draws)) as engine:
        for i, part in engine.run(_of_block, range(len(blocks))):
            if isinstance(part, TaskFailure):
                raise ToposcopeError(f"topology gain at {blocks[i].fraction:.0%}: {part.message}")
            parts[i] = part
            progress("topology gain", len(parts), len(blocks))
    return compare_with_norms([parts[i] for i in range(len(blocks))], remarks)


@dataclass(frozen=True, eq=False)
class FractionResult:
    """Forecasts and placebos at one fraction."""

    forecasts: pl.DataFrame
    placebos: pl.DataFrame
    n_groups: int
    notes: tuple[str, ...]


def _of_block(i: int) -> FractionResult:
    runs, blocks, draws = shared()
    return of_fraction(hold_out_each(runs, blocks[i]), blocks[i], draws)


def of_fraction(groups: HeldOut, block: FeatureBlocks, draws: int) -> FractionResult:
    """Predict every held-out group with norms, topology, both, neither, and placebos."""
    folds = groups.folds
    tables: dict[str, tuple[Matrix, Matrix]] = {
        PLAIN: (block.norms[:, :0], block.topology[:, :0]),
        NORMS: (block.norms, block.topology[:, :0]),
        TOPOLOGY: (block.norms[:, :0], block.topology),
        BOTH: (block.norms, block.topology),
    }
    names = [COOLDOWN.name, *(law.name for law in STACKED_LAWS)]
    rows: list[tuple[object, ...]] = []
    errors: dict[str, list[float]] = {NORMS: [], BOTH: []}
    for fold in folds:
        predicted = {name: np.array([laws[name] for laws in fold.laws]) for name in names if fold.laws and fold.laws[0]}
        predicted |= {name: predict_fold(fold, *of_set) for name, of_set in tables.items()}
        for name, values in predicted.items():
            if name in errors:
                errors[name] += np.abs(values - fold.final).tolist()
            for place, value, final in zip(fold.held_out, values, fold.final, strict=True):
                rows.append((block.runs[place], fold.family, fold.group, block.fraction, name, float(value), final))
    forecasts = pl.DataFrame(rows, schema=FORECASTS, orient="row")
    reference, found = (sum(errors[name]) for name in (NORMS, BOTH))
    gains = []
    for placebo in PLACEBOS if folds and reference > 0 else ():
        skill = np.array([1 - _placebo_error(folds, block, placebo, i) / reference for i in range(draws)])
        if draws:
            as_good = int((skill >= 1 - found / reference).sum())
            gains.append((block.fraction, placebo, draws, skill.mean(), skill.min(), skill.max(), as_good))
    notes = (*block.notes, *groups.notes)
    return FractionResult(forecasts, pl.DataFrame(gains, schema=GAINS, orient="row"), groups.n_groups, notes)


def predict_fold(fold: Fold, norms: Matrix, topology: Matrix) -> Vector:
    """Return the final losses of the runs of a fold that are held out, shape (m,)."""
    further = np.hstack([norms, reduced(topology, fold.learned)])
    fit = fit_ridge(np.hstack([fold.rows, further[fold.learned]]), fold.target, fold.groups)
    return fold.base * np.exp(fit(np.hstack([fold.held_out_rows, further[fold.held_out]])))


def reduced(table: Matrix, learned: Indices) -> Matrix:
    """Return the first principal components of standardised columns, at most 5 and one for every 5 training runs.

    Centres, scales and directions are computed from the training runs alone; values are clipped at 3 standard
    deviations.
    """
    known = table[learned]
    centre, scale = known.mean(axis=0), known.std(axis=0)
    varies = scale > 1e-9 * (1 + np.abs(centre))
    z = np.clip((table[:, varies] - centre[varies]) / scale[varies], -MAX_DEVIATIONS, MAX_DEVIATIONS)
    count = min(MAX_COMPONENTS, len(learned) // MIN_RUNS_PER_COMPONENT, z.shape[1])
    middle = z[learned].mean(axis=0)
    directions = np.linalg.svd(z[learned] - middle, full_matrices=False)[2][:count]
    components: Matrix = (z - middle) @ directions.T
    return components


def _placebo_error(folds: Sequence[Fold], block: FeatureBlocks, placebo: str, draw: int) -> float:
    """Return the sum of absolute errors with a placebo in place of topology, added to the norms."""
    rng = np.random.default_rng(derive_seed(42, "placebo", placebo, str(block.fraction), draw))
    if placebo == RANDOM:
        table = rng.normal(size=block.topology.shape)
    else:
        sizes = {int(i): fold.size for fold in folds for i in fold.held_out}
        table = block.topology.copy()
        for members in _classes(sizes if placebo == OTHERS_OF_SIZE else dict.fromkeys(sizes, 0)):
            order = rng.permutation(members)
            table[order] = block.topology[np.roll(order, 1)]
    return sum(float(np.abs(predict_fold(fold, block.norms, table) - fold.final).sum()) for fold in folds)


def _classes(kinds: Mapping[int, object]) -> list[list[int]]:
    """Return the places of each kind."""
    places: dict[object, list[int]] = {}
    for place, kind in sorted(kinds.items()):
        places.setdefault(kind, []).append(place)
    return list(places.values())


def compare_with_norms(parts: Sequence[FractionResult], remarks: Sequence[str] = ()) -> TopologyGain:
    """Compare the forecasters of all fractions with the stack with norms."""
    forecasts = pl.concat([pl.DataFrame(schema=FORECASTS), *(part.forecasts for part in parts)])
    error = (pl.col("predicted") - pl.col("final")).abs()
    errors = forecasts.group_by("fraction", "forecaster", maintain_order=True).agg(
        n=pl.len().cast(pl.Int64),
        n_groups=pl.col("group").n_unique().cast(pl.Int64),
        mae=error.mean(),
        relative_median=(error / pl.col("final")).median(),
    )
    compared = skills(forecasts.rename({"group": "size"}), (NORMS,)) if len(forecasts) else pl.DataFrame(schema=SKILLS)
    of_skill = compared.select("fraction", "forecaster", "skill", "skill_low", "skill_high", "p")
    errors = errors.join(of_skill, on=["fraction", "forecaster"], how="left", maintain_order="left")
    errors = errors.join(_wilcoxon(forecasts), on=["fraction", "forecaster"], how="left", maintain_order="left")
    tested = errors["forecaster"].is_in(TESTED)
    p = adjusted(np.where(tested, errors["p"].fill_null(np.nan).to_numpy(), np.nan))
    errors = errors.with_columns(p_adjusted=pl.Series(p, dtype=pl.Float64).fill_nan(None))
    notes = tuple(dict.fromkeys([*remarks, *(note for part in parts for note in part.notes)]))
    gains = pl.concat([pl.DataFrame(schema=GAINS), *(part.placebos for part in parts)])
    n_groups = max((part.n_groups for part in parts), default=0)
    return TopologyGain(errors, gains, forecasts, n_groups, notes)


def _wilcoxon(forecasts: pl.DataFrame) -> pl.DataFrame:
    """Return p of Wilcoxon's signed ranks of groups' mean differences from the stack with norms."""
    from scipy.stats import wilcoxon

    error = forecasts.with_columns(error=(pl.col("predicted") - pl.col("final")).abs())
    base = error.filter(forecaster=NORMS).select("run", "fraction", base="error")
    both = error.filter(pl.col("forecaster") != NORMS).join(base, on=["run", "fraction"])
    groups = both.group_by("fraction", "forecaster", "group", maintain_order=True).agg(
        difference=(pl.col("error") - pl.col("base")).mean()
    )
    rows = []
    for (fraction, name), part in groups.group_by("fraction", "forecaster", maintain_order=True):
        differences = part["difference"].to_numpy()
        p = float(wilcoxon(differences).pvalue) if differences.any() else 1.0
        rows.append((fraction, name, p))
    schema = {"fraction": pl.Float64, "forecaster": pl.String, "p_wilcoxon": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")
