"""The made-up study of the core's tests, with the tables of the experiments."""

from collections.abc import Sequence

import made_up_material
import made_up_states
import polars as pl
from made_up_states import LABEL, STEPS, TURNS
from section_tools import with_tables

from toposcope.analysis.trajectory import Trajectory
from toposcope.report.study_data import StudyData
from toposcope_experiments.published_study.claims import SCHEMA as CLAIMS
from toposcope_experiments.published_study.predictions import SCHEMA as PREDICTIONS
from toposcope_experiments.representation_phases.phases import SCHEMA as PHASES

FORECASTERS = ("last", "paper_loss_only", "paper_tda_only", "paper_combined", "paper_combined_without_topology")


def material(n_runs: int = 5, n_checkpoints: int = 30) -> StudyData:
    """Return a study with data for every figure of the experiments too."""
    of = made_up_material.material(n_runs, n_checkpoints)
    tables = {
        "representation_phases": pl.DataFrame(schema=PHASES),
        "claims": pl.DataFrame(schema=CLAIMS),
        "predictions": predictions(of.trajectories),
    }
    return with_tables(of, tables)


def with_states(of: StudyData) -> StudyData:
    """Return a study of hidden states of the runs of a made-up study, with their phases."""
    found = made_up_states.with_states(of)
    return with_tables(found, {"representation_phases": phases(found.trajectories)})


def predictions(found: list[Trajectory]) -> pl.DataFrame:
    """Return errors by forecaster: the blend with topology is better at 20%, worse later."""
    rows = []
    for t in found:
        for protocol in ("published", "exact"):
            for fraction in (0.2, 0.3, 0.5):
                for k, name in enumerate(FORECASTERS):
                    error = 0.3 - 0.3 * fraction + 0.01 * k
                    error -= 0.1 * (name == "paper_combined" and fraction == 0.2)
                    error -= 0.1 * (name == "paper_combined_without_topology" and fraction > 0.2)
                    rows.append((t.run, protocol, fraction, name, 2 + error, 2.0, error, False))
    return pl.DataFrame(rows, schema=PREDICTIONS, orient="row")


def phases(found: Sequence[Trajectory]) -> pl.DataFrame:
    """Return three phases in every run but the last, which has one turn; H0 turns there in every run, H1 never."""
    rows = []
    for t in found:
        turns = TURNS[:1] if t is found[-1] else TURNS
        at = {f"turn_{i}": int(STEPS[k]) for i, k in enumerate(turns, start=1)}
        at |= {f"turn_{i}_low": int(STEPS[k - 1]) for i, k in enumerate(turns, start=1)}
        at |= {f"turn_{i}_high": int(STEPS[k + 1]) for i, k in enumerate(turns, start=1)}
        names = ["warm-up", "entropy-seeking", "compression-seeking"][: len(turns) + 1]
        directions = " ".join(["down", "up", "down"][: len(turns) + 1])
        shared = {"run": t.run, "n": len(t.steps), "n_turns": len(turns), "directions": directions}
        follows = "both" if len(turns) == 2 else "first"
        rows += [
            {**shared, **at, "feature": f"{LABEL} rankme", "kind": "spectral", "phases": ", ".join(names)},
            {**shared, **at, "feature": f"{LABEL} H0.total", "kind": "diagram", "phases": "", "follows": follows,
             "chance": 0.01},
            {**shared, "n_turns": 0, "directions": "down", "feature": f"{LABEL} H1.entropy", "kind": "diagram",
             "phases": "", "follows": "none", "chance": 1.0},
        ]  # fmt: skip
    return pl.DataFrame(rows, schema=PHASES)
