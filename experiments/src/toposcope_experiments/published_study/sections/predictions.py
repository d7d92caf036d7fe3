"""Forecasts of the final loss by the published rules, next to the same rules without topology."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from toposcope.extend import (
    Block,
    Column,
    Picture,
    ReportSection,
    Spec,
    StudyData,
    counted,
    csv_link,
    joined,
    needs_checkpoints,
    needs_loss,
    number_of,
    paragraph,
    signed,
    table,
    text_of,
    whole,
)
from toposcope_experiments.published_study.predictions import MIN_CHECKPOINTS, predictions
from toposcope_experiments.published_study.reproduction import BLEND_OF_LOSSES

MIN_GROUPS = 15  # a comparison of forecasters needs at least as many groups of runs
LINES = {
    "paper_loss_only": "loss only",
    "paper_tda_only": "topology only",
    "paper_combined": "loss and topology",
    f"paper_{BLEND_OF_LOSSES}": "the same blend without topology",
    "last": "last window",
}


def _blocks(data: StudyData, _: Sequence[Picture]) -> Iterable[Block | None]:
    """Show forecasts of the final loss."""
    frame = data.tables["predictions"]
    if not len(frame):
        return ()
    errors = frame.group_by("protocol", "forecaster", "fraction", maintain_order=True).agg(
        error=pl.col("error").mean(), n=pl.col("run").n_unique()
    )
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in errors.to_dicts():
        place = (row["protocol"], row["forecaster"])
        names = {"protocol": row["protocol"], "forecaster": LINES.get(row["forecaster"], row["forecaster"])}
        lines.setdefault(place, {**names, "n": row["n"]})[str(row["fraction"])] = row["error"]
    fractions = sorted(errors.get_column("fraction").unique())
    specs = (
        text_of("protocol", "protocol", names_row=True),
        text_of("forecaster", "forecaster", names_row=True),
        number_of("runs", "n", whole),
        *(_error_at(fraction) for fraction in fractions),
    )
    found = table("predictions", "Mean absolute error of the predicted final loss", specs, lines.values())
    n = max(line["n"] for line in lines.values())
    note = paragraph(
        f"Error in nats, the mean over {n} run{'s'[: n > 1]}. To say that topology helps, a forecaster has to beat "
        f"the same one without it, over at least {MIN_GROUPS} groups of runs; a few runs of one schedule cannot show "
        f"that. Each forecast: ",
        csv_link("predictions"), ".",
    )  # fmt: skip
    counts = by_size(frame, data.runs)
    return (note, found, paragraph(counts) if counts else None)


def by_size(frame: pl.DataFrame, runs: pl.DataFrame) -> str:
    """Return at how many sizes the published blend errs less than each of its rivals; nothing with fewer than two."""
    names = {"paper_loss_only": "the loss only", f"paper_{BLEND_OF_LOSSES}": "the same blend without topology"}
    sized = frame.join(runs.select("run", "n_parameters").drop_nulls(), on="run").filter(protocol="exact")
    means = sized.group_by("n_parameters", "fraction", "forecaster").agg(pl.col("error").mean())
    blend = means.filter(forecaster="paper_combined")
    parts = []
    for rival, name in names.items():
        both = blend.join(means.filter(forecaster=rival), on=["n_parameters", "fraction"])
        counts = [
            f"{int((of['error'] < of['error_right']).sum())} of {len(of)} at {100 * fraction:.0f}%"
            for (fraction,), of in both.sort("fraction").group_by("fraction", maintain_order=True)
            if len(of) > 1
        ]
        parts += [f"less than {name} in {joined(counts)}"] if counts else []
    return f"Size by size, the blend with topology errs {', and '.join(parts)}." if parts else ""


def _error_at(fraction: float) -> Spec:
    def write(row: Mapping[str, Any]) -> str:
        return signed(row.get(str(fraction))).lstrip("+")

    return Column(f"at {100 * fraction:.0f}%", group="error when so much of training was seen"), write


def _finding(data: StudyData) -> str:
    """Say whether the runs suffice to test what topology adds to the forecast."""
    frame = data.tables["predictions"]
    if not len(frame):
        return ""
    if "paper_combined" not in set(frame.get_column("forecaster")):
        return "No forecast from topology can be made"
    n = frame.get_column("run").n_unique()
    if n < MIN_GROUPS:
        return f"{counted(n, 'run')} {'is' if n == 1 else 'are'} too few to test what topology adds to the forecast"
    return f"The published forecast with topology and without it, on {n} runs"


def _complete(data: StudyData) -> str:
    return "" if len(data.runs.filter(status="complete")) else "a complete run"


SECTION = ReportSection(
    anchor="predictions",
    title="Forecasts",
    position=140,
    tables={"predictions": lambda data: predictions(data.trajectories, data.log, data.runs)},
    needs={"predictions": (needs_loss, _complete, needs_checkpoints(MIN_CHECKPOINTS + 1))},
    blocks=_blocks,
    finding=_finding,
)
