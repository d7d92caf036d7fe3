"""Where two runs part, in the report: by network, group and layer; between two studies and within one."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from made_up_material import material

from toposcope.analysis.first_difference import LEVEL, threshold
from toposcope.analysis.trajectories import Trajectory
from toposcope.report.comparison import overlaid_charts, quantities, trajectory_pairs
from toposcope.report.document import Picture
from toposcope.report.sections.first_differences import (
    SECTION,
    TABLE,
    difference_blocks,
    earliest,
    first_differences_frame,
    pairs_of_equal_shape,
    sentence_of,
)
from toposcope.report.study_data import StudyData

NASTY = "<script>|`x`"


def noisy(run: Trajectory, seed: int, layer: str = "", start: int = 0) -> Trajectory:
    """Return the run with noise of 0.001 in every series; one layer's is 0.1 higher from a checkpoint on."""
    generator = np.random.default_rng(seed)

    def with_noise(values: np.ndarray) -> np.ndarray:
        return np.asarray(values + generator.normal(0, 1e-3, len(values)))

    layers = {name: {f: with_noise(v) for f, v in features.items()} for name, features in run.layers.items()}
    for values in layers.get(layer, {}).values():
        values[start:] += 0.1
    return dataclasses.replace(
        run,
        targets={name: with_noise(values) for name, values in run.targets.items()},
        features={feature: with_noise(values) for feature, values in run.features.items()},
        groups={name: {f: with_noise(v) for f, v in features.items()} for name, features in run.groups.items()},
        layers=layers,
    )


@pytest.fixture(scope="module")
def study() -> StudyData:
    return material(2, 40)


def test_the_layer_and_the_step_are_found(study: StudyData) -> None:
    run = study.trajectories[1]
    layer = list(run.layers)[2]
    a, b = noisy(run, 1), noisy(run, 2, layer, start=17)
    frame = first_differences_frame([(a, b)])
    assert set(frame["level"]) == {"network", "group", "layer"}
    beyond = frame.drop_nulls("step")
    assert set(beyond["part"]) == {layer}
    assert all(abs(step - run.steps[17]) <= run.steps[1] for step in beyond["step"])
    assert (beyond["units"] > beyond["threshold"]).all()
    first = earliest(frame).filter(level="layer")
    assert set(first["part"]) == {layer}
    sentence = sentence_of(frame, ("x", NASTY))
    assert f"of {layer} differs first" in sentence
    assert NASTY in sentence
    assert difference_blocks(frame)


def test_copies_and_noise_are_called_so(study: StudyData) -> None:
    run = study.trajectories[0]
    assert sentence_of(first_differences_frame([(run, run)])).endswith(
        ": validation loss, mean neural persistence and H0 total are the same at every common checkpoint."
    )
    alike = first_differences_frame([(noisy(run, 1), noisy(run, 2))])
    assert sentence_of(alike).endswith("no difference beyond the noise.")
    other = dataclasses.replace(run, targets={k: v + 3 for k, v in run.targets.items()})
    assert "the first common checkpoint" in sentence_of(first_differences_frame([(noisy(run, 1), noisy(other, 2))]))


def test_other_layers_and_few_checkpoints(study: StudyData) -> None:
    small, large = study.trajectories
    assert set(first_differences_frame([(small, large)])["level"]) == {"network"}
    few = material(1, 5).trajectories[0]
    assert first_differences_frame([(few, few)]).is_empty()
    assert difference_blocks(first_differences_frame([])) == []


def test_runs_of_equal_shape_in_one_study(study: StudyData) -> None:
    assert pairs_of_equal_shape(study.trajectories, {}) == []
    run = study.trajectories[0]
    twins = [dataclasses.replace(noisy(run, i), run=f"{NASTY}{i}") for i in range(30)]
    assert len(pairs_of_equal_shape(twins, {})) == 29
    assert (
        len(pairs_of_equal_shape(twins, {twins[0].run: 1, **{t.run: 2 for t in twins[1:]}})) == 28
    )  # of another width
    frame = first_differences_frame([(twins[0], twins[1])])
    of_twins = dataclasses.replace(study, trajectories=twins[:2], tables={TABLE: frame})
    assert SECTION.finding(of_twins) == "0 of 1 pair of runs of one shape differ beyond the noise"
    assert SECTION.tables[TABLE](study).is_empty()
    many = dataclasses.replace(study, trajectories=twins)
    many = dataclasses.replace(many, tables={TABLE: SECTION.tables[TABLE](many)})
    assert many.tables[TABLE]["run_b"].n_unique() == 12
    text = str(list(SECTION.blocks(many, [])))
    assert "And 6 more pairs in the table." in text
    assert "the first 12 of 29 pairs of runs of one shape" in text
    assert "pairs of runs of one shape" not in str(list(SECTION.blocks(of_twins, [])))


def test_the_levels_share_the_probability_of_a_false_alarm(study: StudyData) -> None:
    small, large = study.trajectories
    network = first_differences_frame([(small, large)])
    assert set(network["threshold"]) == {threshold(40, LEVEL / len(network))}
    every = first_differences_frame([(small, noisy(small, 1))])
    for _, of_level in every.group_by("level"):
        assert set(of_level["threshold"]) == {threshold(40, LEVEL / 3 / len(of_level))}


def test_a_sentence_calls_noise_a_difference_in_at_most_5_percent(study: StudyData) -> None:
    """Of 100 pairs at the true rate of 5% more than 11 alarms have a probability below 1%."""
    run = study.trajectories[1]
    frames = [first_differences_frame([(noisy(run, 2 * i), noisy(run, 2 * i + 1))]) for i in range(100)]
    assert sum("differs first" in sentence_of(frame) for frame in frames) <= 11


def test_pairs_are_of_one_name_else_of_one_size(study: StudyData) -> None:
    assert [(a.run, b.run) for a, b in trajectory_pairs(study, study)] == [(t.run, t.run) for t in study.trajectories]
    renamed = [dataclasses.replace(t, run=f"other {t.run}") for t in study.trajectories]
    sizes = study.runs.with_columns(run="other " + pl.col("run"))
    other = dataclasses.replace(study, trajectories=renamed, runs=sizes)
    assert [(a.run, b.run) for a, b in trajectory_pairs(study, other)] == [
        (t.run, f"other {t.run}") for t in study.trajectories
    ]


def test_both_studies_in_one_chart(study: StudyData) -> None:
    pairs = [(t, noisy(t, i)) for i, t in enumerate(study.trajectories)]
    charts = overlaid_charts(("x", NASTY), quantities(pairs), first_differences_frame(pairs))
    assert charts[0].name == "both-loss"
    assert {"both-mean-neural-persistence", "both-h0-total"} <= {chart.name for chart in charts}
    for chart in charts:
        rows = max((pl.DataFrame(rows) for rows in chart.spec()["datasets"].values()), key=len)
        assert set(rows["series"]) == {"x", NASTY}
        assert set(rows["run"]) == {t.run for t in study.trajectories}
        assert b"<script>" not in chart.render("svg")
        assert Picture(chart).name == chart.name
    run = study.trajectories[0]
    shifted = dataclasses.replace(run, targets={name: values + 3 for name, values in run.targets.items()})
    one = [(noisy(run, 1), noisy(shifted, 2))]
    loss, *_ = overlaid_charts(("x", "y"), quantities(one), first_differences_frame(one))
    assert loss.title == "Validation loss first differs beyond the noise at step 0"
    assert charts[0].title == "Validation loss differs beyond the noise in none of 2 pairs of runs"
    assert overlaid_charts(("x", "y"), quantities([]), first_differences_frame([])) == []
