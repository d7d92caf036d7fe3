"""A made-up study for the figures: curves whose answers are known, without training or measuring anything."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from named_features import by_feature, by_group
from section_tools import all_tables

from toposcope.analysis.between_runs.gain import SCHEMA as BETWEEN_RUNS
from toposcope.analysis.between_runs.verdict import KNOWN
from toposcope.analysis.efficiency import NP_MEAN
from toposcope.analysis.layers import onset_table
from toposcope.analysis.phases import move_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import BEYOND, TREND
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.report.study_data import StudyData
from toposcope.study.declaration import Declaration
from toposcope.study.kinds import feature_named
from toposcope.study.study import FRAME_SCHEMA

ROLES = ("attn.qkv", "attn.out", "mlp.in", "mlp.out")
ENSEMBLES = ("gaussian", "uniform", "orthogonal", "sparse", "heavy_tailed")
FEATURES = (
    "neural_persistence np_mean", "rips H0.total", "rips H1.total", "rips:pooled=true H0.total",
    "gradient_rips H0.total", "distances H0.wasserstein_2", "controls frobenius_norm",
)  # fmt: skip


def layers_of(blocks: int) -> dict[str, str]:
    """Return the roles of the layers of a model."""
    names = {f"layers.{i}.{role}.weight": role for i in range(blocks) for role in ROLES}
    return {"head.weight": "head", **names}


def norm_at(share: np.ndarray) -> np.ndarray:
    """Return a layer's weight norm by the share of training done: it doubles."""
    return 1 + share


def trajectory(run: str, place: int, steps: np.ndarray) -> Trajectory:
    """Return a run: topology grows as the weights do, and mean neural persistence with the place of the layer."""
    share = steps / max(int(steps[-1]), 1)
    roles = layers_of(1 + place % 3)
    layers = {
        layer: {
            "neural_persistence np_mean": 0.3 + 0.02 * i * share,
            "rips H0.total": 10 * norm_at(share) * (1 + 0.1 * (role == "mlp.in") * share),
            "controls frobenius_norm": norm_at(share),
        }
        for i, (layer, role) in enumerate(roles.items())
    }
    features = {
        "neural_persistence np_mean": 0.3 + 0.2 * np.tanh(3 * share) - 0.01 * place,
        "rips H0.total": (place + 1) * 10 * norm_at(share),
        "rips H1.total": (place + 1) * 2 * norm_at(share),
        "rips:pooled=true,sample=random H0.total": (place + 1) * 8 * norm_at(share),
        "gradient_rips H0.total": (place + 1) * (5 - 4 * share),
        "gradient_rips H1.total": (place + 1) * (1 - 0.5 * share),
        "gradient_rips gradient_norm": 2 - share,
        "distances H0.wasserstein_2": np.where(steps > 0, np.exp(-3 * share), np.nan),
        "distances H1.wasserstein_2": np.where(steps > 0, 0.1 * np.exp(-2 * share), np.nan),
        "controls frobenius_norm": norm_at(share),
    }
    level = {"attention": 0.5, "mlp": 0.4, "early": 0.45, "late": 0.42}
    groups = {
        name: {"neural_persistence np_mean": 0.3 + (top - 0.3) * share, "rips H0.total": 5 + 10 * top * share}
        for name, top in level.items()
    }
    loss = 2 + 2 * np.exp(-3 * share) - 0.1 * place
    targets = {"validation_loss": loss, "batch_loss": loss + 0.01 * np.sin(steps)}
    return Trajectory(
        run,
        steps,
        by_feature(features),
        targets,
        {"step": steps.astype(float)},
        by_group(groups),
        by_group(layers),
        roles,
    )


def association(found: list[Trajectory]) -> pl.DataFrame:
    """Return an association table: everything follows the step, given which almost nothing is left."""
    rows: list[dict[str, Any]] = []
    for i, t in enumerate(found):
        for target in t.targets:
            for j, feature in enumerate(t.features):
                given = np.nan if j == 1 else 0.02 * (j - 3) - 0.01 * i
                verdict = ("trend only", "none", "cannot be told", "beyond trend")[j % 4]
                rows.append(
                    {"run": t.run, "group": "network", "target": target, "feature": str(feature),
                     "kind": feature.kind, "n": len(t.steps),
                     "rho": -0.9 + 0.2 * j + 0.01 * i, "rho_step": -0.95, "rho_given_step": given,
                     "rho_learning_rate": -0.9, "rho_weight_norm": np.nan,
                     "rho_given_all": given / 2, "verdict": verdict, "untested": "", "needs": "",
                     "p_given_all_adjusted": 1.0, "p_given_step_adjusted": 1.0,
                     "rho_with_step": 0.9, "block_low": -0.98, "block_high": 0.3 + 0.1 * j}
                )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def between_runs(found: list[Trajectory], verdict: str = TREND) -> pl.DataFrame:
    """Return what topology adds: half of the error given the loss alone, and given everything else if it is beyond."""
    gain, own_p = (0.4, 0.01) if verdict == BEYOND else (0.0, 0.5)
    rows = [
        dict.fromkeys(BETWEEN_RUNS)
        | {"target": "final validation loss", "held_out": "runs", "given": given, "added": added, "fraction": fraction,
           "n_runs": len(found), "n_groups": len(found), "n_columns": 2, "mae": mae * (1 - fraction),
           "skill": skill, "low": skill - 0.1, "high": skill + 0.1, "p": p, "p_adjusted": p,
           "detectable": 0.2 if given == "norms and spectra" else None, "verdict": verdict,
           "reason": KNOWN if verdict == TREND else ""}
        for fraction in (0.1, 0.5, 0.9)
        for given, added, mae, skill, p in (
            ("loss", "schedule", 0.1, 0.5, None), ("schedule", "norms and spectra", 0.05, 0.5, None),
            ("norms and spectra", "random projections", 0.05, 0.0, None),
            ("norms and spectra", "placebo twin", 0.05, 0.0, None), ("loss", "rips H0", 0.05, 0.5, 0.01),
            ("norms and spectra", "rips H0", 0.05 * (1 - gain), gain, own_p),
        )
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=BETWEEN_RUNS)


def change_points(found: list[Trajectory]) -> pl.DataFrame:
    """Return two change points a run, the first of them explained."""
    last = {t.run: int(t.steps[-1]) for t in found}
    feature = "neural_persistence np_mean"
    rows = [(run, feature, n // k, n // (k + 1), n // k + 90, 0.5, k == 2) for run, n in last.items() for k in (2, 4)]
    schema = {
        "run": pl.String, "feature": pl.String, "step": pl.Int64, "low": pl.Int64, "high": pl.Int64,
        "p_smooth": pl.Float64, "explained": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def scaling(found: list[Trajectory]) -> pl.DataFrame:
    """Return power laws of final values."""
    quantities = ("validation_loss", "neural_persistence np_mean", "rips H0.total", "rips H1.total")
    rows = [
        {"quantity": q, "n": len(found), "n_sizes": len(found), "factor": 5.0, "exponent": -0.1, "low": -0.2,
         "high": -0.05, "r_squared": 0.9, "offset": np.nan, "offset_exponent": np.nan,
         "rho": -1.0, "p_exact": 0.3, "min_p": 0.3}
        for q in quantities
    ]  # fmt: skip
    return pl.DataFrame(rows)


def references(found: list[Trajectory]) -> pl.DataFrame:
    """Return references of every layer: at random at first, far from random at last but for the heads."""
    rows = [
        (t.run, layer, role, statistic, ensemble, 0.3 + 0.02 * k, 0.01, 0.31, 0.6, 1.0, 1.0 if role == "head" else 30.0)
        for t in found
        for layer, role in t.roles.items()
        for statistic in ("np_mean", "H0.total")
        for k, ensemble in enumerate(ENSEMBLES)
    ]
    floats = dict.fromkeys(("mean", "sd", "first", "last", "z_first", "z_last"), pl.Float64)
    schema = {**dict.fromkeys(("run", "layer", "role", "statistic", "ensemble"), pl.String), **floats}
    return pl.DataFrame(rows, schema=schema, orient="row")


def diagrams(found: list[Trajectory]) -> Callable[[str, int, str], dict[str, dict[str, Diagram]]]:
    """Return a reader of diagrams that are one cloud, as large as the layer's weight norm."""
    rng = np.random.default_rng(0)
    deaths, births = rng.uniform(0.5, 1, 40), rng.uniform(0.6, 1, 15)
    h0 = np.column_stack([np.zeros(40), np.sort(deaths)])
    h1 = np.column_stack([births, births + rng.uniform(0.05, 0.3, 15)])
    last = {t.run: int(t.steps[-1]) for t in found}
    roles = {t.run: t.roles for t in found}

    def read(run: str, step: int, probe: str) -> dict[str, dict[str, Diagram]]:
        if probe != "rips":
            raise ToposcopeError(f"no probe {probe!r}")
        norm = float(norm_at(np.array([step / max(last[run], 1)]))[0])
        return {layer: {"H0": Diagram(h0 * norm, 0), "H1": Diagram(h1 * norm, 1)} for layer in roles[run]}

    return read


def published(found: list[Trajectory]) -> dict[str, Any]:
    """Return published numbers of these runs, and of one that is not here."""
    names = [t.run for t in found]
    values = {
        quantity: {run: -0.8 + 0.05 * (i % 16) for i, run in enumerate(names)} for quantity in ("np_mean", "H0.total")
    }
    elsewhere = {"steps": [0, 50, 100], "values": {"np_mean": [0.3, 0.5, 0.6], "H0.total": [70, 60, 45]}}
    return {
        "correlations": values,
        "intervals": {"H0.total": dict.fromkeys(names, (-0.95, -0.6))},
        "prediction_errors": {"loss_only": {"0.2": 0.1, "0.5": 0.08}, "combined": {"0.2": 0.15}},
        "traces": {"elsewhere": elsewhere},
    }


def material(n_runs: int = 5, n_checkpoints: int = 30) -> StudyData:
    """Return a study with data for every figure."""
    steps = np.arange(n_checkpoints) * 100
    found = [trajectory(f"run-{i}", i, steps) for i in range(n_runs)]
    log = pl.concat(
        pl.DataFrame({
            "run": t.run, "step": np.arange(1, steps[-1] + 1, 10), "loss": 3.0, "learning_rate": 1e-3,
            "validation_loss": None,
        }).with_columns(learning_rate=1e-3 * (1 - pl.col("step") / (steps[-1] + 1)))
        for t in found
    )  # fmt: skip
    runs = pl.DataFrame(
        [
            (t.run, "family", 1000 * 2 ** min(i, 40), "complete", int(steps[-1]), len(steps))
            for i, t in enumerate(found)
        ],
        schema=["run", "kind", "n_parameters", "status", "last_step", "n_checkpoints"], orient="row",
    )  # fmt: skip
    findings = pl.DataFrame(
        {"run": ["run-0"], "check": ["echo"], "severity": ["fault"], "steps": [[100]], "layer": [""], "message": ["x"]}
    )
    tables = all_tables(
        association=association(found),
        between_runs=between_runs(found),
        moved=move_table(found),
        layer_onsets=onset_table(found, [NP_MEAN, feature_named("rips H0.total")]),
        change_points=change_points(found),
        scaling=scaling(found),
        references=references(found),
    )
    return StudyData(
        trajectories=found,
        tables=tables,
        errors=pl.DataFrame(),
        frame=pl.DataFrame(schema=FRAME_SCHEMA),
        labels=pl.DataFrame({"probe": ["rips"], "options": ["{}"], "label": ["rips"]}),
        log=log,
        runs=runs,
        findings=findings,
        declaration=Declaration(name="made-up", published=published(found)),
        diagrams=diagrams(found),
    )
