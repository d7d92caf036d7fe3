"""Training of the grokking experiment: runs that do not affect each other, and that resume where they were killed."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from toposcope.errors import ToposcopeError
from toposcope_experiments.grokking.design import (
    ARCHITECTURES,
    CONDITIONS,
    MLP,
    TRANSFORMER,
    Architecture,
    Design,
    GrokkingRun,
    pairs,
)
from toposcope_experiments.grokking.networks import N_HEADS, Parameters, forward_of, initial_weights
from toposcope_experiments.grokking.training import BETAS, WARMUP_STEPS, Pairs, train
from toposcope_experiments.small_networks import training as trainer
from toposcope_experiments.small_networks.training import EPSILON, AdamW

MODULUS = 13
SMALL = Design(modulus=MODULUS, seeds=2, steps=12, every=2)


def in_float64(runs: Sequence[GrokkingRun]) -> Parameters:
    """Return initial weights that are not on any grid of float32, biases included."""
    weights = {name: w.double() for name, w in initial_weights(runs, MODULUS).items()}
    weights["hidden_bias"] += 0.1
    return {name: w.requires_grad_() for name, w in weights.items()}


def gradients(runs: Sequence[GrokkingRun]) -> Parameters:
    weights = in_float64(runs)
    sets = Pairs.of(list(runs), MODULUS)
    replace(sets, weight=sets.weight.double()).loss(forward_of(runs[0].architecture), weights).backward()  # type: ignore[no-untyped-call]
    return {name: w.grad for name, w in weights.items() if w.grad is not None}


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_a_run_among_others_is_the_run_alone(architecture: Architecture) -> None:
    runs = SMALL.runs(architecture)
    together = gradients(runs)
    assert len(together) == len(in_float64(runs))
    for i, run in enumerate(runs):
        for name, gradient in gradients([run]).items():
            torch.testing.assert_close(together[name][i], gradient[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_a_diverged_neighbour_changes_no_bit(architecture: Architecture) -> None:
    runs = SMALL.runs(architecture)[:2]
    first, second = (each.expand(2, -1) for each in pairs(MODULUS))
    weights = initial_weights(runs, MODULUS)
    before = forward_of(architecture)(weights, first, second)
    for weight in weights.values():
        weight[1] = torch.nan
    assert torch.equal(forward_of(architecture)(weights, first, second)[0], before[0])


def test_the_mlp_is_an_embedding_and_two_linear_layers() -> None:
    runs = SMALL.runs(MLP)[:2]
    weights = in_float64(runs)
    first, second = pairs(MODULUS)
    logits = forward_of(MLP)(weights, first.expand(2, -1), second.expand(2, -1))
    for i in range(2):
        own = {name: w[i] for name, w in weights.items()}
        both = torch.cat([own["embedding"][first], own["embedding"][second]], dim=1)
        hidden = functional.relu(both @ torch.cat([own["first"], own["second"]]) + own["hidden_bias"])
        torch.testing.assert_close(logits[i], hidden @ own["unembedding"])


def test_the_transformer_is_torch_s_attention_over_three_tokens() -> None:
    runs = SMALL.runs(TRANSFORMER)[:2]
    weights = in_float64(runs)
    first, second = pairs(MODULUS)
    logits = forward_of(TRANSFORMER)(weights, first.expand(2, -1), second.expand(2, -1))
    width = TRANSFORMER.width
    for i in range(2):
        own = {name: w[i] for name, w in weights.items()}
        tokens = torch.stack([own["embedding"][first], own["embedding"][second], own["equals"].expand(len(first), -1)])
        stream = tokens.transpose(0, 1) + own["positions"]

        def heads(name: str, stream: Tensor = stream, own: Parameters = own) -> Tensor:
            return (stream @ own[name]).view(*stream.shape[:2], N_HEADS, width // N_HEADS).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"))
        stream = stream + mixed.transpose(1, 2).flatten(2) @ own["output"]
        stream = stream + functional.relu(stream @ own["hidden"] + own["hidden_bias"]) @ own["back"]
        torch.testing.assert_close(logits[i], stream[:, -1] @ own["unembedding"])


def test_attention_survives_scores_far_apart() -> None:
    """Without weight decay a token's score may grow beyond what exp can hold."""
    weights = initial_weights(SMALL.runs(TRANSFORMER)[:1], MODULUS)
    weights["query"] *= 1e4
    first, second = (each.expand(1, -1) for each in pairs(MODULUS))
    assert forward_of(TRANSFORMER)(weights, first, second).isfinite().all()


def test_the_optimizer_is_torch_s_with_a_decay_for_each_run() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    decays = (0.0, 0.5, 2.0)
    alone = [nn.Parameter(weight.clone()) for weight in weights]
    theirs = [
        torch.optim.AdamW([p], lr=0.1, betas=BETAS, eps=EPSILON, weight_decay=d)
        for p, d in zip(alone, decays, strict=True)
    ]
    together = weights.clone().requires_grad_()
    ours = AdamW({"w": together}, 0.1, torch.tensor(decays, dtype=torch.float64), BETAS, WARMUP_STEPS)
    for step in range(1, 25):
        gradient = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
        together.grad = gradient.clone()
        ours.step(step)
        for parameter, optimizer, own in zip(alone, theirs, gradient, strict=True):
            parameter.grad = own
            optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, step / 10)
            optimizer.step()
    torch.testing.assert_close(together.detach(), torch.stack([p.detach() for p in alone]), rtol=1e-12, atol=0)


def test_conditions_differ_in_what_they_say() -> None:
    runs = {condition.name: GrokkingRun(MLP, condition, 0) for condition in CONDITIONS}
    first, second = pairs(MODULUS)
    for name, run in runs.items():
        labels, trained = run.labels(MODULUS), run.trained_pairs(MODULUS)
        assert torch.equal(labels, (first + second) % MODULUS) == (name != "random labels")
        assert len(set(trained.tolist())) == len(trained) == round(run.condition.share * MODULUS**2)
        assert run.weight_decay == (0 if name == "no weight decay" else MLP.weight_decay)
    shares = {name: len(run.trained_pairs(MODULUS)) for name, run in runs.items()}
    assert shares["too few pairs"] < shares["true labels"] == shares["random labels"]
    firsts = [run.trained_pairs(MODULUS)[:20].tolist() for run in runs.values()]
    assert len({tuple(each) for each in firsts}) == len(firsts)  # runs are independent of each other


def test_padded_pairs_count_for_nothing() -> None:
    runs = SMALL.runs(MLP)
    sets = Pairs.of(runs, MODULUS)
    few = [run.condition.name for run in runs].index("too few pairs")
    logits_only = lambda weights, first, second: torch.zeros(*first.shape, MODULUS)  # noqa: E731
    assert float(sets.loss(logits_only, {})) == pytest.approx(len(runs) * math.log(MODULUS), rel=1e-6)
    assert (sets.weight[few] > 0).sum() == len(runs[few].trained_pairs(MODULUS))
    assert (~sets.held_out[few]).sum() == len(runs[few].trained_pairs(MODULUS))
    scores = sets.scores(logits_only, {})
    assert scores.shape == (len(runs), 4)
    np.testing.assert_allclose(scores[:, [0, 2]], math.log(MODULUS), rtol=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_killed_and_resumed_is_never_killed(
    architecture: Architecture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "SAVE_EVERY", 2)
    whole = train(SMALL, architecture, tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(_: str, done: int, __: int) -> None:
        if done == 6:
            raise Killed

    seen: list[int] = []
    with pytest.raises(Killed):
        train(SMALL, architecture, tmp_path / "cut", kill)
    resumed = train(SMALL, architecture, tmp_path / "cut", lambda _, done, __: seen.append(done))
    assert seen[0] == 6  # what was done is not done again
    assert np.array_equal(whole.embeddings, resumed.embeddings)
    assert all(np.array_equal(whole.log[name], resumed.log[name]) for name in whole.log)
    files = [(tmp_path / name / f"{architecture.name}.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]
    assert not np.array_equal(whole.embeddings[0], whole.embeddings[-1])


def test_another_design_and_a_damaged_state_are_refused(tmp_path: Path) -> None:
    train(SMALL, MLP, tmp_path)
    with pytest.raises(ToposcopeError, match="belongs to another design; choose another folder, or remove it"):
        train(replace(SMALL, steps=14), MLP, tmp_path)
    path = tmp_path / "mlp.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ToposcopeError, match=r"mlp.safetensors: cannot be read \(.*\); remove it to train again"):
        train(SMALL, MLP, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"modulus": 12}, "at least 13"),
        ({"seeds": 1}, "at least 2"),
        ({"steps": 50}, "a multiple of 20"),
        ({"steps": 0}, "a multiple of 20"),
    ],
)
def test_a_design_out_of_range_is_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ToposcopeError, match=message):
        Design(**wrong)
