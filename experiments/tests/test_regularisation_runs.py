"""Training on digits: runs that do not affect each other, conditions that do what they say, and resuming."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from toposcope.errors import ToposcopeError
from toposcope.homology import neural_persistence
from toposcope_experiments.regularisation.design import (
    BATCH_NORM,
    BATCH_SIZE,
    CONDITIONS,
    DROPOUT,
    LEARNED_SCALE,
    N_TRAINING,
    N_VALIDATION,
    PLAIN,
    Condition,
    Design,
    DigitRun,
)
from toposcope_experiments.regularisation.digits import digit_sets, order_of_pass
from toposcope_experiments.regularisation.features import (
    BEYOND,
    FEATURES,
    LARGEST,
    NORM,
    NP,
    NP_ONE_SCALE,
    PLACEBO,
    SPECTRAL_NORM,
    STABLE_RANK,
    network_features,
)
from toposcope_experiments.regularisation.networks import (
    Parameters,
    dropout_masks,
    initial_statistics,
    initial_weights,
    layer_matrices,
    logits,
)
from toposcope_experiments.regularisation.training import LOGGED, TEST_ACCURACY, TRAIN_LOSS, train
from toposcope_experiments.small_networks import training as trainer

WIDTH = 12
SMALL = Design(seeds=3, epochs=4, width=WIDTH)
BY_NAME = {condition.name: condition for condition in CONDITIONS}


def in_float64(runs: list[DigitRun]) -> Parameters:
    """Return initial weights off the grid of float32, biases included."""
    return {name: (w.double() + 0.01).requires_grad_() for name, w in initial_weights(runs, WIDTH).items()}


def gradients(runs: list[DigitRun], images: Tensor, labels: Tensor) -> Parameters:
    weights, condition = in_float64(runs), runs[0].condition
    statistics = {name: s.double() for name, s in initial_statistics(runs, WIDTH).items()}
    masks = dropout_masks(runs, 3, images.shape[1], WIDTH)
    outputs = logits(condition, weights, statistics, images, None if masks is None else masks.double(), training=True)
    functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum").backward()  # type: ignore[no-untyped-call]
    return {name: w.grad for name, w in weights.items() if w.grad is not None} | statistics


@pytest.mark.parametrize("condition", [PLAIN, DROPOUT, BATCH_NORM, LEARNED_SCALE], ids=lambda c: c.name)
def test_a_run_among_others_is_the_run_alone(condition: Condition) -> None:
    runs = SMALL.runs(condition)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((3, 8, 64), generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (3, 8), generator=generator)
    together = gradients(runs, images, labels)
    for i, run in enumerate(runs):
        for name, gradient in gradients([run], images[i : i + 1], labels[i : i + 1]).items():
            torch.testing.assert_close(together[name][i], gradient[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("condition", [PLAIN, BATCH_NORM], ids=lambda c: c.name)
def test_a_diverged_neighbour_changes_no_bit(condition: Condition) -> None:
    runs = SMALL.runs(condition)[:2]
    weights, statistics = initial_weights(runs, WIDTH), initial_statistics(runs, WIDTH)
    images = torch.rand((2, 8, 64), generator=torch.Generator().manual_seed(0))
    before = logits(condition, weights, statistics, images, training=True)
    for weight in weights.values():
        weight[1] = torch.nan
    assert torch.equal(logits(condition, weights, statistics, images, training=True)[0], before[0])
    assert all(s[0].isfinite().all() for s in statistics.values())


def test_batch_normalisation_is_torch_s() -> None:
    runs = SMALL.runs(BATCH_NORM)[:1]
    weights, statistics = in_float64(runs), {n: s.double() for n, s in initial_statistics(runs, WIDTH).items()}
    layers: list[nn.Module] = []
    for i in range(3):
        _, n_inputs, n_outputs = weights[f"weight{i}"].shape
        linear = nn.Linear(n_inputs, n_outputs, dtype=torch.float64)
        linear.weight.data, linear.bias.data = weights[f"weight{i}"][0].T.detach(), weights[f"bias{i}"][0, 0].detach()
        layers.append(linear)
        if i < 2:
            norm = nn.BatchNorm1d(WIDTH, dtype=torch.float64)
            norm.weight.data, norm.bias.data = weights[f"scale{i}"][0, 0].detach(), weights[f"shift{i}"][0, 0].detach()
            layers += [norm, nn.ReLU()]
    theirs = nn.Sequential(*layers)
    generator = torch.Generator().manual_seed(0)
    for training in (True, True, False):
        images = torch.rand((1, 16, 64), generator=generator, dtype=torch.float64)
        theirs.train(training)
        found = logits(BATCH_NORM, weights, statistics, images, training=training)
        torch.testing.assert_close(found[0], theirs(images[0]))


def test_dropout_drops_half_and_keeps_the_mean() -> None:
    runs = SMALL.runs(DROPOUT)
    masks = dropout_masks(runs, 1, 400, WIDTH)
    assert masks is not None
    assert set(masks.flatten().tolist()) == {0.0, 2.0}
    assert float(masks.mean()) == pytest.approx(1, abs=0.03)
    again, other = dropout_masks(runs, 1, 400, WIDTH), dropout_masks(runs, 2, 400, WIDTH)
    assert again is not None
    assert other is not None
    assert torch.equal(masks, again)
    assert not torch.equal(masks, other)
    assert not torch.equal(masks[0], masks[1])
    assert dropout_masks(SMALL.runs(PLAIN), 1, 4, WIDTH) is None


def test_the_learned_scale_normalises_nothing() -> None:
    runs = SMALL.runs(LEARNED_SCALE)
    images = torch.rand((3, 8, 64), generator=torch.Generator().manual_seed(0))
    weights = initial_weights(runs, WIDTH)
    found = logits(LEARNED_SCALE, weights, {}, images, training=True)
    torch.testing.assert_close(found, logits(PLAIN, weights, {}, images))
    weights["scale0"] *= 2
    weights["weight1"] /= 2
    torch.testing.assert_close(logits(LEARNED_SCALE, weights, {}, images), found)


def test_conditions_differ_in_what_they_say() -> None:
    n_tested = 1797 - N_TRAINING - N_VALIDATION
    for name, share in (("plain", 1), ("half the data", 1 / 2), ("an eighth of the data", 1 / 8)):
        sets = digit_sets(SMALL.runs(BY_NAME[name]))
        assert [part.labels.shape[1] for part in sets] == [N_TRAINING * share, N_VALIDATION, n_tested]
        assert N_TRAINING * share % BATCH_SIZE == 0
        assert sets.training.images.min() == 0
        assert sets.training.images.max() == 1
    for name, wrong in (("plain", 0.0), ("half the labels random", 0.45), ("all labels random", 0.9)):
        runs = [DigitRun(replace(BY_NAME[name], name="plain"), number) for number in range(3)]  # the same digits
        true, noisy = digit_sets(SMALL.runs(PLAIN)), digit_sets(runs)
        assert torch.equal(true.test.labels, noisy.test.labels)
        for part, truth in zip(noisy[:2], true[:2], strict=True):
            assert torch.equal(part.images, truth.images)
            assert float((part.labels != truth.labels).float().mean()) == pytest.approx(wrong, abs=0.06)
    for name, n_layers in (("1 hidden layer", 1), ("plain", 2), ("3 hidden layers", 3)):
        assert len(layer_matrices(BY_NAME[name], initial_weights(SMALL.runs(BY_NAME[name]), WIDTH))) == n_layers + 1


def test_every_digit_is_seen_once_in_each_pass() -> None:
    order = order_of_pass(SMALL.runs(PLAIN), 0, 64)
    assert torch.equal(order.sort(dim=1).values, torch.arange(64).expand(3, -1))
    assert not torch.equal(order[0], order[1])
    assert not torch.equal(order, order_of_pass(SMALL.runs(PLAIN), 1, 64))


def test_features_are_those_of_the_homology_and_of_numpy() -> None:
    generator = np.random.default_rng(0)
    layers = [generator.normal(size=shape) for shape in ((9, 7), (7, 5))]
    found = network_features(layers, 0)
    scale = max(np.abs(layer).max() for layer in layers)
    assert found[NP] == pytest.approx(np.mean([neural_persistence(layer).normalized for layer in layers]))
    at_one = [neural_persistence(layer, scale=scale).normalized for layer in layers]
    assert found[NP_ONE_SCALE] == pytest.approx(np.mean(at_one))
    assert found[BEYOND] == pytest.approx(found[NP] - found[PLACEBO])
    assert found[NORM] == pytest.approx(np.mean([np.linalg.norm(layer) for layer in layers]))
    assert found[LARGEST] == pytest.approx(np.mean([np.abs(layer).max() for layer in layers]))
    assert found[SPECTRAL_NORM] == pytest.approx(np.mean([np.linalg.norm(layer, 2) for layer in layers]))
    ranks = [(np.linalg.norm(layer) / np.linalg.norm(layer, 2)) ** 2 for layer in layers]
    assert found[STABLE_RANK] == pytest.approx(np.mean(ranks))
    assert list(found) == list(FEATURES)


def test_the_placebo_keeps_entries_and_loses_structure() -> None:
    generator = np.random.default_rng(0)
    hub = 0.1 * np.abs(generator.normal(size=(40, 30)))
    hub[0], hub[:, 0] = 1.0, 1.0  # one unit joins all: every other is connected at once
    found = network_features([hub], 0)
    assert found[NP] == 0
    assert found[PLACEBO] > 0.1
    noise = generator.normal(size=(40, 30))
    several = [network_features([noise], seed)[BEYOND] for seed in range(20)]
    assert abs(np.mean(several)) < 0.02
    assert network_features([noise], 1) == network_features([noise], 1)
    assert network_features([noise], 1)[PLACEBO] != network_features([noise], 2)[PLACEBO]


def test_strange_networks_have_no_features() -> None:
    assert np.isnan(list(network_features([np.full((3, 3), np.nan)], 0).values())).all()
    zero = network_features([np.zeros((3, 3)), np.eye(3)], 0)
    at_one = [neural_persistence(np.zeros((3, 3)), scale=1.0), neural_persistence(np.eye(3), scale=1.0)]
    assert zero[NP_ONE_SCALE] == pytest.approx(np.mean([each.normalized for each in at_one]))
    assert np.isnan(zero[STABLE_RANK])


@pytest.mark.slow
@pytest.mark.parametrize("condition", [DROPOUT, BATCH_NORM, CONDITIONS[-1]], ids=lambda c: c.name)
def test_killed_and_resumed_is_never_killed(
    condition: Condition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "SAVE_EVERY", 4)
    whole = train(SMALL, condition, tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(_: str, done: int, __: int) -> None:
        if done == 64:
            raise Killed

    seen: list[int] = []
    with pytest.raises(Killed):
        train(SMALL, condition, tmp_path / "cut", kill)
    resumed = train(SMALL, condition, tmp_path / "cut", lambda _, done, __: seen.append(done))
    assert seen[0] == 64  # what was done is not done again
    assert list(whole) == [*LOGGED, *FEATURES]
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)
    files = [(tmp_path / name / f"{condition.name}.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]
    assert (whole[TRAIN_LOSS][-1] < whole[TRAIN_LOSS][0]).all()
    with pytest.raises(ToposcopeError, match="belongs to another design"):
        train(replace(SMALL, epochs=5), condition, tmp_path / "cut")


def test_networks_learn_digits(tmp_path: Path) -> None:
    found = train(Design(seeds=2, epochs=8, width=40, learning_rate=0.003), PLAIN, tmp_path)
    assert (found[TEST_ACCURACY][-1] > 0.85).all()


@pytest.mark.parametrize(("wrong", "message"), [({"seeds": 1}, "at least 2"), ({"epochs": 3}, "at least 4")])
def test_a_design_out_of_range_is_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ToposcopeError, match=message):
        Design(**wrong)
