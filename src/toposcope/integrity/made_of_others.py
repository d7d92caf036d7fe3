"""Checkpoints that are made of others: copies with noise, interpolated and extrapolated ones."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.integrity.finding import Suspect, steps_text
from toposcope.integrity.histories import NEARBY, History

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).
MIN_OF_LINE = 4  # checkpoints among which a line is judged
MIN_SHARE = 0.01  # of the way between two checkpoints, that another on their line is from either
MAX_COPY = 1e-3  # distance of a copy with noise, in units of the smallest move nearby; schedules reach a tenth
MAX_OFF_LINE = 1e-4  # squared distance from the line through both neighbours, relative to that nearby


def copied(histories: Sequence[History]) -> list[Suspect]:
    """Find checkpoints that differ by far less than weights move in any interval nearby, though not by nothing."""
    layers: dict[tuple[int, int], list[str]] = defaultdict(list)
    matrices = [history for history in histories if history.is_matrix]
    for history in matrices:
        moves, elapsed, floor = history.squared_moves, np.diff(history.steps), history.rounding_floor()
        for lag, distances in enumerate(history.lagged_distances(2 * NEARBY), start=1):
            # As far as it moves before, between or after them, whichever is slowest, if its way were straight.
            paces = np.pad(moves / elapsed**2, 2, constant_values=-np.inf)
            windows = sliding_window_view(paces, lag + 4)
            parts = [windows[:, :2].max(axis=1), windows[:, -2:].max(axis=1)]
            # A single checkpoint that is far away makes no others copies.
            parts += [np.median(windows[:, 2:-2], axis=1)] if lag > 1 else []
            slowest = np.min([np.where(part >= 0, part, np.inf) for part in parts], axis=0)
            usual = slowest * np.minimum(elapsed[: len(distances)], elapsed[lag - 1 :]) ** 2
            for k in np.flatnonzero((distances > 0) & (distances + floor[lag:] < MAX_COPY**2 * usual)).tolist():
                layers[int(history.steps[k]), int(history.steps[k + lag])].append(history.name)
    suspects = []
    for steps, names in sorted(layers.items()):
        reason = f"steps {steps[0]} and {steps[1]} differ by less than a thousandth of a move nearby: a copy with noise"
        most = 2 * len(names) > len(matrices)
        layers_of = [history.name for history in histories] if most else names
        suspects.append(Suspect(steps, layers_of, "duplicate" if most else "still", reason))
    return suspects


def straight(histories: Sequence[History]) -> list[Suspect]:
    """Find stretches on a line to the last digit, while nearby nothing is: interpolated, or extrapolated."""
    lines: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for history in histories:
        if not history.is_matrix or len(history.steps) < MIN_OF_LINE:
            continue
        values = history.values
        across, part = values[2:] - values[:-2], values[1:-1] - values[:-2]
        squares = np.square(across).sum(axis=1)
        shares = np.einsum("ij,ij->i", across, part) / np.where(squares > 0, squares, 1)
        rests = np.square(part - shares[:, None] * across).sum(axis=1)
        # Weights that only shrink or grow lie on a line, too.
        turned = squares - np.einsum("ij,ij->i", across, values[:-2]) ** 2 / history.squared_norms[:-2]
        floor = history.rounding_floor()[1:-1]
        on_line = (rests < floor) & (np.minimum(np.abs(shares), np.abs(shares - 1)) > MIN_SHARE)
        if 2 * on_line.sum() > len(on_line):
            continue
        worst = (rests + floor) / np.maximum(turned, floor)
        for begin, end in np.flatnonzero(np.diff(np.pad(on_line.astype(np.int8), 1))).reshape(-1, 2).tolist():
            near = range(max(0, begin - NEARBY), min(len(rests), end + NEARBY))
            off = [k for k in near if not on_line[k]]
            if off and worst[begin:end].max() * max(squares[off]) < MAX_OFF_LINE * min(rests[off]):
                line = tuple(history.steps[begin : end + 2].tolist())
                lines[line].append(history.name)
    suspects = []
    for line, names in sorted(lines.items()):
        # Of three, each may be made of the other two.
        which = "one of them is" if len(line) == 3 else "those between its ends are"
        reason = f"{steps_text(line)} lie on a line, to the last digit: {which} interpolated or extrapolated"
        suspects.append(Suspect(line if len(line) == 3 else line[1:-1], names, "off path", reason))
    return suspects
