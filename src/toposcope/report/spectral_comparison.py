"""Topology against spectral measures of the same hidden states: which correlates with the loss more strongly."""

from dataclasses import dataclass

import polars as pl

from toposcope.analysis.association import STEP
from toposcope.analysis.verdict import LEVEL

BLOCKS, WILLIAMS, FISHER = "block bootstrap", "Williams", "Fisher z"


@dataclass(frozen=True)
class SpectralComparisonCounts:
    """Counts of the comparisons of a topological feature with a spectral measure, by outcome.

    Attributes
    ----------
    total, stronger, weaker, undecided : int
        Comparisons; those in which topology correlates more strongly, less strongly, or neither, by the block
        bootstrap's 95% interval.
    fisher, williams : int
        Comparisons that each test would call significant, in either direction.
    """

    total: int
    stronger: int
    weaker: int
    undecided: int
    fisher: int
    williams: int

    @classmethod
    def of(cls, comparisons: pl.DataFrame) -> "SpectralComparisonCounts":
        """Count the comparisons in each of these classes."""
        rows = spectral_comparisons(comparisons)
        if not len(rows):
            return cls(0, 0, 0, 0, 0, 0)
        blocks = rows.filter(pl.col("low").is_finite(), test=BLOCKS)
        stronger, weaker = len(blocks.filter(pl.col("low") > 0)), len(blocks.filter(pl.col("high") < 0))
        claimed = [len(rows.filter(pl.col("p").fill_nan(1.0) < LEVEL, test=test)) for test in (FISHER, WILLIAMS)]
        return cls(len(blocks), stronger, weaker, len(blocks) - stronger - weaker, *claimed)

    def sentence(self) -> str:
        """State the counts in a sentence."""
        return (
            f"Of {self.total:,} comparisons of a topological feature with a spectral measure of the same hidden "
            f"states, topology correlates with the loss more strongly in {self.stronger:,}, less strongly in "
            f"{self.weaker:,}, and {self.undecided:,} are undecided, by a block bootstrap; Fisher's z would call "
            f"{self.fisher:,} significant and Williams' test {self.williams:,}, but both assume independent "
            "checkpoints."
        )


def spectral_comparisons(comparisons: pl.DataFrame) -> pl.DataFrame:
    """Return the comparisons with spectral measures; the others are with the step."""
    return comparisons.filter(pl.col("other") != STEP) if len(comparisons) else comparisons
