"""The sections of a report that say how it was made: methods, what protocols differ in, provenance."""

import platform
from collections.abc import Sequence
from importlib import metadata

from toposcope.analysis.adjustment import NAMES, Method
from toposcope.analysis.table import SEED
from toposcope.analysis.verdict import RULE
from toposcope.probes.rips import RipsProbe
from toposcope.report.document import Block, Code, Section, Terms, details, say, section
from toposcope.report.document import Preformatted as Lines
from toposcope.report.tables import Column, Table
from toposcope.study.declaration import Declaration

PACKAGES = ("toposcope", "numpy", "scipy", "numba", "gudhi", "torch", "polars", "matplotlib")

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
        ("loss", "the validation loss on a fixed held-out set; where there is none, the training loss averaged over "
         "the last 100 steps, or since the checkpoint before if that is less. The loss of a single batch is shown "
         "beside it, as published."),
        ("clocks", "what drifts with training whatever the model learns: the step, the cumulative learning rate, the "
         "weight norm. Almost any feature correlates with the loss because both follow them."),
        ("rho", "Spearman's rank correlation over the checkpoints of one run."),
        ("block bootstrap", "resamples of blocks of neighbouring checkpoints; the block length by the rule of Politis "
         "& White 2004, at least the square root of the number of checkpoints; 1,000 resamples, percentile intervals."),
        ("effective number", "checkpoints divided by how much their autocorrelations repeat one another."),
        ("circular shifts", "the share of all rotations of the loss that correlate at least as strongly."),
        ("partial correlation", "of ranks, after the ranks of the controls are taken out of both by linear regression; "
         "its p counts as many checkpoints as the autocorrelation of what is left allows."),
        ("cross-pairing", "the feature of every other run against this run's loss. What another model's feature tells "
         "as well is a trend that all runs share."),
        ("scale-free twin", "the feature over the power of the weights' norm that it grows with."),
        ("adjusted p", "over all rows of the association table with the same target; by which method, the rule says."),
        ("phases", "the published rule on a moving average of 5 checkpoints: the step of the largest change, and the "
         "first step where 3 changes in a row stay under 10% of it. Beside it, change points, the number of which a "
         "Bayesian information criterion chooses, with bootstrap intervals, and a test against a smooth trend."),
        ("scaling", "f(N) = a N^b by least squares of the logarithms, and with an offset; resampled over runs."),
        ("random matrices", "of each layer's shape, scaled to its norm; neural persistence and H0 with their spread."),
        ("comparing correlations", "Williams' test for two that share a loss (Steiger 1980), and a block bootstrap; "
         "Fisher's z for those of independent runs."),
    )
)  # fmt: skip

STATE_QUANTITIES = Terms(
    (
        ("hidden states", "of a fixed text, a point a token or a text (the mean over its tokens, padding left out); "
         "the last one, behind the final norm, unless a layer is named. Diagrams are of their Vietoris–Rips "
         "filtration, of all points and components unless the declaration says fewer; farthest-point landmarks carry "
         "a cover radius, random points a spread over draws."),
        ("RankMe", "exp of the entropy of σ / Σσ, σ the singular values of the centred states (Garrido et al. 2023)."),
        ("effective rank", "exp of the entropy of λ / Σλ, λ the eigenvalues of their covariance, as the published "
         "study took it. λ goes as σ², so that it is lower than RankMe; the two are not to be mixed up."),
        ("other spectra", "participation ratio (Σλ)² / Σλ²; decay: the exponent of λ over its rank; stable rank Σλ / "
         "λ₁; top eigenvalue λ₁; anisotropy: the mean cosine of two states; mean norm. Of all points, streamed."),
        ("intrinsic dimension", "from the ratio of the distances to the second and the first neighbour (Facco et al. "
         "2017, two-NN)."),
        ("loss on the text", "nats a token of a fixed text, every token predicted once; bits per byte compare models "
         "of different tokenizers."),
        ("clocks of hidden states", "beside the step their own top eigenvalue: totals grow with the scale of the "
         "cloud, and that drifts. A feature has to keep its correlation given both."),
        ("similarity", "of the same texts, point by point: linear CKA (Kornblith et al. 2019), 1 for alike; orthogonal "
         "Procrustes distance, and representation topology divergence, RTD (Barannikov et al. 2022), 0 for alike."),
        ("phases of representations", "Li et al. 2025: rank falls (warm-up), rises (entropy-seeking), falls again "
         "(compression-seeking). Here: turns between monotone stretches, as few as noise allows, with intervals."),
        ("equal step, tokens, loss", "features of runs of different size, interpolated between checkpoints to levels "
         "all of them reach; never extrapolated."),
        ("Fisher's z here", "takes the two correlations for independent although they share a loss, and checkpoints "
         "for independent although neighbours are nearly the same model: it is shown because it is often published. "
         "Williams' test drops the first assumption, the block bootstrap of the difference of |rho| both."),
    )
)  # fmt: skip

DIFFERENCES = Table(
    "protocols",
    "The published procedure, ours, and why they differ",
    (
        Column("choice", True, names_row=True, prose=True),
        *(Column(title, True, prose=True) for title in ("published", "exact", "why")),
    ),
    (
        ("points of a cloud", "rows of all layers in one cloud, padded with zeros; at most 200 rows, drawn anew at "
         "every checkpoint", "each layer's rows by themselves; all of them for H0",
         "drawing anew adds noise that can be as large as the change between checkpoints; padding mixes layers of "
         "different width"),
        ("end of the filtration", "2.0; what dies later is left out of totals", "none; what is cut is counted",
         "a cap lowers the totals of large weights, and of them alone"),
        ("loss", "of the one batch at the checkpoint", "validation loss, or the training loss smoothed",
         "the noise of a batch is small beside a large model's fall and large beside a small one's: that alone makes "
         "correlations strengthen with size"),
        ("final loss", "of the one last batch", "validation loss, or the mean of the last 2% of logged steps",
         "the same noise"),
        ("intervals and p", "checkpoints taken for independent", "blocks of checkpoints, effective numbers, circular "
         "shifts",
         "neighbouring checkpoints are nearly the same model"),
        ("trend", "not asked for", "step, learning rate and norm held fixed; changes; other runs' features",
         "the step number alone correlates with the loss as strongly"),
        ("prediction, failed fit", "the final loss itself", "the last loss seen", "a forecaster cannot know the final "
         "loss"),
        ("prediction, what topology adds", "blend of 0.6 power law and 0.4 topology against the power law",
         "the same blend without topology beside it", "the blend also pulls towards the last loss, which helps by "
         "itself"),
    ),
)  # fmt: skip


def methods(
    declaration: Declaration, adjusted_by: Method, notes: Sequence[str], *, states: bool = False
) -> Section | None:
    """Formulas in words with their sources, the rule of the verdict, and what protocols differ in.

    Parameters
    ----------
    declaration : Declaration
    adjusted_by : "holm", "bonferroni" or "bh"
    notes : sequence of str
        `Study.notes`.
    states : bool
        Whether the study is of hidden states too.
    """
    return section(
        "methods",
        "Methods",
        QUANTITIES,
        STATE_QUANTITIES if states else None,
        say(RULE),
        say(f"Here p-values are adjusted by the method of {NAMES[adjusted_by]}."),
        DIFFERENCES if follows_publication(declaration) else None,
        *(say(f"{note}.", note=True) for note in notes),
    )


def follows_publication(declaration: Declaration) -> bool:
    """Tell whether a study sets itself beside a published one or follows its procedure."""
    drawn = any(isinstance(p, RipsProbe) and p.sample == "random" for p in declaration.resolved_probes())
    return declaration.published is not None or declaration.protocol == "published" or drawn


def versions() -> dict[str, str]:
    """Return what the report was made with."""
    return {"Python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}


def provenance(declaration: Declaration, corpus: str) -> Section | None:
    """Tell what makes the study again."""
    seeds = {run.name: run.training.seed for run in declaration.resolved_runs()}
    trained: list[Block | None] = []
    if seeds:
        told = ", ".join(f"{run} {seed}" for run, seed in seeds.items())
        trained = [
            say(f"Seeds of training: {told}."),
            say("SHA-256 of the corpus: ", Code(corpus), ".") if corpus else None,
        ]
    name = declaration.name
    return section(
        "provenance",
        "Provenance",
        say(f"Made with {', '.join(f'{package} {version}' for package, version in versions().items())}."),
        *trained,
        say(f"Every random choice of the statistics is derived by name from the seed {SEED}."),
        say("To make it again, keep the declaration below as ", Code(f"{name}.toml"), " and run:"),
        Lines(f"toposcope study run {name}.toml --out {name}\ntoposcope report {name}", "Commands"),
        details("The declaration, with every default written out", Lines(declaration.to_toml(), "Declaration")),
    )
