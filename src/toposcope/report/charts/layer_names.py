"""Layers in the order of the network, and their short names."""

import re
from collections import Counter
from collections.abc import Sequence

from toposcope.analysis.trajectories import Trajectory

BLOCK = re.compile(r"(?:^|\.)(\d+)\.")


def in_order(trajectory: Trajectory) -> list[str]:
    """Return the layers by block, the head last; checkpoint files may hold them in another order."""

    def place(layer: str) -> tuple[bool, int]:
        block = BLOCK.search(layer)
        return trajectory.roles.get(layer) == "head", int(block.group(1)) if block else -1

    return sorted(trajectory.layers, key=place)


def short_names(names: Sequence[str], roles: dict[str, str]) -> list[str]:
    """Return the number of a layer's block and its role, or the layer's own name where that is not unique."""
    labels = []
    for name in names:
        block = BLOCK.search(name)
        role = roles.get(name) or "other"
        labels.append(f"{block.group(1)} {role}" if block else role)
    counts = Counter(labels)
    return [label if counts[label] == 1 else name for label, name in zip(labels, names, strict=True)]


def in_words(label: str) -> str:
    """Write a short name in a sentence: "mlp.in of block 0"."""
    block, _, role = label.partition(" ")
    return f"{role} of block {block}" if role and block.isdigit() else label
