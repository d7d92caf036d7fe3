"""`toposcope.measure`: a path, a part of a series, or a module as it is now."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_model
from small_studies import CONTROLS, NEURAL_PERSISTENCE, RIPS, SHAPES, checkpoint_file, write_series
from torch import nn

import toposcope as ts
from toposcope.family import ModelSize, build
from toposcope.homology import neural_persistence
from toposcope.models import Text
from toposcope.probes import Probe
from toposcope.progress import silent
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.measuring import measure_series

COLUMNS = ["run", "step", "layer", "role", "probe", "options", "statistic", "kind", "value", "flag"]
PROBES: list[dict[str, Any]] = [NEURAL_PERSISTENCE, RIPS]


@pytest.fixture
def found(tmp_path: Path) -> Path:
    return write_series(tmp_path / "found", [0, 5, 20, 30])


def test_a_path(found: Path) -> None:
    frame = ts.measure(found)
    assert frame.columns == COLUMNS
    assert frame.schema["value"] == pl.Float64
    assert frame["run"].unique().to_list() == ["found"]
    assert frame["step"].unique(maintain_order=True).to_list() == [0, 5, 20, 30]
    assert set(frame["probe"]) == {"neural_persistence", "rips", "controls", "distances"}
    assert ts.measure(str(found), probes=PROBES).rows() == ts.measure(found, probes=PROBES).rows()


def test_one_checkpoint(found: Path) -> None:
    frame = ts.measure(checkpoint_file(found, 20), probes=PROBES)
    assert frame["step"].unique().to_list() == [20]
    everything = ts.measure(found, probes=PROBES).filter(pl.col("step") == 20)
    assert frame.drop("run").rows() == everything.drop("run").rows()


def test_the_numbers_are_those_of_the_matrices(found: Path) -> None:
    frame = ts.measure(found, probes=[NEURAL_PERSISTENCE])
    for step in (0, 30):
        for layer in ts.series(found)[[0, 5, 20, 30].index(step)].analysed():
            expected = neural_persistence(layer.read())
            row = frame.filter(step=step, layer=layer.name, statistic="np_mean")
            assert row["value"].to_list() == [expected.mean]


@pytest.mark.parametrize(
    ("part", "steps"),
    [(slice(None), [0, 5, 20, 30]), (slice(1, 3), [5, 20]), (slice(None, None, 2), [0, 20]), (slice(-1, None), [30])],
    ids=str,
)
def test_a_part_of_a_series(found: Path, part: slice, steps: list[int]) -> None:
    frame = ts.measure(ts.series(found)[part], probes=[CONTROLS])
    assert frame["step"].unique(maintain_order=True).to_list() == steps


def test_a_model_beside_the_steps_is_told_from_the_last_in_a_study_too(found: Path, tmp_path: Path) -> None:
    shutil.copy(checkpoint_file(found, 5), found / "best.safetensors")
    for source, line in ((5, "step 5, not of the last, 30"), (30, "the last step")):
        shutil.copy(checkpoint_file(found, source), found / "best.safetensors")
        declared, place = [DeclaredSeries(path=str(found))], tmp_path / "study"
        study, _ = measure_series(declared, place, [RIPS], text=Text(), workers=1, progress=silent)
        assert f"found: best.safetensors holds the weights of {line}" in study.notes()


def test_an_empty_part_of_a_series_is_not_all_of_it(found: Path) -> None:
    """Nothing, or a refusal; but never what was not asked for."""
    try:
        frame = ts.measure(ts.series(found)[:0], probes=[CONTROLS])
    except ts.ToposcopeError:
        return
    assert len(frame) == 0


def test_a_module_of_the_family(tmp_path: Path) -> None:
    model = build("tiny-3k", seed=1)
    frame = ts.measure(model, probes=[NEURAL_PERSISTENCE, CONTROLS])
    assert frame["run"].unique().to_list() == ["GPT"]
    assert frame["step"].unique().to_list() == [0]
    roles = dict(frame.select("layer", "role").unique().rows())
    # The tied head counts once, under whichever of its two names.
    assert sorted(roles.values()) == ["attn.out", "attn.qkv", "head", "mlp.in", "mlp.out", "network"]
    norm = frame.filter(layer="layers.0.attn.qkv.weight", statistic="frobenius_norm")["value"].item()
    weight = model.state_dict()["layers.0.attn.qkv.weight"]
    assert norm == pytest.approx(float(weight.double().norm()), rel=1e-12)


def test_measuring_leaves_a_module_as_it_was(tmp_path: Path) -> None:
    model = build("tiny-3k", seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ts.measure(model, probes=[NEURAL_PERSISTENCE])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training
    assert model.head.weight is model.token_emb.weight
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_module_is_measured_as_it_is_now() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6))
    first = ts.measure(model, probes=[CONTROLS])
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    second = ts.measure(model, probes=[CONTROLS])
    norms = [f.filter(layer="0.weight", statistic="frobenius_norm")["value"].item() for f in (first, second)]
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-6)
    rest = [f.filter(layer="1.weight").drop("run").rows() for f in (first, second)]
    assert rest[0] == rest[1]


def test_nothing_of_a_module_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file")

    for name in ("mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile"):
        monkeypatch.setattr(tempfile, name, refuse)
    monkeypatch.chdir(tmp_path)
    assert len(ts.measure(nn.Linear(4, 5), probes=[CONTROLS, RIPS]))
    assert list(tmp_path.iterdir()) == []


def test_a_module_gives_the_rows_of_its_checkpoint(tmp_path: Path) -> None:
    model = build("tiny-3k", seed=1)
    save_model(model, str(tmp_path / "step_0.safetensors"))
    probes = [{"name": name} for name in ("rips", "controls", "distances", "clustering", "random_matrices")]
    ours, stored = ts.measure(model, probes=probes), ts.measure(tmp_path / "step_0.safetensors", probes=probes)
    assert ours.drop("run").equals(stored.drop("run"))


@pytest.mark.parametrize("name", ["_größe (2)", "a|b"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    frame = ts.measure(write_series(tmp_path / name, [0, 5]), probes=[CONTROLS])
    assert set(frame["layer"]) == {*SHAPES, "network"}


def test_a_relative_path(found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(found)
    assert ts.measure(".", probes=[CONTROLS])["run"].unique().to_list() == ["found"]


def test_a_probe_is_declared_or_named(found: Path) -> None:
    assert ts.measure(found, probes=["controls"]).equals(ts.measure(found, probes=[{"name": "controls"}]))
    with pytest.raises(ts.ToposcopeError, match=r"^probes: 3 is not a probe; give "):
        ts.measure(found, probes=[3])  # type: ignore[list-item]


READING: list[dict[str, Any]] = [
    {"name": "hidden_states", "texts": 3, "length": 10, "layers": "all"},
    {"name": "language_modelling"},
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and ran off to see what lay beyond the mat. " * 4)
    return path


def loss_of(frame: pl.DataFrame) -> float:
    return float(frame.filter(probe="language_modelling", statistic="loss")["value"].item())


@pytest.mark.parametrize("size", ["tiny-3k", ModelSize(hidden=12, layers=2, heads=2, context=24)], ids=["named", "own"])
def test_a_model_of_the_family_in_memory_reads_a_text(size: Any, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(size, seed=1)
    monkeypatch.chdir(text.parent)
    frame = ts.measure(model, probes=READING, text=text.name)
    tokens = torch.tensor([[ord(c) for c in text.read_text()]])
    with torch.no_grad():
        stream = dict(enumerate(model.residual_stream(tokens[:, :10])))
    radius = frame.filter(layer="hidden.00", statistic="mean_norm")["value"].item()
    assert radius > 0
    assert set(frame["layer"]) == {*(f"hidden.{k:02d}" for k in range(len(stream) - 1)), "network"}
    n = model.size.context
    if tokens.shape[1] > n:
        tokens = tokens[:, :n]
        text.write_text(text.read_text()[:n])
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:])
    again = ts.measure(model, probes=READING[1:], text=text)
    assert loss_of(again) == pytest.approx(float(expected), rel=1e-5)
    # A step of training later it is another model.
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    assert loss_of(ts.measure(model, probes=READING[1:], text=text)) != loss_of(again)


def test_a_model_of_transformers_in_memory_reads_a_text(text: Path) -> None:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=128, max_position_embeddings=300, **size)).eval()
    frame = ts.measure(model, probes=READING, text=text, tokenizer="characters")
    assert set(frame["layer"]) == {"hidden.00", "hidden.01", "network"}
    tokens = torch.tensor([[ord(c) for c in text.read_text()]])
    with torch.no_grad():
        expected = float(model(input_ids=tokens, labels=tokens).loss)
    assert loss_of(frame) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ts.ToposcopeError, match=r"no tokenizer\.json"):
        ts.measure(model, probes=READING[1:], text=text)


def test_a_text_goes_with_the_probes_that_read_it(found: Path, text: Path) -> None:
    with pytest.raises(ts.ToposcopeError, match="hidden_states reads a text with the models; name one: text"):
        ts.measure(found, probes=READING)
    with pytest.raises(ts.ToposcopeError, match=r"text .*text\.txt: none of the probes reads a text"):
        ts.measure(found, text=text)
    with pytest.raises(ts.ToposcopeError, match="tokenizer characters: none of the probes reads a text"):
        ts.measure(found, tokenizer="characters")
    with pytest.raises(ts.ToposcopeError, match=r"absent\.txt"):
        ts.measure(build("tiny-3k", seed=1), probes=READING, text=text.with_name("absent.txt"))


def test_progress_is_told(found: Path) -> None:
    told: list[tuple[str, int, int]] = []
    ts.measure(found, probes=[CONTROLS], progress=lambda *what: told.append(what))
    # They grow to their sum: of the bytes of every tensor, and of the milliseconds that measuring should take.
    expected = {stage: [what[1:] for what in told if what[0] == stage] for stage in ("read", "measure")}
    assert expected["read"][-1] == (4 * 1176, 4 * 1176)
    assert len(expected["measure"]) > 1
    for amounts in expected.values():
        assert amounts == sorted(amounts)
        assert amounts[-1][0] == amounts[-1][1]


def test_layers_are_told_as_they_finish(found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of several layers counts each, not all of them at its end."""
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(Probe, "expected_seconds", lambda self, shapes: 0.125 * len(shapes))
    monkeypatch.setattr("toposcope.study.work.LAYER_MS", 0)
    ts.measure(found, probes=[NEURAL_PERSISTENCE], workers=1, progress=lambda *what: told.append(what))
    layers = len(ts.series(found)[0].analysed())
    done = [what[1] for what in told if what[0] == "measure"]
    assert set(np.diff(done)) <= {0, 125}
    assert done[-1] == 4 * 125 * layers


def test_what_failed_is_an_error_that_names_it(found: Path) -> None:
    checkpoint_file(found, 5).write_bytes(b"broken")
    with pytest.raises(ts.ToposcopeError) as caught:
        ts.measure(found, probes=[CONTROLS])
    assert "found, step 5" in str(caught.value)
    assert "step_000005.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_use_is_an_error(found: Path, tmp_path: Path) -> None:
    with pytest.raises(ts.ToposcopeError, match="absent"):
        ts.measure(tmp_path / "absent")
    with pytest.raises(ts.ToposcopeError, match="'ripz' is not a probe"):
        ts.measure(found, probes=[{"name": "ripz"}])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ts.ToposcopeError, match="no checkpoints"):
        ts.measure(tmp_path / "empty")


def test_nothing_is_left_behind(found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = sorted(found.iterdir())
    ts.measure(found, probes=[CONTROLS])
    assert list(scratch.iterdir()) == []
    assert sorted(found.iterdir()) == before
