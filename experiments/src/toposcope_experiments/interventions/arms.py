"""The arms of an intervention: what is done to the gradients of a run, paired with the other arms by seed."""

from dataclasses import dataclass

from toposcope_experiments.interventions.results import (
    BASE,
    CHAOS,
    DOWN,
    PLAIN,
    RANDOM,
    STATISTIC,
    TWIN,
    UNDIRECTED,
    UP,
)

STEERED = (TWIN, *PLAIN)  # placebos whose share follows the dose of the statistic
KINDS = (BASE, CHAOS, STATISTIC, *STEERED, RANDOM)
CHAOS_SHARE = 1e-4  # of noise, which is a rounding error for what a run learns, and yet sends it elsewhere


@dataclass(frozen=True)
class Arm:
    """One treatment."""

    kind: str
    direction: int  # UP or DOWN; UNDIRECTED if it has none

    @property
    def name(self) -> str:
        """Name of the arm and its direction."""
        return self.kind + {UP: "_up", DOWN: "_down", UNDIRECTED: ""}[self.direction]


def arms_of(kinds: tuple[str, ...]) -> list[Arm]:
    """Return the arms of some kinds; the two directions of a kind follow each other."""
    return [
        Arm(kind, direction)
        for kind in KINDS
        if kind in kinds
        for direction in ((UNDIRECTED,) if kind in (BASE, CHAOS) else (UP, DOWN))
    ]
