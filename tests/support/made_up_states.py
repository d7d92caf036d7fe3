"""A made-up study of hidden states for the figures: trajectories whose answers are known, nothing measured."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
from named_features import by_feature, by_group
from section_tools import with_tables

from toposcope.analysis.trajectory import Trajectory
from toposcope.homology import Diagram
from toposcope.report.study_data import StudyData

STATES = "hidden_states"
LABEL = f"{STATES}:layers=all"
STEPS = np.array([0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000])
LAYERS = ("hidden.00", "hidden.01", "hidden.02", "network")
STATISTICS = ("H0.total", "H1.total", "H1.entropy")
SPECTRA = ("rankme", "effective_rank", "top_eigenvalue", "anisotropy", "two_nn")
TURNS = (3, 7)
"""Places of the two turns of the ranks."""


def fall_rise_fall(n: int) -> np.ndarray:
    """Return 10 down to 4, up to 8, down to 6, as far as the checkpoints go."""
    return np.interp(np.arange(n), [0, *TURNS, len(STEPS) - 1], [10.0, 4.0, 8.0, 6.0])


def of_states(t: Trajectory, place: int) -> Trajectory:
    """Return a run with hidden states beside its weights: ranks fall, rise and fall, H0 goes along."""
    n = min(len(t.steps), len(STEPS))
    steps, rank = STEPS[:n], fall_rise_fall(n)
    features = {
        f"{LABEL} rankme": 2 * rank + place,
        f"{LABEL} effective_rank": rank,
        f"{LABEL} top_eigenvalue": np.geomspace(1, 1000, n),
        f"{LABEL} anisotropy": np.linspace(0.1, 0.5, n),
        f"{LABEL} two_nn": np.linspace(9, 3, n),
        f"{LABEL} rms_radius": np.linspace(1, 2, n),
        f"{LABEL} H0.total": 100 * rank,
        f"{LABEL} H1.total": 10 * rank,
        f"{LABEL} H1.entropy": np.linspace(4, 2, n),
    }
    hidden = {
        layer: {name: values * (k + 1) / 4 for name, values in features.items()} for k, layer in enumerate(LAYERS[:-1])
    }
    embedded = {
        f"embedding.{end}": {"embeddings H0.total": np.linspace(10, 5 * k, n), "embeddings rankme": np.full(n, 7.0)}
        for k, end in enumerate(("input", "output"), start=1)
    }
    roles = {**dict.fromkeys(hidden, "hidden"), **dict.fromkeys(embedded, "embedding")}
    return Trajectory(
        t.run,
        steps,
        by_feature(features),
        {"text_loss": np.linspace(5, 3, n)},
        {"step": steps.astype(float)},
        layers=by_group({**hidden, **embedded}),
        roles=roles,
        noise=by_feature({f"{LABEL} H0.total": np.full(n, 20.0)}),
        twins=by_group({"network": {f"{LABEL} H0.total": 100 * rank / np.linspace(1, 2, n)}}),
        clouds={LABEL: LABEL},
    )


def comparisons(found: Sequence[Trajectory]) -> pl.DataFrame:
    """Return H0 the stronger and H1 the weaker by blocks, H1 entropy undecided though Fisher's z decides."""
    rows = []
    for t in found:
        for statistic, difference, half in zip(STATISTICS, (0.4, -0.4, 0.1), (0.2, 0.2, 0.3), strict=True):
            for other in SPECTRA:
                place = (t.run, "text_loss", f"{LABEL} {statistic}", f"{LABEL} {other}")
                rows += [
                    (*place, "Williams", difference, None, None, 0.2),
                    (*place, "block bootstrap", difference, difference - half, difference + half, 0.1),
                    (*place, "Fisher z", difference, None, None, 0.01),
                ]
            rows.append((t.run, "text_loss", place[2], "step", "Williams", -0.1, None, None, 0.5))
    floats = dict.fromkeys(("difference", "low", "high", "p"), pl.Float64)
    schema = {**dict.fromkeys(("run", "target", "feature", "other", "test"), pl.String), **floats}
    return pl.DataFrame(rows, schema=schema, orient="row")


def diagrams(before: Callable[..., dict[str, dict[str, Diagram]]]) -> Callable[..., dict[str, dict[str, Diagram]]]:
    """Return a reader of a cloud that doubles by the last checkpoint, beside the diagrams of weights."""
    deaths = np.sort(np.random.default_rng(1).uniform(0.5, 1, 30))

    def read(run: str, step: int, probe: str) -> dict[str, dict[str, Diagram]]:
        if probe != LABEL:
            return before(run, step, probe)
        scale = 1 + STEPS.tolist().index(step) / (len(STEPS) - 1)
        h0, h1 = np.column_stack([0 * deaths, deaths]), np.column_stack([deaths, deaths + 0.2])
        return {"network": {"H0": Diagram(h0 * scale, 0), "H1": Diagram(h1 * scale, 1)}}

    return read


def with_states(of: StudyData) -> StudyData:
    """Return a study of hidden states of the runs of a made-up study."""
    found = [of_states(t, i) for i, t in enumerate(of.trajectories)]
    tables = {"association": association(found), "comparisons": comparisons(found)}
    labels = pl.DataFrame({"probe": ["hidden_states"], "options": ['{"layers":"all"}'], "label": [LABEL]})
    frame = of.frame.clear()
    made = dataclasses.replace(of, trajectories=found, frame=frame, labels=labels, diagrams=diagrams(of.diagrams))
    return with_tables(made, tables)


def association(found: Sequence[Trajectory]) -> pl.DataFrame:
    """Return correlations of which the step leaves something, and the top eigenvalue nothing."""
    rows = [
        {"run": t.run, "group": "network", "target": "text_loss", "feature": str(feature), "kind": feature.kind,
         "n": len(t.steps), "rho": 0.8,
         "rho_step": -0.9, "rho_learning_rate": -0.9, "rho_weight_norm": float("nan"),
         "rho_given_step": 0.5, "rho_given_all": 0.4, "verdict": "trend only",
         "untested": "", "p_given_all_adjusted": 1.0, "rho_with_step": 0.9, "block_low": 0.2, "block_high": 0.95,
         "rho_top_eigenvalue": -0.95,
         "rho_given_scale": float("nan") if feature.statistic == "top_eigenvalue" else 0.05}
        for t in found
        for feature in t.features
    ]  # fmt: skip
    return pl.DataFrame(rows)
