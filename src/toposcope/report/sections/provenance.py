"""How to reproduce the study: versions, seeds, commands and the declaration."""

import platform
from collections.abc import Iterable, Sequence
from importlib import metadata

from toposcope.extras import EXTRAS, is_installed
from toposcope.report.document import Block, Code, Picture, details, paragraph
from toposcope.report.document import Preformatted as Lines
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.seeds import SEED
from toposcope.wording import joined

PACKAGES = ("toposcope", "numpy", "scipy", "numba", "torch", "polars", "altair")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the main packages that are installed."""
    found = {name: metadata.version(name) for name in PACKAGES if name not in EXTRAS or is_installed(name)}
    return {"Python": platform.python_version(), **found}


def _blocks(data: StudyData, _: Sequence[Picture]) -> Iterable[Block | None]:
    """State versions, seeds, commands and the declaration."""
    declaration, corpus = data.declaration, data.corpus
    seeds = {run.name: run.training.seed for run in declaration.resolved_runs()}
    trained: list[Block | None] = []
    if seeds:
        by_run = ", ".join(f"{run} {seed}" for run, seed in seeds.items())
        trained = [
            paragraph(f"Seeds of training: {by_run}."),
            paragraph("SHA-256 of the corpus: ", Code(corpus), ".") if corpus else None,
        ]
    declarations = data.declarations or {declaration.name: declaration}
    names = [each.name for each in declarations.values()]
    commands = [
        *(f"toposcope study run {name}.toml --out {name}" for name in names),
        f"toposcope report {' '.join(names)}",
    ]
    files = joined([f"{name}.toml" for name in names])
    what = "study, save the declaration" if len(names) == 1 else "studies, save the declarations"
    return (
        paragraph(f"Made with {', '.join(f'{package} {version}' for package, version in versions().items())}."),
        *trained,
        paragraph(f"Every random choice of the statistics is derived by name from the seed {SEED}."),
        paragraph(f"To reproduce the {what} below as ", Code(files), " and run:"),
        Lines("\n".join(commands), "Commands"),
        *(
            details(
                f"The declaration{f' of {title}' if len(names) > 1 else ''}, with every default written out",
                Lines(each.to_toml(), "Declaration"),
            )
            for title, each in declarations.items()
        ),
    )


SECTION = ReportSection(anchor="provenance", title="Provenance", position=930, blocks=_blocks)
