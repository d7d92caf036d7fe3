"""Copies the pictures of the documentation from the report of the demo.

python benchmarks/pictures.py toposcope-demo
"""

import shutil
from pathlib import Path

import click

PICTURES = (
    "step-taken-out", "association", "losses", "neural-persistence", "h0-total", "layers-h0",
    "layers-neural-persistence", "diagrams", "change-points", "scaling-loss",
)  # fmt: skip
IMAGES = Path(__file__).parents[1] / "docs" / "images" / "demo"


@click.command(epilog="Example: python benchmarks/pictures.py toposcope-demo")
@click.argument("study", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(study: Path) -> None:
    """Copy the pictures of the documentation from the report of a STUDY, the demo's."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        shutil.copyfile(study / "report" / "figures" / f"{name}.svg", IMAGES / f"{name}.svg")


if __name__ == "__main__":
    main()
