"""Formulas in words with their sources, and the rule of the verdict."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.adjustment import NAMES
from toposcope.analysis.association_verdict import RULE
from toposcope.analysis.verdict import GLOSSES
from toposcope.report.document import Block, Picture, Terms, paragraph
from toposcope.report.not_made import not_made_table, sentences
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.wording import sentence

QUANTITIES = Terms(
    (
        ("analysed layers", "every weight matrix but embeddings and positions; a tied head once."),
        ("neural persistence", "a matrix as a complete bipartite graph, its edges entering by descending |w| / max "
         "|w|; the mean of 1 − a over the edges a of the maximum spanning tree, every weight counted (Rieck et al. "
         "2019, arXiv:1812.09764, Eq. 1). Of the network: the mean over layers."),
        ("H0 and H1", "Vietoris–Rips persistence of the rows of a matrix, Euclidean, in float64. Totals are sums of "
         "bar lengths, over layers for the network. H0 is exact on all rows. So is H1, unless fewer points are "
         "declared or memory has no room for them; then its bars are those of farthest-point landmarks, and the table "
         "of features carries their cover radius r (the bottleneck error is at most 2r), while the number of bars and "
         "their births are exact all the same. “Pooled” is one cloud of all layers' rows, padded with zeros to the "
         "widest."),
        ("loss", "the validation loss on a fixed held-out set; without one, the training loss averaged over "
         "the last 100 steps, or since the checkpoint before if that is less. The loss of a single batch is shown "
         "next to it, as published."),
        ("covariates", "quantities that drift with training whatever the model learns: the step, the cumulative "
         "learning rate, the weight norm. Almost any feature correlates with the loss because both follow them."),
        ("rho", "Spearman's rank correlation over the checkpoints of one run."),
        ("block bootstrap", "resamples of blocks of neighbouring checkpoints; the block length by the rule of Politis "
         "& White 2004, at least the square root of the number of checkpoints; 1,000 resamples, percentile intervals."),
        ("effective number", "the number of independent checkpoints that the series is worth, given its "
         "autocorrelation."),
        ("circular shifts", "the share of all rotations of the loss that correlate at least as strongly."),
        ("partial correlation", "given the step: correlation of ranks after the ranks of the step are regressed out of "
         "both. Given all covariates: rank correlation of what a regression on them leaves of both, its noise made "
         "white. p is based on the effective number of checkpoints, by the autocorrelation of the residuals."),
        ("cross-pairing", "the feature of every other run against this run's loss. If another model's feature "
         "correlates as well, the correlation reflects a trend that all runs share."),
        ("scale-free twin", "the feature divided by the power of the weights' norm that it scales with."),
        ("adjusted p", "adjusted over all rows of the association table with the same target, by the method below."),
        ("phases", "the published rule on a moving average of 5 checkpoints: the step of the largest change, and the "
         "first step where 3 changes in a row stay under 10% of it. Next to it, change points, the number of which a "
         "Bayesian information criterion chooses, with bootstrap intervals, and a test against a smooth trend."),
        ("scaling", "f(N) = a N^b by least squares of the logarithms, and with an offset; resampled over runs."),
        ("random matrices", "of each layer's shape, scaled to its norm; neural persistence and H0 with their spread."),
        ("comparing correlations", "Williams' test for two correlations with the same loss (Steiger 1980), and a block "
         "bootstrap; Fisher's z for correlations of independent runs."),
    )
)  # fmt: skip


def _blocks(data: StudyData, _: Sequence[Picture]) -> Iterable[Block | None]:
    from toposcope.report.sections import report_sections  # which this section is one of

    return (
        QUANTITIES,
        *(block for section in report_sections() for block in section.methods(data)),
        Terms(tuple(GLOSSES.items())),
        paragraph(RULE),
        paragraph(f"Here p-values are adjusted by the method of {NAMES[data.adjust]}."),
        *(paragraph(sentence(note), note=True) for note in (*data.notes, *sentences(data.tables["not_made"]))),
    )


def _summary(data: StudyData) -> Sequence[str]:
    """Say what to install where published numbers are declared and no section sets them next to what was found."""
    from toposcope.report.sections import report_sections

    if data.declaration.published is None or any(section.anchor == "published" for section in report_sections()):
        return ()
    return ("Published numbers are declared; toposcope-experiments, if installed, sets them next to what was found.",)


def _not_made(data: StudyData) -> pl.DataFrame:
    from toposcope.report.sections import report_sections

    return not_made_table(data, report_sections())


SECTION = ReportSection(
    anchor="methods",
    title="Methods",
    position=920,
    tables={"not_made": _not_made},
    blocks=_blocks,
    summary=_summary,
    summary_position=900,
    notes=lambda data: sentences(data.tables["not_made"]),
)
