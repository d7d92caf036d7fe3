"""How to reproduce the study: versions, seeds, commands and the declaration."""

import platform
from collections.abc import Iterable, Sequence
from importlib import metadata

from toposcope.analysis.tuning import SEED
from toposcope.extras import EXTRAS, is_installed
from toposcope.report.document import Block, Code, Picture, details, say
from toposcope.report.document import Preformatted as Lines
from toposcope.report.material import Material
from toposcope.report.section import ReportSection

PACKAGES = ("toposcope", "numpy", "scipy", "numba", "gudhi", "torch", "polars", "altair")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the main packages that are installed."""
    found = {name: metadata.version(name) for name in PACKAGES if name not in EXTRAS or is_installed(name)}
    return {"Python": platform.python_version(), **found}


def _blocks(material: Material, _: Sequence[Picture]) -> Iterable[Block | None]:
    """State versions, seeds, commands and the declaration."""
    declaration, corpus = material.declaration, material.corpus
    seeds = {run.name: run.training.seed for run in declaration.resolved_runs()}
    trained: list[Block | None] = []
    if seeds:
        by_run = ", ".join(f"{run} {seed}" for run, seed in seeds.items())
        trained = [
            say(f"Seeds of training: {by_run}."),
            say("SHA-256 of the corpus: ", Code(corpus), ".") if corpus else None,
        ]
    name = declaration.name
    return (
        say(f"Made with {', '.join(f'{package} {version}' for package, version in versions().items())}."),
        *trained,
        say(f"Every random choice of the statistics is derived by name from the seed {SEED}."),
        say("To reproduce the study, save the declaration below as ", Code(f"{name}.toml"), " and run:"),
        Lines(f"toposcope study run {name}.toml --out {name}\ntoposcope report {name}", "Commands"),
        details("The declaration, with every default written out", Lines(declaration.to_toml(), "Declaration")),
    )


SECTION = ReportSection(anchor="provenance", title="Provenance", position=930, blocks=_blocks)
