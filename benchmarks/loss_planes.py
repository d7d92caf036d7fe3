"""The loss on a plane of weights: points in batches and in threads, beside a loop over the points.

    python benchmarks/loss_planes.py [--quick]

Both use all threads of PyTorch, on a GPT of 0.9 million parameters, and must agree within 1e-6. The loop sets the
weights and reads the text once for each point: ``SummedLoss.value``, and the model itself with fused attention.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.func import functional_call
from torch.nn import functional

from bench import AGAINST, against, command, show, write
from toposcope.family.model import GPT, build
from toposcope.family.run import ModelSize
from toposcope.models.family_model import FamilyModel
from toposcope.models.loss_planes import Sample, evaluate, grid_sample, random_directions
from toposcope.models.summed_loss import SummedLoss, text_loss
from toposcope.models.texts import TokenSequence
from toposcope.typing import Vector

SIZE = ModelSize(hidden=128, layers=4, heads=4, vocabulary=512, context=128)
TEXTS = ((8, 128), (4, 64), (1, 64))
"""Sequences and their lengths."""
PACKAGES = ("toposcope", "torch", "numpy")


@command("loss_planes", "a plane of 5 x 5 points")
def main(*, quick: bool, repeats: int, out: Path) -> None:
    """Time planes of 51 x 51 points."""
    side, rows = 5 if quick else 51, []
    for count, length in TEXTS:
        model = build(SIZE).eval()
        tokens = torch.from_numpy(np.random.default_rng(0).integers(0, SIZE.vocabulary, (count, length)))
        loss = text_loss(
            FamilyModel(model, "GPT", torch.device("cpu")), [TokenSequence(tuple(row)) for row in tokens.tolist()]
        )
        directions, sample = random_directions(loss.point, loss.blocks, 0), grid_sample((side, side), 1.0)
        loops = {
            "loop over SummedLoss.value": partial(in_a_loop, loss, directions, sample),
            "loop over the model": partial(with_the_model, model, loss, directions, sample, tokens),
        }
        work = f"{side} x {side} points, {count} x {length} tokens"
        rows += against(work, lambda: evaluate(loss, directions, sample).values, loops, repeats)  # noqa: B023
    show(rows, AGAINST, f"The loss on a plane, {torch.get_num_threads()} threads")
    if not quick:
        facts = {"threads": torch.get_num_threads(), "parameters": SIZE.n_parameters}
        write("loss_planes", out, facts, {"loss on a plane": (rows, AGAINST)}, PACKAGES)


def in_a_loop(loss: SummedLoss, directions: torch.Tensor, sample: Sample) -> Vector:
    """Return the losses, one point after the other."""
    return np.array([loss.value(loss.point + a * directions[0] + b * directions[1]) for a, b in sample.coordinates])


def with_the_model(
    model: GPT, loss: SummedLoss, directions: torch.Tensor, sample: Sample, tokens: torch.Tensor
) -> Vector:
    """Return the losses, each by the model itself with its weights replaced."""
    losses = []
    with torch.inference_mode():
        for a, b in sample.coordinates:
            parameters = loss.parameters(loss.point + a * directions[0] + b * directions[1])
            logits = functional_call(model, dict(zip(loss.blocks, parameters, strict=True)), (tokens[:, :-1],))
            losses.append(float(functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())))
    return np.array(losses)


if __name__ == "__main__":
    main()
