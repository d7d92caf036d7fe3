"""A declared population: what runs it becomes, and what stays when it is changed."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun
from toposcope.study import Declaration, load_declaration
from toposcope.study.declared_runs import Population, Range

SIZES = ["tiny-3k", "small-7k"]


def population(vary: dict[str, Any], **fields: Any) -> Population:
    return msgspec.convert({"vary": {"size": SIZES, **vary}, **fields}, Population)


def runs_of(vary: dict[str, Any], **fields: Any) -> list[FamilyRun]:
    return Declaration(name="p", population=population(vary, **fields)).resolved_runs()


def load(folder: Path, content: dict[str, Any]) -> Declaration:
    path = folder / "declared.toml"
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    return load_declaration(path)


rates = st.lists(st.floats(1e-5, 1), min_size=1, max_size=4, unique=True)
decays = st.lists(st.floats(0, 1), min_size=1, max_size=4, unique=True)
DESIGNS = ["random", "latin-hypercube"]


@given(rates, decays)
def test_a_grid_has_every_combination_once(learning_rates: list[float], weight_decays: list[float]) -> None:
    runs = runs_of({"learning_rate": learning_rates, "weight_decay": weight_decays}, design="grid")
    found = {(run.name.rpartition("-")[0], run.training.learning_rate, run.training.weight_decay) for run in runs}
    assert len(runs) == len(found) == 2 * len(learning_rates) * len(weight_decays)
    assert len({run.name for run in runs}) == len(runs)
    assert len({run.training.seed for run in runs}) == len(runs)


@given(st.floats(1e-6, 1e3), st.floats(1.001, 1e4), st.integers(1, 40), st.integers(0, 9), st.sampled_from(DESIGNS))
def test_values_lie_in_their_range(low: float, factor: float, count: int, seed: int, design: str) -> None:
    high = low * factor
    vary = {"learning_rate": {"low": low, "high": high, "log": True}, "batch_size": {"low": 2, "high": 5}}
    runs = runs_of(vary, design=design, runs=count, seed=seed)
    assert len(runs) == count
    assert all(low <= run.training.learning_rate <= high for run in runs)
    assert {run.training.batch_size for run in runs} <= {2, 3, 4, 5}
    assert len({run.name for run in runs}) == count


@given(st.integers(2, 60), st.integers(0, 9))
def test_a_latin_hypercube_has_one_value_in_each_part(count: int, seed: int) -> None:
    vary = {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}, "dropout": [0.0, 0.1, 0.2]}
    runs = runs_of(vary, runs=count, seed=seed)
    parts = [math.log(run.training.learning_rate / 1e-3) / math.log(100) * count for run in runs]
    # The written digits may put a value at the very edge of its part.
    assert sorted(min(count - 1, int(part + 1e-9)) for part in parts) == list(range(count))
    used = [sum(run.training.dropout == value for run in runs) for value in (0.0, 0.1, 0.2)]
    assert max(used) - min(used) <= 1


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 9))
def test_a_longer_random_design_begins_with_the_same_runs(count: int, more: int, seed: int) -> None:
    vary = {"learning_rate": {"low": 1e-3, "high": 1e-1}, "schedule": ["cosine", "linear"]}
    longer = runs_of(vary, design="random", runs=count + more, seed=seed)
    assert runs_of(vary, design="random", runs=count, seed=seed) == longer[:count]


@pytest.mark.parametrize("design", DESIGNS)
def test_one_more_varied_field_changes_no_other(design: str) -> None:
    vary = {"learning_rate": {"low": 1e-3, "high": 1e-1}}
    before = runs_of(vary, design=design, runs=12)
    after = runs_of({"initial_scale": {"low": 0.5, "high": 2}, **vary}, design=design, runs=12)
    reset = [msgspec.structs.replace(run, training=_without_scale(run)) for run in after]
    assert reset == before


def _without_scale(run: FamilyRun) -> Any:
    return msgspec.structs.replace(run.training, initial_scale=1.0)


def test_whole_numbers_are_equally_likely_up_to_the_last() -> None:
    runs = runs_of({"batch_size": {"low": 1, "high": 4}}, runs=400)
    assert [sum(run.training.batch_size == n for run in runs) for n in (1, 2, 3, 4)] == [100] * 4


@given(st.floats(0, 1), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_a_range_keeps_to_its_ends(share: float, low: float, width: float) -> None:
    assert low <= Range(low=low, high=low + width).at(share, whole=False) <= low + width


def test_listed_seeds_are_used(tmp_path: Path) -> None:
    assert {run.training.seed for run in runs_of({"seed": [3, 4]}, runs=10)} == {3, 4}


def test_it_survives_being_written_out(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text")
    content = {
        "name": "p",
        "runs": [{"size": "tiny-3k", "corpus": "text.txt"}],
        "population": {
            "runs": 7,
            "vary": {
                "size": ["tiny-3k", {"hidden": 8, "layers": 2, "heads": 1}],
                "corpus": ["python-docs", "python-source", {"source": "text.txt", "validation_fraction": 0.2}],
                "learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
                "checkpoint_fractions": [[0.5], [0.25, 0.75]],
            },
        },
    }
    declaration = load(tmp_path, content)
    again = tmp_path / "again"
    again.mkdir()
    (again / "study.toml").write_text(declaration.to_toml())
    assert load_declaration(again / "study.toml") == declaration
    assert load_declaration(again / "study.toml").resolved_runs() == declaration.resolved_runs()
    corpora = {run.corpus for run in declaration.resolved_runs()}
    assert Corpus(source=str(tmp_path / "text.txt"), validation_fraction=0.2) in corpora
    assert declaration.resolved_runs()[0].corpus == Corpus(source=str(tmp_path / "text.txt"))
    assert {run.name.rpartition("-")[0] for run in declaration.resolved_runs()[1:]} == {
        "tiny-3k",
        "hidden-8-layers-2",
    }


@pytest.mark.parametrize(
    ("vary", "fields", "words"),
    [
        ({"learning_rat": [1e-3]}, {}, "did you mean 'learning_rate'?"),
        ({"schedule": ["cosin"]}, {}, "population.vary.schedule is 'cosin'; did you mean 'cosine'?"),
        ({"learning_rate": {"low": 1, "hihg": 2}}, {}, "did you mean 'high'?"),
        ({"learning_rate": {"low": 2, "high": 1}}, {}, "population.vary.learning_rate: low is 2.0"),
        ({"learning_rate": {"low": 0, "high": 1, "log": True}}, {}, "must begin above 0"),
        ({"learning_rate": []}, {}, "vary.learning_rate is empty"),
        ({"learning_rate": [1e-3, 1e-3]}, {}, "vary.learning_rate holds 0.001 twice"),
        ({"learning_rate": [-1.0]}, {}, "-0001: learning_rate is -1.0"),
        ({"learning_rate": 1e-3}, {}, "population.vary.learning_rate is float; it must be a table or a list"),
        ({"batch_size": {"low": 1.5, "high": 4}}, {}, "vary.batch_size is a whole number"),
        ({"schedule": {"low": 1, "high": 4}}, {}, "population.vary.schedule is a table"),
        ({"corpus": [{"sauce": "x"}]}, {}, "did you mean 'source'?"),
        ({}, {"runs": 0}, "runs is 0; a latin-hypercube design needs how many"),
        ({}, {"runs": 10**9}, "at most 100000"),
        ({}, {"design": "gird"}, "population.design is 'gird'; did you mean 'grid'?"),
        ({}, {"design": "grid"}, "leave out runs"),
        ({"dropout": {"low": 0, "high": 1}}, {"design": "grid"}, "vary.dropout is a range; list its values"),
        ({"seed": list(range(99_999))}, {"design": "grid", "runs": 0}, "the grid has 199998 combinations"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, vary: dict[str, Any], fields: dict[str, Any], words: str) -> None:
    content = {"name": "p", "population": {"runs": 2, **fields, "vary": {"size": SIZES, **vary}}}
    with pytest.raises(ToposcopeError) as caught:
        load(tmp_path, content).resolved_runs()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_declared_run_of_the_same_name_is_refused(tmp_path: Path) -> None:
    runs = [{"size": "tiny-3k", "name": "tiny-3k-0001"}]
    content = {"name": "p", "runs": runs, "population": {"runs": 1, "vary": {"size": ["tiny-3k"]}}}
    with pytest.raises(ToposcopeError, match="2 runs or series are called 'tiny-3k-0001'"):
        load(tmp_path, content)
