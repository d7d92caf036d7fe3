"""Hidden states over training and by depth, embeddings, and their diagrams."""

from collections.abc import Iterable, Sequence

from toposcope.report.charts.diagrams import state_betti_charts, state_diagram_chart
from toposcope.report.charts.series import direction_of
from toposcope.report.charts.states import depth_charts, embedding_charts, representation_charts
from toposcope.report.document import Block, Picture, Terms, paragraph
from toposcope.report.headline import cloud_named, clouds_of, headlines_of
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.wording import joined

STATE_QUANTITIES = Terms(
    (
        ("hidden states", "of a fixed text, one point per token or text (the mean over its tokens, padding left out); "
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
        ("loss on the text", "nats per token of a fixed text, every token predicted once; bits per byte compare models "
         "of different tokenizers."),
        ("covariates of hidden states", "next to the step their own top eigenvalue: totals grow with the scale of the "
         "cloud, and that drifts. A feature has to keep its correlation given both."),
        ("phases of representations", "Li et al. 2025: rank falls (warm-up), rises (entropy-seeking), falls again "
         "(compression-seeking). Here: turns between monotone stretches, as few as noise allows, with intervals."),
        ("Fisher's z here", "takes the two correlations for independent although they share a loss, and checkpoints "
         "for independent although neighbours are nearly the same model: it is shown because it is often published. "
         "Williams' test drops the first assumption, the block bootstrap of the difference of |rho| both."),
    )
)  # fmt: skip


DEFAULT_CLOUD_NAME = "hidden states (default options)"  # name in notes of the cloud with default options


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show hidden states over training and by depth, embeddings, diagrams."""
    clouds = clouds_of(data.trajectories)
    labels = [label for t in data.trajectories for label, cloud in t.clouds.items() if label == cloud]
    names = list(dict.fromkeys(map(cloud_named, (*clouds, *labels))))
    others = [DEFAULT_CLOUD_NAME if name == "hidden states" else name for name in names[len(clouds) :]]
    figures = f"The figures are of {joined(names[: len(clouds)])}; the" if clouds else "The"
    note = f"{figures} tables also hold {joined(others)}." if others else ""
    return (*pictures, paragraph(note, note=True) if note and pictures else None)


def _finding(data: StudyData) -> str:
    """Say where the rank of the hidden states goes, or their H0 total where no rank was measured."""
    headlines = headlines_of(data.trajectories, ("rankme", "H0.total"))[:1]
    return "".join(
        f"{h.name.removesuffix(' (control)')} {direction_of(data.trajectories, h.feature)}" for h in headlines
    )


SECTION = ReportSection(
    anchor="representations",
    title="Representations",
    position=50,
    charts=(representation_charts, depth_charts, embedding_charts, state_diagram_chart, state_betti_charts),
    blocks=_blocks,
    finding=_finding,
    methods=lambda data: [STATE_QUANTITIES] if any(t.clouds for t in data.trajectories) else [],
)
