"""The sections of the experiment's page, with their tables."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from toposcope.extend import (
    Block,
    Column,
    Page,
    Picture,
    ReportSection,
    Spec,
    csv_link,
    details,
    folded,
    interval_of,
    makers_of,
    number_of,
    p_value,
    paragraph,
    plain,
    share,
    signed,
    table,
    text_of,
    whole,
)
from toposcope_experiments.regularisation.charts import condition_chart, course_chart, stopping_chart
from toposcope_experiments.regularisation.comparison import RULE, SEPARATOR
from toposcope_experiments.regularisation.design import N_TRAINING, N_VALIDATION, STEPS_PER_EPOCH
from toposcope_experiments.regularisation.experiment import MeasuredRuns, accuracy_table, run_table
from toposcope_experiments.regularisation.features import CONTROLS_OF, FEATURES, NP, PLACEBO
from toposcope_experiments.regularisation.page import RegularisationData, accuracy_lead, lead, stopping_lead
from toposcope_experiments.regularisation.stopping import CALLED, barycentre_table, grid_table, stop_table
from toposcope_experiments.regularisation.training import LOGGED
from toposcope_experiments.small_networks.page_tables import P_VALUES, measurement_table, reasons

three_digits, signed_two = partial(plain, digits=3), partial(signed, digits=2)
PAIR: tuple[Spec, ...] = (
    text_of("condition", "condition", names_row=True),
    text_of("compared with", "beside", names_row=True),
    text_of("at", "view", names_row=True),
)
NUMBERS: tuple[Spec, ...] = (
    number_of("mean", "mean", three_digits),
    number_of("other mean", "beside_mean", three_digits),
    interval_of("difference, 95%", "low", "high", 3),
    number_of("p-value", "p", p_value),
)


def _n_controls(row: Mapping[str, Any]) -> str:
    """Write how many controls of a feature differ as well."""
    controls = CONTROLS_OF[row["feature"]]
    n_differing = len(row["controls"].split(SEPARATOR)) if row["controls"] else 0
    return f"{n_differing} of {len(controls.same_sign) + len(controls.either_sign)}"


def _condition_blocks(data: RegularisationData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    verdicts, differences = (data.tables[name] for name in ("verdicts", "differences"))
    specs: tuple[Spec, ...] = (
        *PAIR,
        text_of("published", "published"),
        *NUMBERS,
        number_of("p, adjusted", "p_adjusted", p_value),
        text_of("verdict", "verdict", prose=True),
        (Column("controls"), _n_controls),
        *reasons(verdicts),
    )
    feature = text_of("measure", "feature", names_row=True)
    main, others = verdicts.filter(feature=NP), verdicts.filter(pl.col("feature") != NP)
    note = paragraph(
        RULE, " Controls: how many of them differ; which, is in the file. The published directions are those of Rieck "
        "et al. 2019, section 4.1. ", csv_link("verdicts"), ", ", csv_link("differences"), ".", note=True,
    )  # fmt: skip
    columns = (*PAIR, feature, *specs[3:])
    other = table("other-verdicts", "Other measures of neural persistence", columns, others.to_dicts())
    each = table("differences", "Every quantity", (*PAIR, feature, *NUMBERS), differences.to_dicts(), sortable=True)
    return (
        *pictures,
        table("verdicts", "Neural persistence of pairs of conditions", specs, main.to_dicts()),
        note,
        folded(other, "One scale for all layers, and beyond the placebo"),
        folded(each, "Every quantity"),
    )


def _accuracy_blocks(data: RegularisationData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        text_of("quantity", "feature", names_row=True),
        number_of("rho", "rho_conditions", signed_two, group="between conditions"),
        number_of("p-value", "p_conditions", p_value, group="between conditions"),
        number_of("p, adjusted", "p_conditions_adjusted", p_value, group="between conditions"),
        number_of("rho", "rho_runs", signed_two, group="within conditions"),
        number_of("p-value", "p_runs", p_value, group="within conditions"),
        number_of("p, adjusted", "p_runs_adjusted", p_value, group="within conditions"),
    )
    note = paragraph(
        "Spearman correlations at the last step, tested by permuting conditions, or runs within them; adjusted by Holm "
        "over the quantities. ", csv_link("accuracy"), ".", note=True,
    )  # fmt: skip
    return table("accuracy", "Correlation with the test accuracy", specs, data.tables["accuracy"].to_dicts()), note


def _stopping_blocks(data: RegularisationData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    rules: tuple[Spec, ...] = (
        text_of("patience on", "rule", names_row=True),
        number_of("settings", "n_settings", whole),
        number_of("runs stopped", "stopped", share),
        number_of("epochs saved", "saved", share),
        number_of("points lost", "paid", signed_two),
        number_of("a fixed epoch loses", "paid_fixed", signed_two),
        *P_VALUES,
        text_of("verdict", "verdict"),
    )
    barycentres: tuple[Spec, ...] = (
        text_of("patience on", "rule", names_row=True),
        text_of("condition", "condition", names_row=True),
        number_of("epochs later", "epochs", lambda value: signed(value, 1)),
        interval_of("95%", "epochs_low", "epochs_high", 1),
        number_of("points lost", "lost", signed_two),
        interval_of("95%", "lost_low", "lost_high", 2),
    )
    settings: tuple[Spec, ...] = (
        text_of("by", "rule", names_row=True),
        number_of("patience", "patience", whole),
        number_of("burn-in", "burn_in", whole),
        number_of("fraction", "fraction", plain),
        number_of("runs stopped", "stopped", share),
        number_of("saved", "saved", share),
        interval_of("95%", "saved_low", "saved_high", 3),
        number_of("points lost", "lost", signed_two),
        interval_of("95%", "lost_low", "lost_high", 2),
        number_of("a fixed epoch loses", "lost_fixed", signed_two),
        number_of("p, adjusted", "p_adjusted", p_value),
    )
    tables = data.tables
    overall = tables["barycentres"].filter(condition="").with_columns(condition=pl.lit("all"))
    by_condition = tables["barycentres"].filter(pl.col("condition") != "")
    note = paragraph(
        "A run stops when what is watched has not improved for as many epochs as the patience, after the burn-in "
        "(Rieck et al. 2019, Algorithm 2); every improvement counts. Points of test accuracy lost: accuracy at the end "
        "less that at the stop. The fixed epoch is the one for all runs that saves as much. Verdicts: adjusted by Holm "
        "over the rules. ", csv_link("stopping_rules"), ", ", csv_link("grid"), ", ", csv_link("barycentres"), ", ",
        csv_link("stops"), ".", note=True,
    )  # fmt: skip
    later = paragraph(
        "Epochs later and points lost compared with patience on the validation loss, for the same run and setting; "
        "below 0 earlier, or a higher accuracy.", note=True,
    )  # fmt: skip
    return (
        *pictures,
        table("stopping_rules", "Means over the grid", rules, tables["stopping_rules"].to_dicts()),
        note,
        table("barycentres", "Compared with patience on the validation loss", barycentres, overall.to_dicts()),
        later,
        folded(table("by-condition", "The same by condition", barycentres, by_condition.to_dicts()), "By condition"),
        folded(table("grid", "Every setting", settings, tables["grid"].to_dicts(), sortable=True), "Every setting"),
    )


def _run_blocks(data: RegularisationData, _: Sequence[Picture]) -> Iterable[Block | None]:
    by_condition = data.tables["runs"].group_by("condition", maintain_order=True)
    rows = by_condition.agg(pl.len().alias("n_runs"), pl.col(*LOGGED, NP, PLACEBO).mean()).to_dicts()
    specs: tuple[Spec, ...] = (
        text_of("condition", "condition", names_row=True),
        number_of("runs", "n_runs", whole),
        *(number_of(name, key, three_digits) for name, key in ((NP, NP), (PLACEBO, PLACEBO))),
        *(
            number_of(kind, f"{part}_{kind}", share if kind == "accuracy" else three_digits, group=part)
            for part in ("train", "validation", "test")
            for kind in ("loss", "accuracy")
        ),
    )
    note = paragraph(
        "Means over runs at the last step. ", csv_link("runs"), ", all measurements: ", csv_link("features"), ".",
        note=True,
    )  # fmt: skip
    return (table("runs", "Conditions", specs, rows), note)


def _method_blocks(data: RegularisationData, _: Sequence[Picture]) -> Iterable[Block | None]:
    measured = data.measured
    return (
        paragraph(
            f"Multi-layer perceptrons with ReLU learn the 8 x 8 digits that come with scikit-learn: {N_TRAINING:,} to "
            f"train on, {N_VALIDATION} to validate and the rest to test, drawn anew for every run. Adam makes "
            f"{whole(float(measured.steps[-1]))} updates; an epoch is {STEPS_PER_EPOCH} of them in every condition. "
            "Plain networks have two hidden layers, true labels and all the data; each other condition differs in one "
            "thing. All runs have their own initial weights, digits, batches and masks, whose seeds are derived from "
            f"names such as {measured.runs[0].name!r}."
        ),
        details(
            "Quantities",
            paragraph(
                "Neural persistence is the normalised one of each weight matrix without biases (p = 2), mean over "
                "layers; each matrix is divided by its own largest weight, or all by the network's (one scale). The "
                "placebo is the network with the entries of each matrix permuted: their distribution stays, their "
                "pattern goes. Norms, stable rank and largest weight are means over layers."
            ),
        ),
    )


Section = ReportSection[RegularisationData]
SECTIONS: tuple[Section, ...] = (
    Section(
        anchor="conditions",
        title="Conditions in order",
        tables={"verdicts": lambda m: m.comparison.verdicts, "differences": lambda m: m.comparison.differences},
        charts=(condition_chart,),
        blocks=_condition_blocks,
        summary=lead,
    ),
    Section(anchor="courses", title="Courses", charts=(course_chart,)),
    Section(
        anchor="accuracy",
        title="Test accuracy",
        tables={"accuracy": lambda m: accuracy_table(m.measured)},
        blocks=_accuracy_blocks,
        summary=accuracy_lead,
    ),
    Section(
        anchor="stopping",
        title="Early stopping",
        tables={
            "stops": lambda m: stop_table(m.measured, m.tried),
            "stopping_rules": lambda m: m.tried.rules.with_columns(pl.col("rule").replace(CALLED)),
            "grid": lambda m: grid_table(m.tables["stops"], m.tried.matched),
            "barycentres": lambda m: barycentre_table(m.tables["stops"]),
        },
        charts=(stopping_chart,),
        blocks=_stopping_blocks,
        summary=stopping_lead,
    ),
    Section(
        anchor="runs",
        title="Runs",
        tables={
            "runs": lambda m: run_table(m.measured, (*LOGGED, *FEATURES)),
            "features": lambda m: measurement_table(m.measured.names, m.measured.steps, m.measured.values),
        },
        blocks=_run_blocks,
    ),
    Section(anchor="design", title="Design", blocks=_method_blocks),
)


def regularisation_page(measured: MeasuredRuns) -> Page[RegularisationData]:
    """Return the page of the experiment."""
    return Page(SECTIONS, RegularisationData(measured, makers_of(SECTIONS)))
