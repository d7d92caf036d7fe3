"""Gradients of a trained run on its fixed batches."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import some_lines
from tiny_models import CONTEXT, byte_tokenizer, opened, saved

from toposcope.checkpoints import series
from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun, ModelSize, TrainingOptions, build, train
from toposcope.family import corpus as corpora
from toposcope.family.evaluation import fixed_batch, loss_gradients
from toposcope.models.loading import load_tokenizer
from toposcope.models.texts import passage
from toposcope.probes.feature import NETWORK
from toposcope.probes.needs import RunContext, needs
from toposcope.study import Declaration, Study
from toposcope.study.declared_runs import DeclaredRun
from toposcope.study.runner import run_study

TRAINING: dict[str, Any] = {"steps": 4, "batch_size": 5, "warmup_steps": 1, "checkpoint_every": 2}
SIZE = ModelSize(hidden=8, layers=1, heads=2, context=16)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"{i * i:x}" for i in range(2000)), encoding="utf-8")
    return Corpus(source=str(path))


def test_batches_begin_between_one_another() -> None:
    tokens = torch.arange(1000)
    batches = [fixed_batch(tokens, 8, 17, batch) for batch in range(5)]
    assert torch.equal(batches[0], corpora.spread_sequences(tokens, 8, 17, "training"))
    starts = [set(batch[:, 0].tolist()) for batch in batches]
    for batch, mine in zip(batches, starts, strict=True):
        assert batch.shape == (8, 17)
        # No sequence runs over the end into the beginning.
        assert torch.equal(batch - batch[:, :1], torch.arange(17).expand(8, 17))
        assert len(mine) == 8
    everything = sorted(set.union(*starts))
    assert len(everything) == 40
    distance = (1000 - 17) / 7
    gaps = [b - a for a, b in itertools.pairwise(everything)]
    assert max(gaps) < distance / 2


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_short_texts(batch: int) -> None:
    assert fixed_batch(torch.arange(17), 3, 17, batch).tolist() == [list(range(17))] * 3
    with pytest.raises(ToposcopeError, match="the training part has 16 tokens, fewer than one sequence of 17"):
        fixed_batch(torch.arange(16), 3, 17, batch)


def test_gradients_are_those_of_the_loss(tmp_path: Path, corpus: Corpus) -> None:
    run, prepared = (
        FamilyRun(name="r", size=SIZE, corpus=corpus, training=TrainingOptions(**TRAINING)),
        tmp_path / "corpus",
    )
    corpora.prepare(corpus, prepared)
    train(run, prepared, tmp_path / "r")
    weights = series(tmp_path / "r")[-1].tensors()
    for batch in (0, 3):
        found = loss_gradients(tmp_path / "r", prepared, weights, batch)
        sequences = fixed_batch(corpora.load(prepared).training, 5, 17, batch)
        model = build(SIZE)
        name = "layers.0.mlp.fc1.weight"
        W = weights[name].double()
        # A central difference of the loss along one direction.
        direction = torch.randn(W.shape, generator=torch.Generator().manual_seed(batch), dtype=torch.float64)
        losses = []
        for sign in (1, -1):
            moved = {key: tensor.double() for key, tensor in weights.items()} | {name: W + sign * 1e-5 * direction}
            model = model.double()
            model.load_state_dict(moved)
            losses.append(model.loss(sequences).item())
        slope = (losses[0] - losses[1]) / 2e-5
        assert float((found[name].double() * direction).sum()) == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_a_study_with_noise_over_batches(tmp_path: Path, corpus: Corpus) -> None:
    declaration = Declaration(
        name="s",
        corpus=corpus,
        training=TrainingOptions(**TRAINING),
        runs=[DeclaredRun(size=SIZE, name="r")],
        probes=[{"name": "gradient_rips"}, {"name": "gradient_rips", "batches": 3}],
    )
    assert run_study(declaration, tmp_path / "out", workers=1) == {}
    frame = Study.load(tmp_path / "out").frame()
    values, with_noise = (
        {(row["step"], row["layer"], row["statistic"]): row["value"] for row in part.iter_rows(named=True)}
        for part in sorted(frame.partition_by("options"), key=len)
    )
    assert with_noise.items() > values.items()
    assert values[4, NETWORK, "np_mean"] > 0
    extra = {key[2] for key in with_noise.keys() - values.keys()}
    assert all(name.endswith(".noise") for name in extra)
    assert with_noise[4, NETWORK, "gradient_norm.noise"] > 0


@pytest.mark.parametrize("kind", ["gpt_neox", "gpt2", "llama"])
def test_gradients_of_a_text_are_those_of_any_model(tmp_path: Path, kind: str) -> None:
    """Autograd through a model of transformers itself, window by window, in the layout of the weights."""
    pytest.importorskip("transformers")
    module = saved(tmp_path, kind)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    checkpoint, origin = opened(tmp_path)
    given, flag = needs()["gradients"].provide(checkpoint, RunContext(origin, some_lines, "key"))(2, 3, CONTEXT)
    assert flag == ""
    windows = passage(some_lines(), load_tokenizer(checkpoint, origin), CONTEXT).sequences
    module.float().zero_grad()
    read = [torch.tensor([windows[round((len(windows) - 1) * k / 2)].ids]) for k in range(3)]
    lengths = [tokens.shape[1] - 1 for tokens in read]
    for tokens, length in zip(read, lengths, strict=True):
        (module(input_ids=tokens, labels=tokens).loss * length / sum(lengths)).backward()
    expected = {name: parameter.grad for name, parameter in module.named_parameters()}
    compared = 0
    for layer in checkpoint.analysed():
        if (gradient := expected.get(layer.name)) is not None:
            turned = gradient.T if layer.transposed else gradient
            torch.testing.assert_close(given[0][layer.name], turned, rtol=1e-3, atol=1e-6)
            compared += 1
        if layer.name in given[0]:
            assert tuple(given[0][layer.name].shape) == layer.matrix().shape
            assert not torch.equal(given[0][layer.name], given[1][layer.name])
    assert compared >= 5
