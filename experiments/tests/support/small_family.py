"""Three runs of different width that train in a second, measured."""

from pathlib import Path

from small_runs import some_text

from toposcope.study import load_declaration, run_study

DECLARED = """
name = "small"
[corpus]
source = "{text}"
[training]
steps = {steps}
batch_size = 4
learning_rate = 1e-2
warmup_steps = 4
checkpoint_every = 3
"""
RUN = '[[runs]]\nname = "run-{hidden}"\nsize = {{hidden = {hidden}, layers = 1, heads = 2, context = 16}}\n'


def small_family(folder: Path, *probes: str, steps: int = 30) -> Path:
    """Train the runs and measure these probes; the folder of the study."""
    text, study = folder / "text.txt", folder / "study.toml"
    text.write_text(some_text())
    parts = [DECLARED.format(text=text, steps=steps), *(RUN.format(hidden=n) for n in (6, 8, 10))]
    study.write_text("".join([*parts, *(f'[[probes]]\nname = "{probe}"\n' for probe in probes)]))
    assert not run_study(load_declaration(study), folder / "out", workers=1)
    return folder / "out"
