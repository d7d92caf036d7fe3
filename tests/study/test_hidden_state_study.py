"""Studies whose probes read a text with the models: what depends on what, and what is measured again."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
import torch
from diagram_damage import change_diagrams, deleted, diagram_source
from safetensors.torch import load_file, save_file
from small_runs import small_corpus, some_text
from small_studies import TRAINING, assert_same_study, frame, measurement_ids

from toposcope.family import ModelSize, TrainingOptions
from toposcope.homology import bottleneck, wasserstein
from toposcope.models.texts import Text
from toposcope.study import Declaration, Study, run_study
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.declared_runs import DeclaredRun
from toposcope.study.diagrams import Source, read_diagrams

STATES: dict[str, Any] = {
    "name": "hidden_states",
    "layers": "all",
    "texts": 4,
    "length": 12,
    "keep": 20,
    "scales": [0.5],
}
TEXT_PROBES: list[dict[str, Any]] = [
    STATES,
    {"name": "language_modelling"},
    {"name": "distances", "of": "hidden_states"},
]
OTHERS: list[dict[str, Any]] = [{"name": "embeddings"}, {"name": "controls"}]
READS_TEXT = {"hidden_states", "language_modelling", "distances"}


def write_text(folder: Path, seed: int = 1) -> Text:
    path = folder / "read.txt"
    path.write_text(some_text(seed=seed)[:2000], encoding="utf-8")
    return Text(source=str(path))


def declared(folder: Path, probes: list[dict[str, Any]] | None = None, **fields: Any) -> Declaration:
    """Two sizes, trained for a few steps, checkpoints at 0, 10, 20 and 30."""
    sizes = {
        "one": ModelSize(hidden=8, layers=1, heads=2, context=16),
        "two": ModelSize(hidden=12, layers=2, heads=2, context=16),
    }
    return Declaration(
        name="states",
        corpus=small_corpus(folder),
        text=fields.pop("text", None) or write_text(folder),
        training=TrainingOptions(**TRAINING),
        runs=[DeclaredRun(size=size, name=name) for name, size in sizes.items()],
        probes=[*TEXT_PROBES, *OTHERS] if probes is None else probes,
        **fields,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """The study, by one worker."""
    assert run_study(declared(folder), folder / "study", workers=1) == {}
    return folder / "study"


def kept(directory: Path, run: str, step: int) -> Source:
    return diagram_source(directory, f"{run}/step_{step:06d}/hidden_states-")


def statistics_of(directory: Path, probe: str, run: str, step: int, layer: str) -> dict[str, float]:
    rows = frame(directory).filter(probe=probe, run=run, step=step, layer=layer)
    return dict(rows.select("statistic", "value").iter_rows())


def changed_probes(before: dict[tuple[Any, ...], int], after: dict[tuple[Any, ...], int]) -> set[str]:
    """Names of probes of which a row was measured again."""
    return {unit[3] for unit, number in after.items() if before.get(unit) != number}


def test_what_it_holds(finished: Path) -> None:
    told = frame(finished)
    layers = {run: sorted(set(told.filter(run=run, probe="hidden_states")["layer"])) for run in ("one", "two")}
    assert layers == {"one": ["hidden.00", "network"], "two": ["hidden.00", "hidden.01", "network"]}
    assert set(told.filter(probe="hidden_states", layer="network")["step"]) == {0, 10, 20, 30}
    assert set(told.filter(probe="embeddings")["layer"]) == {"embedding.input", "embedding.output"}
    assert set(told.filter(probe="distances")["step"]) == {10, 20, 30}
    assert set(told.filter(probe="distances", run="two")["layer"]) == {"hidden.00", "hidden.01", "network"}
    losses = told.filter(run="two", probe="language_modelling", statistic="loss").sort("step")["value"]
    assert losses[3] < losses[0]


@pytest.mark.slow
def test_any_number_of_workers(finished: Path, folder: Path) -> None:
    assert run_study(declared(folder), folder / "pool", workers=2) == {}
    assert_same_study(finished, folder / "pool")


def test_a_rerun_measures_nothing(finished: Path, folder: Path) -> None:
    before = measurement_ids(finished)
    assert run_study(declared(folder), finished, workers=1) == {}
    assert measurement_ids(finished) == before


def test_distances_are_those_of_the_stored_diagrams(finished: Path) -> None:
    before, now = (read_diagrams(kept(finished, "two", step)) for step in (10, 20))
    for layer in ("hidden.00", "hidden.01", "network"):
        statistics = statistics_of(finished, "distances", "two", 20, layer)
        expected: dict[str, float] = {}
        for name in ("H0", "H1"):
            a, b = before[layer][name], now[layer][name]
            expected |= {f"{name}.wasserstein_{k}": wasserstein(a, b, order=k) for k in (1, 2)}
            expected[f"{name}.bottleneck"] = bottleneck(a, b)
        assert statistics == pytest.approx(expected, rel=1e-12)


# What depends on what


@pytest.fixture
def own(folder: Path, finished: Path, tmp_path: Path) -> Path:
    """A copy of the study whose rows may change."""
    shutil.copytree(finished, tmp_path / "own")
    return tmp_path / "own"


def test_another_text_is_read_by_those_that_read(folder: Path, own: Path, tmp_path: Path) -> None:
    before, values = measurement_ids(own), frame(own)
    other = declared(folder, text=write_text(tmp_path, seed=5))
    assert run_study(other, own, workers=1) == {}
    after = measurement_ids(own)
    assert changed_probes(before, after) == READS_TEXT
    assert not {unit for unit in after if unit[3] in READS_TEXT and before.get(unit) == after[unit]}
    assert frame(own).filter(probe="embeddings").equals(values.filter(probe="embeddings"))
    # Back again: the first text's numbers, to the last bit.
    assert run_study(declared(folder), own, workers=1) == {}
    assert frame(own).equals(values)


def test_other_options_of_what_is_kept_are_compared_anew(folder: Path, own: Path) -> None:
    before = measurement_ids(own)
    probes = [{**STATES, "keep": 10}, *TEXT_PROBES[1:], *OTHERS]
    assert run_study(declared(folder, probes), own, workers=1) == {}
    assert changed_probes(before, measurement_ids(own)) == {"hidden_states", "distances"}


def test_a_text_that_is_gone_is_kept(folder: Path, own: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path, seed=1)
    assert run_study(declared(folder, text=text), own, workers=1) == {}
    before = measurement_ids(own)
    Path(text.source).unlink()
    # New rows too are of what was kept.
    probes = [*TEXT_PROBES, *OTHERS, {"name": "hidden_states", "texts": 3, "length": 8}]
    assert run_study(declared(folder, probes, text=text), own, workers=1) == {}
    assert before.items() <= measurement_ids(own).items()
    # It is not taken for another.
    errors = run_study(declared(folder, probes, text=Text(source=str(tmp_path / "typo.txt"))), own, workers=1)
    assert {unit.run for unit in errors} == {"one", "two"}
    assert all("typo.txt" in message for message in errors.values())


def test_a_text_that_never_was(folder: Path, tmp_path: Path) -> None:
    declaration = declared(folder, text=Text(source=str(tmp_path / "none.txt")))
    errors = run_study(declaration, tmp_path / "study", workers=1)
    assert sorted((unit.run, unit.probe) for unit in errors) == [("one", "text"), ("two", "text")]
    assert all("none.txt" in message and len(message.splitlines()) == 1 for message in errors.values())
    assert set(frame(tmp_path / "study")["probe"]) == {"controls", "embeddings"}
    # There, the others are not measured again.
    before = measurement_ids(tmp_path / "study")
    write_text(tmp_path)
    (tmp_path / "read.txt").rename(tmp_path / "none.txt")
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    assert changed_probes(before, measurement_ids(tmp_path / "study")) == READS_TEXT


def test_a_run_without_its_own_text_reads_what_it_was_not_trained_on(folder: Path, tmp_path: Path) -> None:
    declaration = declared(folder, [STATES], text=Text())
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    corpus = Path(declaration.corpus.source).read_text()
    assert corpus.endswith((tmp_path / "study/text.txt").read_text())


def test_kept_states_that_are_gone_are_measured_again(folder: Path, own: Path) -> None:
    values = frame(own)
    change_diagrams(own, "two/step_000020/hidden_states-", deleted)
    before = measurement_ids(own)
    assert run_study(declared(folder), own, workers=1) == {}
    after = measurement_ids(own)
    assert {unit[:2] for unit in after if before.get(unit) != after[unit]} == {("two", 20)}
    assert frame(own).equals(values)


@pytest.mark.slow
def test_a_checkpoint_that_fails_is_compared_when_it_is_mended(folder: Path, tmp_path: Path) -> None:
    """A row lacks what could not be measured; when that is there, the row is made anew."""
    directory = tmp_path / "study"
    declaration = declared(folder)
    whole = run_study(declaration, directory, workers=1)
    assert whole == {}
    values = frame(directory)
    connection = sqlite3.connect(directory / "study.db")
    connection.execute("DELETE FROM measurements WHERE run = 'one' AND step = 10 AND probe = 'hidden_states'")
    connection.commit()
    connection.close()
    assert run_study(declaration, directory, workers=1) == {}
    assert frame(directory).sort(pl.all()).equals(values.sort(pl.all()))


# Series of transformers


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Three checkpoints of a tiny model, each a folder with its configuration and tokenizer."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted(set(some_text(seed=1).split()))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["?", *words])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = transformers.GPTNeoXConfig(
        vocab_size=len(words) + 1,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    model = transformers.GPTNeoXForCausalLM(config)
    for step in (0, 1, 8):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(tmp_path / f"neox/step{step}")
        tokenizer.save(str(tmp_path / f"neox/step{step}/tokenizer.json"))
    return tmp_path / "neox"


@pytest.mark.slow
def test_a_series_beside_runs(folder: Path, series: Path, tmp_path: Path) -> None:
    declaration = declared(folder, series=[DeclaredSeries(path=str(series))])
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    told = frame(tmp_path / "study")
    assert set(told["run"]) == {"one", "two", "neox"}
    layers = told.filter(run="neox", probe="hidden_states", step=8)["layer"]
    assert sorted(set(layers)) == ["hidden.00", "hidden.01", "network"]
    before = measurement_ids(tmp_path / "study")
    # Another tokenizer of one checkpoint: what reads with it, and what compares these, is measured again.
    path = series / "step1/tokenizer.json"
    path.write_text(path.read_text().replace('"cat"', '"dog"'))
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    again = {unit for unit, number in measurement_ids(tmp_path / "study").items() if before.get(unit) != number}
    assert {unit[:2] for unit in again if unit[3] == "hidden_states"} == {("neox", 1)}
    assert {unit[3] for unit in again} == READS_TEXT
    # Another configuration is another model.
    before = measurement_ids(tmp_path / "study")
    path = series / "step8/config.json"
    path.write_text(path.read_text().replace('"layer_norm_eps": 1e-05', '"layer_norm_eps": 0.1'))
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    again = {unit for unit, number in measurement_ids(tmp_path / "study").items() if before.get(unit) != number}
    assert {unit[:2] for unit in again} == {("neox", 8)}
    assert {unit[3] for unit in again} == READS_TEXT


def test_what_lies_beside_checkpoints_of_one_file(series: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for step in (0, 1):
        (series / f"step{step}/model.safetensors").rename(flat / f"step_{step}.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (series / "step8" / name).rename(flat / name)
    declaration = Declaration(
        name="flat", series=[DeclaredSeries(path=str(flat))], text=write_text(tmp_path), probes=[*TEXT_PROBES, *OTHERS]
    )
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    before = measurement_ids(tmp_path / "study")
    path = flat / "tokenizer.json"
    path.write_text(path.read_text().replace('"cat"', '"dog"'))
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    assert changed_probes(before, measurement_ids(tmp_path / "study")) == READS_TEXT
    # Where it is away, that is told, and what was measured stands.
    before = measurement_ids(tmp_path / "study")
    path.unlink()
    errors = run_study(declaration, tmp_path / "study", workers=1)
    assert {(unit.step, unit.probe) for unit in errors} == {(0, "model"), (1, "model")}
    assert all("no tokenizer.json with it" in message for message in errors.values())
    assert measurement_ids(tmp_path / "study") == before
    # Named, it need not be there.
    named = [DeclaredSeries(path=str(flat), tokenizer=str(series / "step0/tokenizer.json"))]
    assert run_study(msgspec.structs.replace(declaration, series=named), tmp_path / "study", workers=1) == {}


def test_states_that_are_not_finite_stop_no_other(series: Path, tmp_path: Path) -> None:
    path = series / "step1/model.safetensors"
    weights = load_file(path)
    weights["gpt_neox.final_layer_norm.bias"][0] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    declaration = Declaration(
        name="sick", series=[DeclaredSeries(path=str(series))], text=write_text(tmp_path), probes=TEXT_PROBES
    )
    errors = run_study(declaration, tmp_path / "study", workers=1)
    failed = {(unit.step, unit.layer) for unit in errors if unit.probe == "hidden_states"}
    assert failed == {(1, "network")}
    (message,) = (m for unit, m in errors.items() if unit.probe == "hidden_states")
    assert "network" in message
    assert "step1" in message
    told = frame(tmp_path / "study")
    assert set(told.filter(probe="hidden_states", layer="hidden.01")["step"]) == {0, 1, 8}
    assert np.isfinite(told["value"].to_numpy()).all()


def test_equal_states_of_a_model_of_zeros(series: Path, tmp_path: Path) -> None:
    for step in (0, 1, 8):
        path = series / f"step{step}/model.safetensors"
        zeros = {name: torch.zeros_like(w) for name, w in load_file(path).items()}
        save_file(zeros, path, metadata={"format": "pt"})
    declaration = Declaration(
        name="zeros",
        series=[DeclaredSeries(path=str(series))],
        text=write_text(tmp_path),
        probes=[*TEXT_PROBES, *OTHERS],
    )
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    told = frame(tmp_path / "study")
    assert np.isfinite(told["value"].to_numpy()).all()
    connection = sqlite3.connect(tmp_path / "study/study.db")
    flags = {row[0] for row in connection.execute("SELECT flag FROM measurements WHERE probe = 'hidden_states'")}
    connection.close()
    assert flags == {"degenerate"}
    # Nothing is known, so every word is as likely.
    n_words = len(set(some_text(seed=1).split())) + 1
    assert told.filter(statistic="perplexity")["value"][0] == pytest.approx(n_words)


def test_other_roles_are_other_embeddings(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.weight": 40, "b.weight": 20, "out.weight": 40, "layers.0.mlp.up.weight": 16}
    weights = {name: torch.randn(n, 8, generator=generator) for name, n in shapes.items()}
    save_file(weights, tmp_path / "step_0.safetensors")

    def points(first: str, second: str) -> list[float]:
        roles = {r"^a\.": first, r"^b\.": second, r"^out\.": "head"}
        one = DeclaredSeries(name="one", path=str(tmp_path / "step_0.safetensors"), roles=roles)
        declaration = Declaration(name="roles", series=[one], probes=[{"name": "embeddings"}])
        assert run_study(declaration, tmp_path / "study", workers=1) == {}
        rows = Study.load(tmp_path / "study").frame().filter(layer="embedding.input", statistic="n_points")
        return [float(value) for value in rows["value"]]

    assert points("embed", "pos_embed") == [40]
    assert points("pos_embed", "embed") == [20]
