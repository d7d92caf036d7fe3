"""The cloud of a model's hidden states against the model read by hand and other libraries' measures of it."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA
from small_models import (
    Matrix,
    by_hooks,
    characters,
    even_windows,
    family_model,
    loops,
    measure,
    measured,
    save,
    some_lines,
    spectrum_of,
    subject_of,
    total_of_components,
)

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, betti_curve, landscape, statistics, two_nn
from toposcope.models import Text
from toposcope.probes import Failure, Measurement, ProbeInput, make_probes
from toposcope.probes.hidden_states import HiddenStatesProbe, evenly, gather
from toposcope.progress import silent
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.diagrams import diagram_bytes, read_diagrams, read_states
from toposcope.study.measuring import measure_series

TEXT = some_lines()
NAMES = ["hidden.00", "hidden.01", "network"]
SMALL: dict[str, Any] = {"texts": 6, "length": 16}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return save(family_model(), tmp_path_factory.mktemp("family"))


def tokens_by_hand(texts: int = 6, length: int = 16) -> list[Matrix]:
    """The points of each hidden state, of windows of the text."""
    states = by_hooks(family_model(), even_windows(characters(TEXT), texts, length))
    return [np.concatenate([found[k] for found in states]) for k in range(3)]


def texts_by_hand(texts: int, length: int) -> list[Matrix]:
    """The mean of each line's tokens, every line read by itself."""
    found = TEXT.splitlines()
    lines = [characters(found[i])[:length] for i in np.linspace(0, len(found) - 1, texts).round().astype(int)]
    states = by_hooks(family_model(), lines)
    return [np.array([of_line[k].mean(axis=0) for of_line in states]) for k in range(3)]


def assert_told(found: dict[str, float], expected: dict[str, float], rtol: float = 1e-9) -> None:
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=rtol), name


def assert_cloud(found: Measurement, points: Matrix, metric: str = "euclidean") -> None:
    """Both diagrams are those of these points."""
    assert found.statistics["H0.total"] == pytest.approx(total_of_components(points, metric), rel=1e-6)
    assert len(found.diagrams["H0"].pairs) == len(points) - 1
    assert_allclose(found.diagrams["H1"].pairs, loops(points, metric), rtol=1e-5, atol=1e-6)
    for name, diagram in found.diagrams.items():
        assert_told(found.statistics, {f"{name}.{key}": value for key, value in statistics(diagram).items()})


def test_tokens_of_every_layer(checkpoint: Checkpoint) -> None:
    found = measured(HiddenStatesProbe(layers="all", **SMALL), checkpoint, TEXT)
    assert list(found) == NAMES
    for points, (layer, measurement) in zip(tokens_by_hand(), found.items(), strict=True):
        assert measurement.role == layer.partition(".")[0]
        assert measurement.flag == ""
        assert_told(measurement.statistics, spectrum_of(points))
        assert measurement.statistics["two_nn"] == pytest.approx(two_nn(points).dimension)
        assert_cloud(measurement, points)


def test_texts_are_means_without_padding(checkpoint: Checkpoint) -> None:
    probe = HiddenStatesProbe(layers="all", points="texts", cut="lines", texts=12, length=120)
    lengths = {len(line) for line in TEXT.splitlines()}
    assert min(lengths) < 120 < max(lengths)  # some are cut, and some are padded
    for points, measurement in zip(texts_by_hand(12, 120), measured(probe, checkpoint, TEXT).values(), strict=True):
        assert_told(measurement.statistics, spectrum_of(points))
        assert_cloud(measurement, points)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("last", ["network"]),
        ((), ["network"]),
        ((0.0,), ["hidden.00", "network"]),
        ((0.5,), ["hidden.01", "network"]),
        ((1.0, 0.4), ["hidden.01", "network"]),
        ("all", NAMES),
    ],
)
def test_layers_by_depth(checkpoint: Checkpoint, layers: Any, expected: list[str]) -> None:
    whole = measured(HiddenStatesProbe(layers="all", **SMALL), checkpoint, TEXT)
    found = measured(HiddenStatesProbe(layers=layers, **SMALL), checkpoint, TEXT)
    assert list(found) == expected
    for layer, measurement in found.items():
        assert measurement.statistics == whole[layer].statistics


# The cloud as it is made


def test_principal_components_are_those_of_scikit_learn(checkpoint: Checkpoint) -> None:
    found = measured(HiddenStatesProbe(pca=3, **SMALL), checkpoint, TEXT)["network"]
    points = tokens_by_hand()[-1]
    analysis = PCA(3, svd_solver="full").fit(points)
    assert found.statistics["pca_variance"] == pytest.approx(analysis.explained_variance_ratio_.sum())
    assert_cloud(found, analysis.transform(points))
    assert_told(found.statistics, spectrum_of(points))  # of the points as they are


def test_cosine(checkpoint: Checkpoint) -> None:
    points = tokens_by_hand()[-1]
    found = measured(HiddenStatesProbe(metric="cosine", **SMALL), checkpoint, TEXT)["network"]
    assert_cloud(found, points, "cosine")
    assert found.statistics["two_nn"] == pytest.approx(two_nn(points, metric="cosine").dimension)


def test_what_is_normalised_has_no_scale(tmp_path: Path) -> None:
    """Scaling the final norm scales the last hidden state."""
    once, larger = family_model(), family_model()
    with torch.no_grad():
        larger.ln_f.weight.mul_(7)
        larger.ln_f.bias.mul_(7)
    probe = HiddenStatesProbe(normalize=True, **SMALL)
    a, b = (
        measured(probe, save(model, tmp_path / str(i)), TEXT)["network"].statistics
        for i, model in enumerate((once, larger))
    )
    points = tokens_by_hand()[-1]
    radius = np.sqrt(((points - points.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert a["H0.total"] == pytest.approx(total_of_components(points / radius))
    norm = HiddenStatesProbe.NORM
    for name, value in a.items():
        # A spectral measure is of the states as they are.
        factor = 7.0 if name == norm else 7.0 ** probe.degree(name)
        assert b[name] == pytest.approx(factor * value, rel=1e-9), name
    assert {name for name in a if probe.degree(name)} == {"mean_norm", "top_eigenvalue"}


def test_curves_are_those_of_the_stored_diagrams(checkpoint: Checkpoint) -> None:
    scales = (0.0, 0.5, 2.0, 3.25)
    found = measured(HiddenStatesProbe(scales=scales, **SMALL), checkpoint, TEXT)["network"]
    for name, diagram in found.diagrams.items():
        alive = betti_curve(diagram, scales) + (1 if name == "H0" else 0)  # one component never dies
        curves = {"betti": alive, "landscape_1": landscape(diagram, scales, 1)[0]}
        for curve, values in curves.items():
            told = [found.statistics[f"{name}.{curve}@{scale}"] for scale in ("0", "0.5", "2", "3.25")]
            assert_array_equal(told, values)
    assert any(found.statistics[f"H1.betti@{scale:g}"] for scale in scales)


# Samples


def test_random_samples_are_the_same_tokens_at_every_checkpoint(checkpoint: Checkpoint, tmp_path: Path) -> None:
    probe = HiddenStatesProbe(sample="random", max_points=20, draws=3, keep=9, **SMALL)
    found = measured(probe, checkpoint, TEXT)["network"]
    points = tokens_by_hand()[-1]
    draws = probe._draws(len(points))
    assert len({draw.tobytes() for draw in draws}) == 3
    assert found.flag == "random points"
    assert_allclose(found.diagrams["H1"].pairs, loops(points[draws[0]]), rtol=1e-5, atol=1e-6)
    totals = [total_of_components(points[draw]) for draw in draws]
    assert found.statistics["H0.total"] == pytest.approx(np.mean(totals), rel=1e-6)
    assert found.statistics["H0.total.noise"] == pytest.approx(np.std(totals, ddof=1), rel=1e-6)
    dimensions = [two_nn(points[draw]).dimension for draw in draws]
    assert found.statistics["two_nn"] == pytest.approx(np.mean(dimensions))
    assert found.statistics["two_nn.noise"] == pytest.approx(np.std(dimensions, ddof=1))
    assert_told(found.statistics, spectrum_of(points))  # of all
    assert not [name for name in found.statistics if "cover_radius" in name]  # of what was left out nothing is known
    path = tmp_path / "random.safetensors"
    path.write_bytes(diagram_bytes({"network": found.diagrams}))
    assert np.isnan([diagram.cover_radius for diagram in read_diagrams(path)["network"].values()]).all()
    # Another checkpoint, and more draws, change nothing of which are taken.
    other = measured(probe, save(family_model(seed=1), tmp_path), TEXT)["network"]
    more = HiddenStatesProbe(sample="random", max_points=20, draws=5, **SMALL)
    assert_array_equal(more._draws(len(points))[:3], draws)
    assert other.states is not None
    with torch.no_grad():
        theirs = by_hooks(family_model(seed=1), even_windows(characters(TEXT), 6, 16))
    assert_allclose(other.states, np.concatenate([s[-1] for s in theirs])[evenly(len(points), 9)], rtol=1e-6)
    seeded = measured(HiddenStatesProbe(sample="random", max_points=20, seed=1, **SMALL), checkpoint, TEXT)
    assert seeded["network"].statistics["H0.total"] != found.statistics["H0.total"]


def test_a_sample_of_everything_has_no_noise(checkpoint: Checkpoint) -> None:
    probe = HiddenStatesProbe(sample="random", max_points=1000, draws=3, **SMALL)
    found = measured(probe, checkpoint, TEXT)["network"]
    assert found.flag == ""
    assert {value for name, value in found.statistics.items() if name.endswith(".noise")} == {0.0}
    plain = measured(HiddenStatesProbe(**SMALL), checkpoint, TEXT)["network"].statistics
    assert {name: found.statistics[name] for name in plain} == plain


def test_landmarks_carry_their_cover_radius(checkpoint: Checkpoint) -> None:
    found = measured(HiddenStatesProbe(max_points=20, **SMALL), checkpoint, TEXT)["network"]
    points = tokens_by_hand()[-1]
    assert found.flag == "landmarks"
    assert found.statistics["H0.total"] == pytest.approx(total_of_components(points), rel=1e-6)
    assert found.statistics["H0.cover_radius"] == 0
    # The greedy choice, by hand: it begins farthest from the centroid.
    chosen = [int(np.argmax(np.linalg.norm(points - points.mean(axis=0), axis=1)))]
    while len(chosen) < 20:
        chosen.append(int(cdist(points, points[chosen]).min(axis=1).argmax()))
    assert_allclose(found.diagrams["H1"].pairs, loops(points[chosen]), rtol=1e-5, atol=1e-6)
    radius = cdist(points, points[chosen]).min(axis=1).max()
    assert found.statistics["H1.cover_radius"] == pytest.approx(radius)


def test_births_of_all_points_are_kept_with_the_landmarks(checkpoint: Checkpoint, tmp_path: Path) -> None:
    few = measured(HiddenStatesProbe(max_points=20, **SMALL), checkpoint, TEXT)["network"]
    whole = measured(HiddenStatesProbe(**SMALL), checkpoint, TEXT)["network"]
    assert few.statistics["H1.count"] == whole.statistics["H1.count"] > len(few.diagrams["H1"].pairs)
    assert_array_equal(few.diagrams["H1"].births, whole.diagrams["H1"].pairs[:, 0])
    path = tmp_path / "kept.safetensors"
    cut = Diagram(few.diagrams["H1"].pairs, 1, essential_births=np.arange(2.0), truncated_births=np.array([3.0, 2.5]))
    path.write_bytes(diagram_bytes({"few": few.diagrams, "whole": whole.diagrams, "cut": {"H1": cut}}))
    again = read_diagrams(path)
    assert_array_equal(again["few"]["H1"].births, few.diagrams["H1"].births)
    assert_array_equal(again["cut"]["H1"].essential_births, [0.0, 1.0])
    assert_array_equal(again["cut"]["H1"].truncated_births, [2.5, 3.0])
    assert again["whole"]["H1"].births is None
    # What lies there is kept when other layers are written.
    path.write_bytes(diagram_bytes({"whole": whole.diagrams}, before=path, keep=["few"]))
    assert_array_equal(read_diagrams(path)["few"]["H1"].births, few.diagrams["H1"].births)


@pytest.mark.parametrize(("sample", "chosen"), [("farthest", "landmarks"), ("random", "random points")])
def test_a_halved_batch_hides_no_choice_of_points(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, sample: Any, chosen: str
) -> None:
    def halved(*args: Any, **options: Any) -> tuple[dict[str, Any], str]:
        return gather(*args, **options)[0], "batch halved to 4"

    monkeypatch.setattr("toposcope.probes.hidden_states.gather", halved)
    found = measured(HiddenStatesProbe(max_points=20, sample=sample, **SMALL), checkpoint, TEXT)["network"]
    assert found.flag == f"batch halved to 4, {chosen}"
    assert measured(HiddenStatesProbe(**SMALL), checkpoint, TEXT)["network"].flag == "batch halved to 4"


def test_the_points_of_a_sample_are_all_that_is_kept(checkpoint: Checkpoint) -> None:
    """The others are streamed past the spectra, in whatever batches."""
    probe = HiddenStatesProbe(sample="random", max_points=10, keep=7, **SMALL)
    reader = subject_of(checkpoint, TEXT, ["network"]).reader
    assert reader is not None
    model = reader.model()
    sequences = probe._sequences(reader)
    everything, some = (
        gather(model, sequences, {"network": 2}, pooled=False, selected=which)[0]["network"]
        for which in (None, probe._selected_points(sequences))
    )
    assert some.selected is not None
    assert len(some.points) == len(some.selected) <= 17
    assert_array_equal(some.points, everything.points[some.selected])
    assert_array_equal(some.at(evenly(96, 7)), everything.points[evenly(96, 7)])
    assert some.moments.measures() == everything.moments.measures()


# What is kept


def test_kept_states_come_back_from_the_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    found = measured(HiddenStatesProbe(layers="all", keep=10, **SMALL), checkpoint, TEXT)
    path = tmp_path / "kept.safetensors"
    states = {layer: m.states for layer, m in found.items() if m.states is not None}
    path.write_bytes(diagram_bytes({layer: m.diagrams for layer, m in found.items()}, states))
    kept = read_states(path)
    assert sorted(kept) == NAMES
    for layer, points in zip(NAMES, tokens_by_hand(), strict=True):
        rows = np.linspace(0, len(points) - 1, 10).round().astype(int)
        assert kept[layer].dtype == np.float32
        assert_array_equal(kept[layer], found[layer].states)
        assert_allclose(kept[layer], points[rows], rtol=1e-6, atol=1e-6)
        assert_array_equal(read_diagrams(path)[layer]["H1"].pairs, found[layer].diagrams["H1"].pairs)
    assert list(read_states(path, "hidden.01")) == ["hidden.01"]
    # What stands stays in a file that is written anew.
    path.write_bytes(diagram_bytes({"network": found["network"].diagrams}, before=path, keep=["hidden.00"]))
    assert list(read_states(path)) == ["hidden.00"]
    assert sorted(read_diagrams(path)) == ["hidden.00", "network"]


def test_all_points_can_be_kept(checkpoint: Checkpoint) -> None:
    found = measured(HiddenStatesProbe(keep=10**6, **SMALL), checkpoint, TEXT)["network"]
    assert found.states is not None
    assert_allclose(found.states, tokens_by_hand()[-1], rtol=1e-6, atol=1e-6)
    assert measured(HiddenStatesProbe(**SMALL), checkpoint, TEXT)["network"].states is None


# Bad input


@pytest.mark.parametrize(
    "options", [{}, {"pca": 5}, {"normalize": True}, {"points": "texts"}, {"scales": (0.5,)}], ids=str
)
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_equal_states_are_flagged(tmp_path: Path, options: dict[str, Any], value: float) -> None:
    """A final norm that does not look at its input."""
    model = family_model()
    with torch.no_grad():
        model.ln_f.weight.zero_()
        model.ln_f.bias.fill_(value)
    found = measured(HiddenStatesProbe(**SMALL, **options), save(model, tmp_path), TEXT)["network"]
    assert found.flag == "degenerate"
    zeros = ("rms_radius", "top_eigenvalue", "H0.total", "H0.count", "H1.total", "H0.entropy")
    assert [found.statistics[name] for name in zeros] == [0] * len(zeros)
    assert found.statistics["H0.n_zero"] == found.statistics["n_points"] - 1
    assert found.statistics["mean_norm"] == pytest.approx(value * np.sqrt(24))
    assert not {"rankme", "stable_rank", "two_nn"} & found.statistics.keys()


def test_a_state_that_is_not_finite_fails_alone(tmp_path: Path) -> None:
    model = family_model()
    with torch.no_grad():
        dict(model.named_parameters())["layers.0.mlp.fc2.bias"][3] = float("nan")
    found = measure(HiddenStatesProbe(layers="all", **SMALL), save(model, tmp_path), TEXT)
    assert isinstance(found["hidden.00"], Measurement)
    for layer in NAMES[1:]:
        failure = found[layer]
        assert isinstance(failure, Failure)
        assert layer in failure.message
        assert "step_10" in failure.message
        assert "not finite" in failure.message
        assert len(failure.message.splitlines()) == 1


def test_a_narrow_dtype_that_overflows_is_told(tmp_path: Path) -> None:
    model = family_model(dtype=torch.float16)
    with torch.no_grad():
        model.token_emb.weight.fill_(6e4)
        model.pos_emb.weight.fill_(6e4)
    found = measure(HiddenStatesProbe(layers="all", **SMALL), save(model, tmp_path), TEXT)
    assert all(isinstance(result, Failure) and "dtype" in result.message for result in found.values())


def test_a_wrong_choice_is_told_with_the_right_ones() -> None:
    with pytest.raises(ToposcopeError, match=r"hidden_states: points is 'words'; choose from tokens, texts"):
        make_probes([{"name": "hidden_states", "points": "words"}])


def test_a_text_shorter_than_a_window_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(ToposcopeError, match="fewer than one window"):
        measure(HiddenStatesProbe(length=16), checkpoint, TEXT[:10])
    with pytest.raises(ToposcopeError, match="no line"):
        measure(HiddenStatesProbe(cut="lines"), checkpoint, "short\nlines")


def test_one_point_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(ToposcopeError, match="1 point, of only 1 of 200 texts; a cloud needs 2"):
        measure(HiddenStatesProbe(points="texts", texts=200, length=64), checkpoint, TEXT[:100])


@pytest.mark.parametrize(
    ("probe", "flags"),
    [
        ({"name": "hidden_states", "texts": 200, "length": 16}, ["only 12 of 200 texts"]),
        ({"name": "hidden_states", "texts": 2, "length": 16, "pca": 50}, ["only 24 of 50 components"]),
        ({"name": "hidden_states", "texts": 2, "length": 16, "keep": 99}, ["only 32 of 99 kept points"]),
        ({"name": "hidden_states", "layers": [0, 0.1], "texts": 2, "length": 16}, ["only 2 of 3 layers"]),
        ({"name": "hidden_states", "cut": "lines", "texts": 1, "length": 500}, ["only 128 of 500 tokens in a text"]),
        ({"name": "language_modelling", "length": 500}, ["only 128 of 500 tokens in a window"]),
        ({"name": "curvature", "top": 1, "sequences": 9}, ["only 2 of 9 windows"]),
        ({"name": "landscape", "resolution": 5, "draws": 1}, ["only 2 of 8 windows", "only 2 of 4 batches"]),
    ],
)  # fmt: skip
def test_counts_that_are_lowered_are_flagged_and_said(tmp_path: Path, probe: dict[str, Any], flags: list[str]) -> None:
    save(family_model(), tmp_path / "run")
    text = tmp_path / "text.txt"
    text.write_text((TEXT * 9)[:200])
    declared = [DeclaredSeries(name="run", path=str(tmp_path / "run"), tokenizer="characters")]
    reads = Text(source=str(text))
    study, errors = measure_series(declared, tmp_path / "s", [probe], text=reads, workers=1, progress=silent)
    assert not errors
    (said,) = [note for note in study.notes() if "flagged at 1 of 1 checkpoints; run step 10: " in note]
    assert [flag for flag in flags if flag not in said] == []
    network = study.frame().filter(pl.col("flag").str.contains("only"))["flag"].unique().to_list()
    assert [flag for flag in flags if flag not in network[0]] == []


def test_what_does_not_fit_into_memory_is_refused_first(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toposcope.homology.memory.free_memory", lambda: 10**4)
    with pytest.raises(ToposcopeError, match=r"96 points of 3 hidden states: needs .* sample"):
        measure(HiddenStatesProbe(layers="all", **SMALL), checkpoint, TEXT)


def test_without_a_reader_it_says_what_is_missing(checkpoint: Checkpoint) -> None:
    with pytest.raises(ToposcopeError, match="declare"):
        list(HiddenStatesProbe().measure(ProbeInput.of(checkpoint)))


# A model of transformers


@pytest.fixture(scope="module")
def neox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("neox") / "step7"
    words = sorted(set(TEXT.split()))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["?", *words])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = transformers.GPTNeoXConfig(
        vocab_size=len(words) + 1,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=40,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    transformers.GPTNeoXForCausalLM(config).double().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def neox_by_hand(folder: Path, sequences: list[list[int]]) -> list[list[Matrix]]:
    import transformers

    model = transformers.GPTNeoXForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        found = [model(torch.tensor([ids]), output_hidden_states=True).hidden_states for ids in sequences]
    return [[state[0].numpy() for state in states] for states in found]


@pytest.mark.parametrize("points", ["tokens", "texts"])
def test_a_model_of_transformers(neox: Path, points: Any) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(neox / "tokenizer.json"))
    lines = [TEXT.splitlines()[i] for i in np.linspace(0, 29, 8).round().astype(int)]
    ids = [tokenizer.encode(line).ids[:38] for line in lines]
    assert len({len(line) for line in ids}) > 1
    join = np.concatenate if points == "tokens" else lambda rows: np.array([row.mean(axis=0) for row in rows])
    probe = HiddenStatesProbe(layers="all", points=points, cut="lines", texts=8, length=38, pca=5)
    found = measured(probe, Checkpoint(neox, 7), TEXT)
    assert list(found) == NAMES
    by_hand = neox_by_hand(neox, ids)
    for k, measurement in enumerate(found.values()):
        cloud = join([states[k] for states in by_hand])
        expected = spectrum_of(cloud)
        assert_told(measurement.statistics, expected, rtol=1e-8)
        projected = PCA(5, svd_solver="full").fit_transform(cloud)
        assert measurement.statistics["H0.total"] == pytest.approx(total_of_components(projected), rel=1e-6)
        assert_allclose(measurement.diagrams["H1"].pairs, loops(projected), rtol=1e-5, atol=1e-5)
