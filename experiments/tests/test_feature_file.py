"""Files of published features: what is understood, under which names, and how mistakes are told."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.errors import ToposcopeError
from toposcope_experiments.published_study.feature_file import (
    MAX_FILE_BYTES,
    canonical_name,
    features_of_run,
    read_features,
)

ROWS = [{"step": 0, "np_mean": 0.5}, {"step": 10, "np_mean": 0.25}]


def written(folder: Path, content: Any, name: str = "features.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    """The one line a file is refused with; it begins with the file."""
    with pytest.raises(ToposcopeError) as caught:
        read_features(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("published", "ours"),
    [
        ("neural_persistence_mean", "np_mean"),
        ("neural_persistence_std", "np_mean_std"),
        ("neural_persistence_min", "np_mean_min"),
        ("np_mean", "np_mean"),
        ("np_max", "np_mean_max"),
        ("h0_total_persistence", "H0.total"),
        ("h0_total", "H0.total"),
        ("H0.total", "H0.total"),
        ("h0_avg_persistence", "H0.mean"),
        ("h1_mean_persistence", "H1.mean"),
        ("h0_num_features", "H0.count"),
        ("h1_n_features", "H1.count"),
        ("h0_max_persistence", "H0.max"),
        ("h1_std_persistence", "H1.std"),
        ("h1_persistence_entropy", "H1.entropy"),
        ("h0_n_significant", "H0.n_significant"),
        ("layer_0_np", "layer_0_np"),
        ("participation_ratio", "participation_ratio"),
        ("h0_colour", "h0_colour"),
        ("eigenspectrum_decay_alpha", "eigenspectrum_decay"),
        ("wasserstein_h1_from_prev", "wasserstein_h1_from_prev"),
        ("eigenvalue_ratio_1_10", "eigenvalue_ratio_1_10"),
    ],
)
def test_names(published: str, ours: str) -> None:
    assert canonical_name(published) == ours
    assert canonical_name(ours) == ours


def test_rows_by_run(tmp_path: Path) -> None:
    found = read_features(written(tmp_path, {"b": ROWS, "a": ROWS[:1]}))
    assert list(found) == ["b", "a"]
    assert found["b"].features == {0: {"np_mean": 0.5}, 10: {"np_mean": 0.25}}
    assert found["a"].features == {0: {"np_mean": 0.5}}


def test_rows_that_name_their_run(tmp_path: Path) -> None:
    rows = [{"step": 0, "model": f"owner/{name}", "h0_total": 1.0} for name in ("first", "second")]
    assert list(read_features(written(tmp_path, rows))) == ["first", "second"]
    rows = [{"step": 0, "config_name": "mine", "h0_total": 1.0}]
    assert list(read_features(written(tmp_path, rows))) == ["mine"]


def test_rows_without_a_name_are_of_the_file(tmp_path: Path) -> None:
    assert list(read_features(written(tmp_path, ROWS, "pythia-14m.json"))) == ["pythia-14m"]


def test_the_key_of_rows_stands_before_what_they_call_themselves(tmp_path: Path) -> None:
    assert list(read_features(written(tmp_path, {"a": [{**ROWS[0], "config_name": "b"}]}))) == ["a"]


def test_what_belongs_into_a_log_is_no_feature(tmp_path: Path) -> None:
    row = {"step": 3, "h0_total": 1.0, "loss": 2.5, "lr": 1e-3, "grad_norm": 0.5, "weight_norm_total": 7.0}
    (run,) = read_features(written(tmp_path, [{**row, "perplexity": math.exp(1.5)}])).values()
    assert run.features == {3: {"H0.total": 1.0}}
    assert run.log.steps.tolist() == [3]
    known = {name: values[0] for name, values in run.log.values.items() if not math.isnan(values[0])}
    assert known == {
        **{"loss": 2.5, "learning_rate": 1e-3, "grad_norm": 0.5, "weight_norm": 7.0},
        "validation_loss": pytest.approx(1.5),
    }


@pytest.mark.parametrize("order", [1, -1])
def test_a_validation_loss_stands_before_a_perplexity(tmp_path: Path, order: int) -> None:
    losses = dict([("val_loss", 1.25), ("perplexity", 100.0)][::order])
    (run,) = read_features(written(tmp_path, [{**ROWS[0], **losses}])).values()
    assert run.log.values["validation_loss"].tolist() == [1.25]


def test_what_was_measured_on_is_no_feature(tmp_path: Path) -> None:
    row = {"n_points": 200, "total_time_s": 1.5, "n_layers_analyzed": 5, "embedding_dim": 64, "checkpoint": "step0"}
    (run,) = read_features(written(tmp_path, [{**ROWS[0], **row, "n_params": 2936}])).values()
    assert (run.features, run.n_parameters) == ({0: {"np_mean": 0.5}}, 2936)


def test_what_is_not_defined_is_absent(tmp_path: Path) -> None:
    rows = [{"step": 0, "np_mean": math.nan, "h0_total": 1.0}, {"step": 5, "np_mean": None, "h0_total": math.nan}]
    (run,) = read_features(written(tmp_path, rows)).values()
    assert run.features == {0: {"H0.total": 1.0}}


def test_a_diverged_loss_stays_infinite(tmp_path: Path) -> None:
    (run,) = read_features(written(tmp_path, [{**ROWS[0], "loss": math.inf}])).values()
    assert run.log.values["loss"].tolist() == [math.inf]


numbers = st.floats(allow_nan=False, allow_infinity=False)
runs = st.dictionaries(
    st.text("abc-", min_size=1, max_size=4),
    st.dictionaries(
        st.integers(0, 2**53), st.dictionaries(st.sampled_from(["np_mean", "H0.total", "x"]), numbers, min_size=1)
    ).filter(bool),
    min_size=1,
)


@pytest.mark.slow
@given(runs)
def test_features_come_back_as_they_were_published(
    tmp_path_factory: pytest.TempPathFactory, published: dict[str, dict[int, dict[str, float]]]
) -> None:
    content = {run: [{"step": step, **values} for step, values in steps.items()] for run, steps in published.items()}
    found = read_features(written(tmp_path_factory.mktemp("features"), content))
    assert {run: dict(f.features) for run, f in found.items()} == published
    assert all(list(f.features) == sorted(f.features) for f in found.values())


def test_the_key_is_of_the_features_alone(tmp_path: Path) -> None:
    first, again, other = (
        next(iter(read_features(written(tmp_path, rows)).values())).key
        for rows in (ROWS, [{**row, "loss": 1.0} for row in reversed(ROWS)], [ROWS[0], {**ROWS[1], "np_mean": 0.2501}])
    )
    assert first == again != other


def test_a_run_is_found_by_its_name_or_in_a_file_without_names(tmp_path: Path) -> None:
    two = read_features(written(tmp_path, {"a": ROWS, "b": ROWS[:1]}))
    assert features_of_run(two, "b", tmp_path) is two["b"]
    (only,) = (unnamed := read_features(written(tmp_path, ROWS, "table.json"))).values()
    assert features_of_run(unnamed, "other", tmp_path) is only
    for named in ({"a": ROWS}, [{**row, "run": "a"} for row in ROWS]):
        with pytest.raises(ToposcopeError, match="no run 'zzz'; it has a; name the series like"):
            features_of_run(read_features(written(tmp_path, named)), "zzz", tmp_path)
    with pytest.raises(ToposcopeError, match="no run 'c'; it has a, b"):
        features_of_run(two, "c", tmp_path / "f.json")


ROW = ROWS[0]
BAD: dict[str, tuple[Any, list[str]]] = {
    "no JSON": ("{", ["not JSON"]),
    "not text": ('"\\ud800', ["not JSON"]),
    "too deep": ("[" * 100_000, ["not JSON"]),
    "a number": (3, ["list of rows", "a number"]),
    "nothing": ([], ["no rows"]),
    "no runs": ({}, ["no rows"]),
    "a run without rows": ({"a": {"step": 0}}, ["a: ", "list of rows", "an object"]),
    "a row that is none": ([ROW, 4], ["row 2", "an object with a step", "a number"]),
    "two runs of one name": ('{"a": [{"step": 0, "x": 1}], "a": [{"step": 0, "x": 1}]}', ["'a' twice"]),
    "two runs of one last part": ({"x/a": [ROW], "y/a": [ROW]}, ["two runs are called 'a'"]),
    "a name that leads elsewhere": ({"..": [ROW]}, ["'..' cannot be the name of a run"]),
    "half a character": ('{"\\ud800": [{"step": 0, "x": 1}]}', ["cannot be the name of a run"]),
    "an endless run": ({"a" * 1000: [ROW]}, ["cannot be the name of a run"]),
    "no step": ({"a": [ROW, {"np_mean": 1.0}]}, ["a: row 2", "no step"]),
    "a null step": ([{**ROW, "step": None}], ["row 1", "no step"]),
    "a step that is text": ([{**ROW, "step": "0"}], ["row 1: step", "text"]),
    "half a step": ([{**ROW, "step": 0.5}], ["row 1: step", "0.5", "whole"]),
    "a step below 0": ([{**ROW, "step": -1}], ["row 1: step", "-1", "from 0"]),
    "an endless step": ([{**ROW, "step": math.inf}], ["row 1: step", "inf"]),
    "a true step": ([{**ROW, "step": True}], ["row 1: step", "true or false"]),
    "a huge step": ([{**ROW, "step": 10**400}], ["row 1: step", "too large"]),
    "a step twice": ([ROW, {**ROW, "step": 0.0}], ["row 2", "step 0 occurs twice"]),
    "text": ([{**ROW, "h0_total": "7"}], ["row 1: h0_total", "a number", "text"]),
    "a list": ([{**ROW, "h0_total": [1]}], ["row 1: h0_total", "a list"]),
    "a boolean": ([{**ROW, "h0_total": False}], ["row 1: h0_total", "true or false"]),
    "infinity": ([{**ROW, "h0_total": math.inf}], ["row 1: h0_total", "infinite"]),
    "a huge number": ([{**ROW, "h0_total": 10**400}], ["row 1: h0_total", "too large"]),
    "two of one meaning": ([{**ROW, "neural_persistence_mean": 1.0}], ["np_mean", "occurs twice"]),
    "a line break in a name": ([{**ROW, "a\nb": 1.0}], ["row 1", "name of a feature"]),
    "an endless name": ([{**ROW, "a" * 1000: 1.0}], ["row 1", "name of a feature"]),
    "no feature": ([{"step": 0, "loss": 1.0}], ["no feature"]),
    "a perplexity": ([{**ROW, "perplexity": 0}], ["row 1: perplexity", "more than 0"]),
    "a model that is no name": ([{**ROW, "model": 3}], ["row 1: model", "text"]),
    "two sizes": ([{**ROW, "n_params": 3}, {**ROWS[1], "n_params": 4}], ["3 and 4 parameters"]),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_what_makes_no_sense_is_told_in_one_line(tmp_path: Path, content: Any, words: list[str]) -> None:
    message = refusal(written(tmp_path, content))
    assert [word for word in words if word not in message] == []


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "absent.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\x80\x04\x95")
    assert "not JSON" in refusal(binary)


def test_a_file_too_large_for_a_table_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert "MB" in refusal(path)
