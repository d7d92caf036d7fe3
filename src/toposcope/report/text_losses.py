"""How well each run predicts the fixed text at its last checkpoint, and whether runs can be compared by it."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from toposcope.analysis.trajectory import TEXT
from toposcope.probes.feature import NETWORK
from toposcope.report.formats import plain
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Spec, number_of

STATISTICS = {"loss": "loss (nats per token)", "perplexity": "perplexity", "bits_per_byte": "bits per byte"}
TOKENS = "n_tokens"
GROUP = "the text, at its last checkpoint"
NOT_COMPARABLE = (
    "The runs read the same text as different numbers of tokens: losses in nats per token of different tokenizers do "
    "not compare between runs, bits per byte do."
)


@dataclass(frozen=True, eq=False)
class TextLosses:
    """What `language_modelling` found at the last checkpoint that it measured of each run."""

    # run -> ``text loss``, ``text perplexity``, ``text bits_per_byte`` and ``text n_tokens``; None where not known
    by_run: Mapping[str, Mapping[str, float | None]]

    @classmethod
    def of(cls, data: StudyData) -> "TextLosses":
        """Read what the first such probe declared has measured."""
        frame = data.frame
        if "probe" not in frame.columns:
            return cls({})
        options = data.labels.filter(probe=TEXT).get_column("options").to_list()[:1]
        rows = frame.filter(pl.col("options").is_in(options), probe=TEXT, layer=NETWORK)
        by_run = {}
        for run in rows.get_column("run").unique(maintain_order=True):
            last_rows = rows.filter(pl.col("step") == pl.col("step").max().over("run"), run=run)
            values = dict(last_rows.select("statistic", "value").iter_rows())
            by_run[run] = {f"text {name}": values.get(name) for name in (*STATISTICS, TOKENS)}
        return cls(by_run)

    @property
    def tokens_differ(self) -> bool:
        """Whether runs read the text in different numbers of tokens."""
        return len({n for found in self.by_run.values() if (n := found[f"text {TOKENS}"]) is not None}) > 1

    def columns(self) -> list[Spec]:
        """Return the columns of a table of runs; none where nothing was measured."""
        return [_column(title, f"text {name}") for name, title in STATISTICS.items()] if self.by_run else []


def _column(title: str, key: str) -> Spec:
    column, _ = number_of(title, key, group=GROUP)
    return column, lambda row: plain(row.get(key))
