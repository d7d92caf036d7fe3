"""Precursors against their definitions, by other code, one run at a time."""

import numpy as np
import pytest
import torch

from toposcope.family import ModelSize, build
from toposcope.homology import neural_persistence, rips
from toposcope_experiments.early_warnings.model import Layout, Shape, Taps, losses
from toposcope_experiments.early_warnings.precursors import EMBEDDING, MATRICES, PRECURSORS, Snapshot
from toposcope_experiments.early_warnings.traces import NETWORK

SIZE = ModelSize(hidden=6, layers=2, heads=2, vocabulary=11, context=8)
SHAPES = [Shape(SIZE), Shape(SIZE, post_norm=True), Shape(SIZE, qk_norm=True), Shape(SIZE, bf16=True)]
RUNS = 3


def snapshot(shape: Shape) -> Snapshot:
    layout, generator = Layout(shape.size), torch.Generator().manual_seed(5)
    models = [build(shape.size, seed=seed, initial_scale=10) for seed in range(RUNS)]
    weights = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models])
    tokens = torch.randint(0, shape.size.vocabulary, (RUNS, 4, shape.size.context + 1), generator=generator)
    taps = Taps()
    losses(shape, layout.named(weights), tokens, taps)
    gradient, update = torch.randn(2, *weights.shape, generator=generator)
    directions = torch.randn(2, *weights.shape, generator=generator)
    rates = torch.full((RUNS, 1), 0.1)
    adam = torch.rand(weights.shape, generator=generator) + 0.5
    return Snapshot(shape, layout, weights, gradient, update, adam, rates, taps, tokens, directions)


def test_the_plain_model_is_that_of_the_family() -> None:
    tokens = torch.randint(0, SIZE.vocabulary, (RUNS, 4, SIZE.context + 1))
    models = [build(SIZE, seed=seed) for seed in range(RUNS)]
    weights = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models])
    expected = torch.stack([model.loss(each) for model, each in zip(models, tokens, strict=True)])
    assert torch.allclose(losses(Shape(SIZE), Layout(SIZE).named(weights), tokens), expected, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.name))
def test_every_precursor_has_its_places_and_is_finite(shape: Shape) -> None:
    taken = snapshot(shape)
    for name, precursor in PRECURSORS.items():
        found = precursor.measure(taken)
        assert found.shape == (RUNS, len(precursor.places(SIZE.layers))), name
        assert found.isfinite().all(), name


def test_norms_are_those_of_the_parameters() -> None:
    taken = snapshot(SHAPES[0])
    places = PRECURSORS["gradient_norm"].places(SIZE.layers)
    assert places == (NETWORK, EMBEDDING, "layers.0", "layers.1")
    found = PRECURSORS["update_ratio"].measure(taken)
    for place, prefixes in zip(places, [("",), ("token_emb", "pos_emb"), ("layers.0.",), ("layers.1.",)], strict=True):
        parts = []
        for values in (taken.update, taken.weights):
            named = taken.layout.named(values)
            parts.append(
                torch.cat([v.flatten(1) for n, v in named.items() if n.startswith(prefixes)], dim=1).norm(dim=1)
            )
        assert torch.allclose(found[:, places.index(place)], parts[0] / parts[1]), place


def test_numbers_of_weights_are_means_over_the_matrices_of_a_block() -> None:
    taken = snapshot(SHAPES[0])
    named = taken.layout.named(taken.weights)

    def expected(name: str, W: np.ndarray) -> float:
        sigma = np.linalg.svd(W, compute_uv=False)
        shares, norm = sigma / sigma.sum(), np.linalg.norm(W)
        match name:
            case "stable_rank":
                return float(norm**2 / sigma[0] ** 2)
            case "effective_rank":
                return float(np.exp(-(shares * np.log(shares)).sum()))
            case "neural_persistence":
                return neural_persistence(W).mean
        bars = rips(W, max_dimension=int(name[1]))[int(name[1])]
        total = float(bars.lifetimes[np.isfinite(bars.lifetimes)].sum())
        return total if name.endswith("total") else total / float(norm)

    for name in PRECURSORS:
        if not name.endswith(("rank", "persistence", "total", "free")):
            continue
        found = PRECURSORS[name].measure(taken)
        for run in range(RUNS):
            blocks = [
                np.mean([expected(name, named[f"layers.{i}.{m}.weight"][run].double().numpy()) for m in MATRICES])
                for i in range(SIZE.layers)
            ]
            assert np.allclose(found[run].numpy(), [np.mean(blocks), *blocks], rtol=1e-4), name


def test_attention_and_activations() -> None:
    taken = snapshot(SHAPES[0])
    for i in range(SIZE.layers):
        logits = taken.taps.logits[i].double().numpy()
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1).reshape(RUNS, -1).mean(1)
        x = taken.taps.residual[i].double().numpy().reshape(RUNS, -1)
        centred = x - x.mean(1, keepdims=True)
        kurtosis = (centred**4).mean(1) / (centred**2).mean(1) ** 2
        for name, known in {
            "attention_logit_max": logits.reshape(RUNS, -1).max(1),
            "attention_entropy": entropy,
            "activation_kurtosis": kurtosis,
        }.items():
            assert np.allclose(PRECURSORS[name].measure(taken)[:, i + 1].numpy(), known, rtol=1e-4), name


def test_curvature_is_the_top_eigenvalue_of_the_hessian() -> None:
    shape = Shape(ModelSize(hidden=2, layers=1, heads=1, vocabulary=5, context=4))
    taken = snapshot(shape)
    weights = taken.weights.clone().requires_grad_()
    loss = losses(shape, taken.layout.named(weights), taken.probed).sum()
    (slope,) = torch.autograd.grad(loss, weights, create_graph=True)
    rows = [torch.autograd.grad(slope[:, i].sum(), weights, retain_graph=True)[0] for i in range(weights.shape[1])]
    hessian = torch.stack(rows, dim=1).double()
    for name, scale in {
        "sharpness_rate": torch.ones_like(taken.preconditioner),
        "preconditioned_sharpness_rate": taken.preconditioner.rsqrt(),
    }.items():
        for _ in range(100):
            found = PRECURSORS[name].measure(taken)
        values = torch.linalg.eigvalsh(scale[:, :, None] * hessian * scale[:, None])
        top = values.gather(1, values.abs().argmax(1, keepdim=True))
        assert torch.allclose(found.double(), 0.1 * top, rtol=0.02), name
