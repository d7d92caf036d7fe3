"""The sections of the page of pushed trainings, with their tables."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.extend import (
    LEVEL,
    UNDETERMINED,
    Block,
    Page,
    Picture,
    ReportSection,
    Spec,
    counted,
    csv_link,
    details,
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
    word,
    write_page,
)
from toposcope_experiments.interventions.charts import arm_charts, condition_chart
from toposcope_experiments.interventions.page import (
    TITLE,
    Condition,
    InterventionData,
    caution,
    lead,
    percent_change,
    power_lead,
    read_conditions,
)
from toposcope_experiments.interventions.tables import (
    comparison_table,
    condition_effects,
    condition_table,
    effect_table,
    power_table,
    verdict_table,
)
from toposcope_experiments.interventions.verdict import ARM_NAMES, EFFECT_THAT_MATTERS, RULE

one_digit, two_digits, three_digits = partial(signed, digits=1), partial(plain, digits=2), partial(plain, digits=3)
OPTIONS = (
    "size", "context", "optimizer", "steps", "batch_size", "seeds", "share", "refresh", "push_until", "initial_scale",
    "corpus",
)  # fmt: skip
"""What ``design.json`` declares that is an option of the command."""


def _statistic(rows: pl.DataFrame, title: str = "pushed") -> Sequence[Spec]:
    """Return the column that names the statistic, if there are several."""
    return () if rows["statistic"].n_unique() == 1 else (text_of(title, "statistic", names_row=True),)


def _answer_blocks(data: InterventionData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    comparisons = data.tables["comparisons"]
    single = len(data.main.verdicts) == 1
    verdicts: tuple[Spec, ...] = (
        text_of("pushed", "statistic", names_row=True),
        number_of("seeds", "n", whole),
        number_of("dose", "dose", percent_change),
        number_of("effect (mnat)", "effect", one_digit),
        interval_of("95%", "low", "high", 1),
        number_of("p", "p", p_value),
        *(() if single else (number_of("p, adjusted", "p_effect", p_value),)),
        number_of("p of beating all placebos", "p_follows", p_value),
        text_of("verdict", "verdict", prose=True),
        *([text_of("why", "reason", prose=True)] if UNDETERMINED in set(data.tables["verdicts"]["verdict"]) else []),
    )
    placebos: tuple[Spec, ...] = (
        *_statistic(comparisons),
        text_of("placebo", "placebo", names_row=True),
        text_of("outcome", "outcome"),
        number_of("dose reached", "reached", _share),
        text_of("compared at", "basis"),
        number_of("share of effect", "explained", _share, group="at equal dose"),
        number_of("leads by", "left", one_digit, group="at equal dose"),
        interval_of("95%", "left_low", "left_high", 1, group="at equal dose"),
        number_of("p", "left_p", p_value, group="at equal dose"),
        number_of("leads by", "own_left", one_digit, group="at equal change of its own"),
        interval_of("95%", "own_low", "own_high", 1, group="at equal change of its own"),
    )
    return (
        *pictures,
        details("What the words mean", *(paragraph(f"{word[0].upper()}{word[1:]}: {is_}.") for word, is_ in GLOSSARY)),
        table("verdicts", "Effects and verdicts", verdicts, data.tables["verdicts"].to_dicts()),
        paragraph(
            "Dose: the geometric mean of both directions. ", csv_link("verdicts"), "; every push by itself: ",
            csv_link("effects"), ".", note=True,
        ),
        table("comparisons", "Against each placebo", placebos, comparisons.to_dicts()),
        paragraph(
            "Outcome: by the rule below. Share of effect: what the placebo does, of what topology does. Leads by: the "
            "effect of topology less that of the placebo, in mnat, below 0 where the placebo does more; where both "
            "change the topology as much, and where both change the placebo's own quantity as much. ",
            csv_link("comparisons"), ".", note=True,
        ),
        details("The rule", *map(paragraph, RULE)),
    )  # fmt: skip


def _share(value: float | None) -> str:
    return share(value).replace("-", "−")


def _power_blocks(data: InterventionData, _: Sequence[Picture]) -> Iterable[Block | None]:
    found = "found 4 times in 5 (mnat)"
    specs: tuple[Spec, ...] = (
        *_statistic(data.tables["verdicts"], "statistic"),
        text_of("difference by seed", "comparison", names_row=True),
        number_of("seeds", "n", whole),
        number_of("SD (mnat)", "sd", three_digits),
        number_of("one comparison", "one", two_digits, group=found),
        number_of("after Holm", "holm", two_digits, group=found),
        number_of("of all placebos", "all_placebos", two_digits, group=found),
        number_of(f"seeds for {EFFECT_THAT_MATTERS:g} mnat", "seeds", whole),
    )
    m = len(data.main.verdicts)
    note = paragraph(
        f"Two-sided paired t tests at level {LEVEL:g}, with the standard deviations of these runs (of the placebo with "
        f"the largest). After Holm: at level {LEVEL:g} / {m}, for {counted(m, 'statistic')}, as are the seeds. Of "
        "all placebos: so that every placebo is beaten 4 times in 5, as if they were independent. ",
        csv_link("powers"), ".", note=True,
    )  # fmt: skip
    return (table("powers", "What these seeds find", specs, data.tables["powers"].to_dicts()), note)


def _caution_blocks(data: InterventionData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    rows = data.tables["conditions"]
    if not rows.width:
        return ()
    specs: tuple[Spec, ...] = (
        text_of("condition", "condition", names_row=True),
        *_statistic(rows),
        text_of("verdict", "verdict", prose=True),
        text_of("design", "differs"),
        number_of("seeds", "n", whole),
        number_of("effect (mnat)", "effect", one_digit),
        text_of("from half to end", "course"),
        number_of("up", "up", one_digit, group="beyond a random push (mnat)"),
        interval_of("95%", "up_low", "up_high", 1, group="beyond a random push (mnat)"),
        number_of("down", "down", one_digit, group="beyond a random push (mnat)"),
        interval_of("95%", "down_low", "down_high", 1, group="beyond a random push (mnat)"),
    )
    more = "Not tried yet: longer runs, larger initial weights, pushes that end at half, another optimizer; "
    alone = f"{more}--conditions trains them. " if len(data.conditions) == 1 else ""
    note = paragraph(
        "An effect may be one on early speed alone: weights that start small gain from any drift. Such an effect fades "
        f"from half of training to its end, in longer runs, and with larger initial weights. {alone}“Fades”, “grows”: "
        "the difference by seed is significant, not adjusted. Beyond a random push: what pushing topology up, or "
        "down, does to the loss less what a random direction of the same strength does. ", csv_link("conditions"), ".",
        note=True,
    )  # fmt: skip
    return (*pictures, table("conditions", "Conditions", specs, rows.to_dicts()), note)


def _design_blocks(data: InterventionData, _: Sequence[Picture]) -> Iterable[Block | None]:
    known = {name.replace("_", " "): value for name, value in data.main.declared.items() if value is not None}
    declared = [{"name": name, "value": _written(value)} for name, value in known.items()]
    specs: tuple[Spec, ...] = (text_of("what", "name", names_row=True), text_of("value", "value", prose=True))
    return (
        paragraph(
            "All runs of a seed have the same initial weights and the same data, and are compared with the one of them "
            "that is not pushed."
        ),
        table("design", "Design", specs, declared),
        paragraph(f"To run it again: {_command(data.main)}"),
    )


GLOSSARY = (
    ("effect", "half of the loss pushed up less that pushed down, by seed: what pushing costs either way cancels. "
     "Below 0 pushing up lowers the loss"),
    ("dose", "how far a push has changed the topology at the end, against the same run without a push"),
    ("placebo", "a push of something else, as strong as gives it the dose of topology, if it can reach that: up to ten "
     "times as strong, so that what strength alone costs is part of its effect unless it costs the same up and down"),
    ("scale-free H0", "the rows of a weight matrix are points; the length of the shortest tree that joins them, over "
     "the norm of the matrix. Topologists call it the total persistence of components"),
    ("scale-free H1", "of the same points, how long the loops among them last as each point grows, over the norm"),
    ("neural persistence", "the weights of a matrix are links, added from the largest down; how long its rows and "
     "columns stay apart"),
    (ARM_NAMES["permuted_twin"], "the gradient of the same topology, of the weights in another order: their "
     "distribution stays, their pattern goes"),
    (ARM_NAMES["pairwise_spread"], "the mean distance of all pairs of rows, over the norm: no tree, no topology"),
    (ARM_NAMES["effective_rank"], "how evenly the singular values are spread: their sum (nuclear norm) over the norm"),
    (ARM_NAMES["nearest_neighbour_spread"], "the mean distance of a row to the nearest other, over the norm"),
    (ARM_NAMES["random_tangent"], "a fixed direction that leaves the norm as it is, pushed as strongly as topology"),
    (ARM_NAMES["chaos"], "noise of 0.01% of the gradient, which shows the differences that chance makes"),
)  # fmt: skip


def _command(condition: Condition) -> str:
    """Return the command of a condition."""
    get = condition.declared.get
    statistics = [f"--statistic {name}" for name in get("statistics", [])]
    options = [f"--{name.replace('_', '-')} {get(name)}" for name in OPTIONS if get(name) is not None]
    return " ".join(["toposcope intervene --out", condition.name, *statistics, *options])


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(each) for each in value) if len(value) <= 12 else counted(len(value), "value")
    return plain(value) if isinstance(value, int | float) and not isinstance(value, bool) else word(value)


Section = ReportSection[InterventionData]
SECTIONS: tuple[Section, ...] = (
    Section(
        anchor="answer",
        title="What the loss follows",
        tables={"verdicts": verdict_table, "comparisons": comparison_table, "effects": effect_table},
        charts=(arm_charts,),
        blocks=_answer_blocks,
        summary=lead,
    ),
    Section(
        anchor="early-speed",
        title="Early speed or a better model",
        tables={"conditions": condition_table, "condition_effects": condition_effects},
        charts=(condition_chart,),
        blocks=_caution_blocks,
        summary=caution,
    ),
    Section(anchor="power", title="Power", tables={"powers": power_table}, blocks=_power_blocks, summary=power_lead),
    Section(anchor="design", title="Design", blocks=_design_blocks),
)


def intervention_page(conditions: list[Condition]) -> Page[InterventionData]:
    """Return the page of the conditions; it is about the first."""
    return Page(SECTIONS, InterventionData(conditions, makers_of(SECTIONS)))


def write_intervention_page(folder: Path) -> Path:
    """Write the page of the results in a folder, finished or not, and return its path."""
    write_page(folder, TITLE, intervention_page(read_conditions(folder)))
    return folder / "index.html"
