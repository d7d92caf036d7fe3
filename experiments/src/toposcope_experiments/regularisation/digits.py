"""The digits of each run: which are trained on, validated and tested on, with which labels."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from toposcope_experiments.regularisation.design import N_CLASSES, N_TRAINING, N_VALIDATION, DigitRun

PIXEL_RANGE = 16


class Labelled(NamedTuple):
    """Digits of several runs."""

    images: Tensor  # shape (runs, n, 64); pixels from 0 to 1
    labels: Tensor  # shape (runs, n)


class DigitSets(NamedTuple):
    """The digits of several runs; the labels of the first two may be random, those of the test are true."""

    training: Labelled
    validation: Labelled
    test: Labelled


def digit_sets(runs: Sequence[DigitRun]) -> DigitSets:
    """Draw the digits of runs that train on equally many; each run's depend on its own name alone.

    The digits are the 1,797 of 8 x 8 pixels that come with scikit-learn (Alpaydin & Kaynak 1998, a part of them).
    """
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    images, true = torch.tensor(pixels / PIXEL_RANGE, dtype=torch.float32), torch.tensor(classes, dtype=torch.int64)
    places = torch.stack([torch.randperm(len(images), generator=run.generator("digits")) for run in runs])
    labels = torch.stack([_disturbed(true, run) for run in runs])
    n_training = round(runs[0].condition.share * N_TRAINING)
    ends = (0, n_training), (N_TRAINING, N_TRAINING + N_VALIDATION), (N_TRAINING + N_VALIDATION, len(images))
    parts = [
        Labelled(images[places[:, start:end]], chosen.gather(1, places[:, start:end]))
        for (start, end), chosen in zip(ends, (labels, labels, true.expand_as(labels)), strict=True)
    ]
    return DigitSets(*parts)


def _disturbed(true: Tensor, run: DigitRun) -> Tensor:
    """Return the labels of all digits, some of them drawn anew; a drawn label may be the true one."""
    generator = run.generator("labels")
    drawn = torch.randint(N_CLASSES, true.shape, generator=generator)
    order = torch.randperm(len(true), generator=generator)
    random = torch.zeros(len(true), dtype=torch.bool)
    random[order[: round(run.condition.random_labels * len(true))]] = True
    return torch.where(random, drawn, true)


def order_of_pass(runs: Sequence[DigitRun], number: int, n_training: int) -> Tensor:
    """Return the order in which each run sees its digits in one pass over them, shape (runs, n_training)."""
    return torch.stack([torch.randperm(n_training, generator=run.generator("order", number)) for run in runs])
