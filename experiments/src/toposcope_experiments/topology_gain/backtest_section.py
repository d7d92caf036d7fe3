"""What topology adds to the forecasts of a study, as a section of its backtest."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.extend import (
    Block,
    Picture,
    ReportSection,
    Spec,
    csv_link,
    interval_of,
    number_of,
    p_value,
    paragraph,
    percent_of,
    plain,
    table,
    text_of,
    whole,
)
from toposcope_experiments.backtest.result import BacktestData
from toposcope_experiments.topology_gain.gain import TopologyGain, topology_gain

ERRORS: tuple[Spec, ...] = (
    percent_of("seen, %", "fraction"),
    text_of("forecaster", "forecaster", names_row=True),
    number_of("runs", "n", whole),
    number_of("groups", "n_groups", whole),
    number_of("MAE", "mae", plain),
    number_of("skill over norms", "skill"),
    interval_of("95% interval", "skill_low", "skill_high", 3),
    number_of("p-value", "p", p_value),
    number_of("p, adjusted", "p_adjusted", p_value),
)
PLACEBOS: tuple[Spec, ...] = (
    percent_of("seen, %", "fraction"),
    text_of("placebo", "placebo", names_row=True),
    number_of("draws", "n_draws", whole),
    number_of("mean skill", "skill"),
    interval_of("range", "skill_least", "skill_most", 3),
    number_of("as good as topology", "n_as_good", whole),
)


def _gain(data: BacktestData) -> TopologyGain | None:
    """Return what topology adds, if the runs are those of a study with measured checkpoints."""
    study = data.study
    if study is None:
        return None
    return data.once("topology_gain", lambda: topology_gain(study, workers=data.workers, progress=data.progress))


def _blocks(data: BacktestData, _: Sequence[Picture]) -> Iterable[Block | None]:
    gain = _gain(data)
    if gain is None:
        return ()
    return (
        paragraph(f"{gain.verdict()} ", csv_link("topology"), ", ", csv_link("topology_placebos"), "."),
        table("topology", "Errors with topology and without", ERRORS, gain.errors.to_dicts()),
        table("topology_placebos", "Placebos in place of topology", PLACEBOS, gain.placebos.to_dicts()),
        *(paragraph(note, note=True) for note in gain.notes),
    )


SECTION = ReportSection[BacktestData](
    anchor="topology",
    title="What topology adds to forecasts",
    position=40,
    tables={
        "topology": lambda data: gain.errors if (gain := _gain(data)) else pl.DataFrame(),
        "topology_placebos": lambda data: gain.placebos if (gain := _gain(data)) else pl.DataFrame(),
    },
    blocks=_blocks,
    summary=lambda data: [gain.verdict()] if (gain := _gain(data)) else [],
    summary_position=20,
    notes=lambda data: gain.notes if (gain := _gain(data)) else (),
)
