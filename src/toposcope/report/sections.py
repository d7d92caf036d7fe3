"""A study's report, section by section: verdict, evidence, doctor, errors, methods, provenance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import polars as pl

from toposcope.analysis.claims import claims
from toposcope.analysis.reproduction import reproduction
from toposcope.integrity.finding import short_steps
from toposcope.report import evidence, forecasts, states
from toposcope.report.document import Document, Picture, Section, csv, say, section
from toposcope.report.evidence import Frames
from toposcope.report.material import Material
from toposcope.report.methods import methods, provenance
from toposcope.report.tables import Column, table, text_of
from toposcope.report.text_losses import TextLosses
from toposcope.report.verdict import sentences
from toposcope.study import Study
from toposcope.study.study import with_flat_steps

SHOWN_ERRORS = 100
PLACES = {
    "overview": ("overview",),
    "published": ("published", "traces", "published_representations"),
    "runs": ("losses",),
    "topology": ("topology", "rate", "gradients", "diagrams", "crocker"),
    "representations": ("representations", "depth", "embeddings", "state_diagrams", "state_crocker"),
    "representation_phases": ("representation_phases",),
    "similarity": ("layer_similarity", "checkpoint_similarity"),
    "sizes": ("cross_size",),
    "association": ("association", "partial", "spectral_against_topology"),
    "layers": ("layers", "groups"),
    "phases": ("change_points",),
    "scaling": ("scaling",),
    "references": ("references",),
    "predictions": ("predictions",),
}
"""Figures by section; one that is in none comes after the evidence."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What a study says of itself beside its numbers.

    Attributes
    ----------
    errors : polars.DataFrame
        `Study.errors`.
    examined, notes : list of str
        `Study.examined` and `Study.notes`.
    corpus : str
        SHA-256 of the corpus, or an empty text.
    """

    errors: pl.DataFrame
    examined: list[str]
    notes: list[str]
    corpus: str

    @classmethod
    def of(cls, study: Study) -> "Facts":
        """Read a study."""
        return cls(study.errors(), study.examined(), study.notes(), study.meta("corpus_sha256"))


def frames_of(material: Material, facts: Facts) -> dict[str, pl.DataFrame]:
    """Return every table of a report by name: those of the analysis, what was published, and what they rest on."""
    analysis, published = material.analysis, material.declaration.published
    told = (analysis.trajectories, material.runs, material.predictions)
    found = {f.name: getattr(analysis, f.name) for f in fields(analysis)}
    return {
        **{name: frame for name, frame in found.items() if isinstance(frame, pl.DataFrame)},
        "reproduction": reproduction(
            published,
            analysis.association,
            analysis.phases,
            analysis.scaling,
            *told,
            material.declaration.corpus.source,
        ),
        "claims": claims(
            published, analysis.association, analysis.phases, analysis.change_points, analysis.scaling, *told
        ),
        "predictions": material.predictions,
        "runs": material.runs,
        "errors": facts.errors,
        "findings": with_flat_steps(material.findings),
    }


def verdict_of(material: Material, frames: Frames) -> list[str]:
    """Return the sentences at the top."""
    differ = TextLosses.of(material).tokens_differ
    told = (material.analysis, material.runs, len(frames["errors"]), material.findings, frames["claims"])
    return sentences(*told, tokens_differ=differ)


def study_document(material: Material, facts: Facts, frames: Frames, pictures: Sequence[Picture]) -> Document:
    """Compose the report of one study; a section without data is left out.

    Parameters
    ----------
    material : Material
    facts : Facts
    frames : mapping
        From `frames_of`.
    pictures : sequence of Picture
        What is drawn.
    """
    declaration = material.declaration
    placed = _placed(pictures)
    of_states = any(t.clouds for t in material.analysis.trajectories)
    found = [
        section("overview", "At a glance", *placed["overview"]),
        evidence.published(material, frames, *placed["published"]),
        evidence.runs(material, *placed["runs"]),
        section("topology", "Topology over training", *placed["topology"]),
        states.representations(material, *placed["representations"]),
        states.phases(frames, *placed["representation_phases"]),
        section("similarity", "Similarity", *placed["similarity"]),
        states.sizes(frames, *placed["sizes"]),
        evidence.association(material, frames, *placed["association"]),
        evidence.layers(material, *placed["layers"]),
        evidence.phases(frames, *placed["phases"]),
        evidence.scaling(frames, *placed["scaling"]),
        evidence.references(frames, *placed["references"]),
        forecasts.predictions(material.predictions, *placed["predictions"]),
        section("figures", "Further figures", *placed[""]),
        doctor(material.findings, facts.examined),
        failures(facts.errors),
        methods(declaration, material.analysis.adjusted_by, facts.notes, states=of_states),
        provenance(declaration, facts.corpus),
    ]
    lead = [("", verdict_of(material, frames))]
    return Document(f"toposcope: {declaration.name}", lead, [s for s in found if s is not None])


def _placed(pictures: Sequence[Picture]) -> Mapping[str, list[Picture]]:
    by_name = {name: anchor for anchor, names in PLACES.items() for name in names}
    placed: dict[str, list[Picture]] = {anchor: [] for anchor in (*PLACES, "")}
    for picture in pictures:
        placed[by_name.get(picture.name, "")].append(picture)
    return placed


def doctor(findings: pl.DataFrame, examined: Sequence[str]) -> Section | None:
    """Tell what the doctor found, or that it found nothing."""
    title = "What the doctor found"
    if not len(findings):
        runs = ", ".join(examined)
        told = say(f"The doctor examined the checkpoints of {runs} and found nothing wrong with them.")
        return section("doctor", title, told) if examined else None
    specs = (
        text_of("run", "run", names_row=True),
        text_of("severity", "severity"),
        text_of("check", "check"),
        (Column("steps", True, prose=True), lambda row: short_steps(row["steps"])),
        text_of("finding", "message", prose=True),
    )
    return section(
        "doctor",
        title,
        say(
            "Are the checkpoints what their names say? A fault means that they are not; a note is worth knowing and no "
            "fault. All: ", csv("findings"), ".",
        ),
        table("findings", "Findings of the doctor", specs, findings.to_dicts()),
    )  # fmt: skip


def failures(errors: pl.DataFrame) -> Section | None:
    """Tell what failed, and that the rest was done."""
    specs = (
        text_of("run", "run", names_row=True),
        (Column("step"), lambda row: str(row["step"]) if row["step"] >= 0 else "all"),
        text_of("probe", "probe"),
        text_of("reason", "message", prose=True),
    )
    found = table("errors", "What failed", specs, errors.head(SHOWN_ERRORS).to_dicts())
    if found is None:
        return None
    more = f" The first {SHOWN_ERRORS} of {len(errors):,}." if len(errors) > SHOWN_ERRORS else ""
    told = "Everything else was done. Mend the cause and run the study again: only what is missing is measured."
    return section("errors", "What failed", say(f"{told}{more} All: ", csv("errors"), "."), found)
