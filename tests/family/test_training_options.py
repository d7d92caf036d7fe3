"""What a population varies and one run can have too: initial scale, dropout, label noise, share of the data."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import SIZE, prepared, small_run
from torch import Tensor, nn

from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun, ModelSize, TrainingOptions, build, train
from toposcope.family.batches import Batches, dropout_masks, mask_keys, noisy_targets
from toposcope.family.corpus import Tokens, load
from toposcope.family.run_folder import checkpoint_path
from toposcope.seeds import derive_seed


def losses_of(directory: Path) -> list[float]:
    with (directory / "log.csv").open(newline="") as file:
        return [float(row["loss"] or "nan") for row in csv.DictReader(file)]


def trained(tmp_path: Path, name: str = "run", **training: Any) -> tuple[FamilyRun, Tokens, Path]:
    corpus, path = prepared(tmp_path)
    run = small_run(corpus, **training)
    train(run, path, tmp_path / name)
    return run, load(path), tmp_path / name


def test_a_share_of_the_data_is_its_beginning(tmp_path: Path) -> None:
    """Nothing behind the share is ever read: a run on half of the data is a run on a text that ends there."""
    run, tokens, directory = trained(tmp_path, data_share=0.5)
    half = tokens.training[: len(tokens.training) // 2]
    assert abs(len(Batches(run, tokens).tokens) - len(half)) <= 1
    generator = torch.Generator().manual_seed(derive_seed(run.training.seed, "batches", 0))
    starts = torch.randint(0, len(half) - SIZE.context, (1000, run.training.batch_size), generator=generator)
    loss = build(run.size, seed=run.training.seed).loss(half[starts[0][:, None] + torch.arange(SIZE.context + 1)])
    assert losses_of(directory)[1] == pytest.approx(float(loss.detach()), rel=1e-6)


def test_too_small_a_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="training part has 1 tokens"):
        trained(tmp_path, data_share=0.00005)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_label_noise_replaces_a_share_of_the_targets_evenly(share: float) -> None:
    corpus_tokens = torch.zeros(200_000, dtype=torch.uint8)
    run = FamilyRun(name="noisy", size=SIZE, corpus=Corpus(), training=TrainingOptions(label_noise=share))
    targets = noisy_targets(run, corpus_tokens)
    assert targets.dtype == torch.uint8
    # The right token may be drawn again, once in as many as there are tokens.
    expected = share * (1 - 1 / SIZE.vocabulary)
    assert float((targets != 0).float().mean()) == pytest.approx(expected, abs=0.006)
    counts = torch.bincount(targets[targets != 0].long(), minlength=SIZE.vocabulary)[1:].double()
    even = counts.sum() / len(counts)
    # Chi-square over 127 tokens: mean 126, standard deviation 16.
    assert float(((counts - even) ** 2 / even).sum()) < 126 + 6 * 16
    assert torch.equal(targets, noisy_targets(run, corpus_tokens))


def test_noise_changes_targets_alone(tmp_path: Path) -> None:
    run, tokens, directory = trained(tmp_path, label_noise=0.6)
    material = Batches(run, tokens)
    assert torch.equal(material.tokens, tokens.training)
    sequences, targets = material.batch(1)
    assert targets is not None
    assert not torch.equal(sequences[:, 1:], targets)
    logits = build(run.size, seed=run.training.seed)(sequences[:, :-1].long())
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), targets.long().flatten())
    assert losses_of(directory)[1] == pytest.approx(float(expected.detach()), rel=1e-6)
    # A token has the same wrong target whenever it is read, and with less of the data.
    part = Batches(small_run(run.corpus, label_noise=0.6, data_share=0.5), tokens)
    assert part.targets is not None
    assert material.targets is not None
    assert torch.equal(part.targets, material.targets[: len(part.targets)])


def test_dropout_masks_what_joins_the_residual_stream(tmp_path: Path) -> None:
    run, tokens, directory = trained(tmp_path, dropout=0.3)
    training = run.training
    sequences, _ = Batches(run, tokens).batch(1)
    keys = mask_keys([training.seed], 1)
    masks = dropout_masks(keys, torch.tensor([0.3], dtype=torch.float64), run.size, training.batch_size, SIZE.context)
    first, second, third = masks[:, 0]
    model = build(run.size, seed=training.seed)
    inputs = sequences[:, :-1].long()
    x = (model.token_emb(inputs) + model.pos_emb.weight) * first
    (block,) = model.layers
    x = x + block.attn(block.ln1(x)) * second  # type: ignore[operator]
    x = x + block.mlp(block.ln2(x)) * third  # type: ignore[operator]
    logits = model.head(model.ln_f(x))
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].long().flatten())
    assert losses_of(directory)[1] == pytest.approx(float(expected.detach()), rel=1e-5)
    # Nothing is dropped where the validation loss is measured.
    with (directory / "log.csv").open(newline="") as file:
        logged = float(list(csv.DictReader(file))[-1]["validation_loss"])
    model.load_state_dict(safetensors.torch.load_file(checkpoint_path(directory, training.steps)))
    length = SIZE.context + 1
    places = torch.linspace(0, len(tokens.validation) - length, training.validation_sequences, dtype=torch.float64)
    validation = tokens.validation[places.long()[:, None] + torch.arange(length)]
    with torch.no_grad():
        assert logged == pytest.approx(float(model.loss(validation)), rel=1e-5)


def masks_of(seed: int, step: int, share: float, size: ModelSize = SIZE, batch: int = 64) -> Tensor:
    shares = torch.tensor([share], dtype=torch.float64)
    return dropout_masks(mask_keys([seed], step), shares, size, batch, size.context)[:, 0]


# Rare masks have heavy tails; random examples would fail once in many thousands.
@settings(derandomize=True)
@given(seed=st.integers(0, 2**40), step=st.integers(1, 10_000), share=st.floats(0.1, 0.9))
def test_masks_drop_their_share_evenly_and_independently(seed: int, step: int, share: float) -> None:
    mask = masks_of(seed, step, share)
    dropped = (mask == 0).double()
    torch.testing.assert_close(mask[mask != 0], torch.full_like(mask[mask != 0], 1 / (1 - share)))
    error = math.sqrt(share * (1 - share) / dropped.numel())
    assert abs(float(dropped.mean()) - share) < 6 * error
    # Neither of a row, a column, a site, nor of the next step or seed.
    for axis in range(dropped.ndim):
        others = [a for a in range(dropped.ndim) if a != axis]
        means = dropped.mean(others)
        assert float((means - share).abs().max()) < 6.5 * math.sqrt(share * (1 - share) * len(means) / dropped.numel())
    flat = (dropped - share).flatten()
    for other in (masks_of(seed, step + 1, share), masks_of(seed + 1, step, share)):
        rival = ((other == 0).double() - share).flatten()
        assert abs(float((flat * rival).mean())) < 6 * share * (1 - share) / math.sqrt(len(flat))
    for shift in (1, SIZE.hidden, SIZE.hidden * SIZE.context):
        product = (flat[shift:] * flat[:-shift]).mean()
        assert abs(float(product)) < 6 * share * (1 - share) / math.sqrt(len(flat) - shift)


def test_no_dropout_is_a_mask_of_ones() -> None:
    assert bool((masks_of(3, 1, 0.0) == 1).all())


def test_masks_of_several_runs_are_those_of_each() -> None:
    seeds, shares = [5, 6, 7], torch.tensor([0.0, 0.2, 0.7], dtype=torch.float64)
    together = dropout_masks(mask_keys(seeds, 9), shares, SIZE, 4, SIZE.context)
    for i, seed in enumerate(seeds):
        assert torch.equal(together[:, i], masks_of(seed, 9, float(shares[i]), batch=4))
