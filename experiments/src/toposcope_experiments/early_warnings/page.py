"""What the page of early warnings says, and its sections."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from toposcope.extend import (
    FALSE_ALARM_RATE,
    Block,
    Column,
    Page,
    Picture,
    ReportSection,
    Spec,
    counted,
    csv_link,
    details,
    folded,
    interval_of,
    joined,
    makers_of,
    missing,
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
from toposcope_experiments.early_warnings.charts import lead_chart
from toposcope_experiments.early_warnings.referee import (
    AFTER,
    BEFORE,
    LOSS,
    MATRIX_NORM,
    MIN_APART,
    MIN_WARNING,
    SOON,
    ScoredRun,
)
from toposcope_experiments.early_warnings.tables import (
    GROUPS,
    PER,
    RULE,
    cadence_table,
    group_table,
    layer_table,
    lead_table,
    precursor_table,
    rule_table,
    together_table,
)
from toposcope_experiments.early_warnings.traces import QUIET
from toposcope_experiments.early_warnings.trials import (
    AT_CADENCE,
    H0_TOTAL,
    IN_SOME,
    LEADS,
    UNDETERMINED,
    EarlyWarningData,
)

TITLE = "Early warnings"
TOPOLOGY = r"^(neural persistence|H[01] |scale-free H[01] )"  # titles of topological quantities
MEASURED = (
    "Loss: of each batch; its variance and skewness are those of the last 64. Gradient norm: before clipping. "
    "Update over weights: how large a step the optimizer makes. Largest attention logit, entropy of the "
    "attention: attention that collapses has large logits and no entropy. Kurtosis: how far single activations "
    "stand out. Stable and effective rank: how many directions the weights use. Topology: a matrix is a set of "
    "points, one for each of its rows; H0 is how long the links are that hold them together, H1 how large the "
    "loops are that they form, scale-free where it is divided by the norm of the weights; neural persistence is "
    "how evenly strong the connections of a layer are. Hessian eigenvalue times the rate: how close training is "
    "to the edge at which steps overshoot."
)


def lead(data: EarlyWarningData) -> list[str]:
    """Return the sentences at the top of the page; the first one answers."""
    rows = data.tables["precursors"].filter(pl.col("precursor") != LOSS).to_dicts()
    if not rows or all(row["verdict"] == UNDETERMINED for row in rows):
        steps, needed = sum(run.judged_steps for run in data.runs if run.quiet), 2 * 2 / FALSE_ALARM_RATE
        few = f"Thresholds need {needed:,.0f} quiet steps, and there are {steps:,}."
        answer = "Whether anything warns before the loss does cannot be told from these runs."
        return [answer, *([few] if steps < needed else [])]
    found = [row for row in rows if row["verdict"] in (LEADS, IN_SOME)]
    names = [row["precursor"] for row in found]
    topology = [name for name in names if re.search(TOPOLOGY, name)]
    answer = (
        f"Of {counted(len(rows), 'quantity', 'quantities')} {len(found) or 'none'} "
        f"{'warn' if len(found) > 1 else 'warns'} of trouble before the loss does, at one false alarm in 100,000 steps"
        f"{': ' + joined(names) if names else ''}"
    )
    measured = any(re.search(TOPOLOGY, row["precursor"]) for row in rows)
    if measured and names:
        explained = topology == [H0_TOTAL] and any(row["gained_low"] <= 0 for row in _against_twin(data))
        does = "; topology does, but no more than the norm of the same matrices" if explained else "; topology does"
        answer += does if topology else "; topology is not shown to"
    in_kinds = {
        row["precursor"]: f"; it does so in {joined(row['led_kinds'].split(', ')) or 'no kind in most runs'}"
        for row in found
        if row["verdict"] == IN_SOME
    }
    said = [
        f"{row['precursor'][:1].upper()}{row['precursor'][1:]} {row['verdict']}: next to it, "
        f"{row['warned_by_both']:.0%} of troubles are warned of before their onset, and a trouble has "
        f"{row['gained']:.0f} steps of warning more on average "
        f"({row['gained_low']:.0f} to {row['gained_high']:.0f}){in_kinds.get(row['precursor'], '')}."
        for row in found
    ]
    rare = [row["precursor"] for row in rows if row["verdict"] == AT_CADENCE]
    others = [row["precursor"] for row in rows if row["verdict"] not in (LEADS, IN_SOME, AT_CADENCE)]
    rest = {
        "Measured too rarely to tell, as the gradient norm is not shown to lead either at their cadence:": rare,
        "Not shown to lead it, so not worth their cost:": others,
    }
    unled = [f"{words} {joined(which)}." for words, which in rest.items() if which]
    return [answer + ".", *said, *_on_alerts(data, names), *unled, *_on_topology(data)]


def _on_alerts(data: EarlyWarningData, leading: Sequence[str]) -> list[str]:
    """Say how often all that leads would alarm for nothing if it were watched at once."""
    joint = data.together
    few = "; the quiet runs can set no thresholds for more" if joint and len(joint.names) <= len(leading) else ""
    return [
        f"As alerts that share the one rate, {joined(row['alerts'].split(', '))} raise {row['rate']:.2f} false alarms "
        f"in 100,000 steps together ({row['rate_low']:.2f} to {row['rate_high']:.2f}; quiet runs that set no "
        f"threshold), and warn of {row['warned']:.0%} of troubles; the loss alone of {row['warned_by_loss']:.0%}{few}."
        for row in data.tables["together"].to_dicts()
    ]


def _on_topology(data: EarlyWarningData) -> list[str]:
    """Say in which kinds of trouble topology gains more than any plain quantity: means compared, untested."""
    kinds = data.tables["groups"].filter(by="kind")
    is_topology = pl.col("precursor").str.contains(TOPOLOGY)
    best = kinds.group_by("group", is_topology.alias("topology")).agg(pl.col("gained").fill_nan(None).max())
    gained = {(group, topology): steps or 0.0 for group, topology, steps in best.iter_rows()}
    groups = sorted({group for group, topology in gained if topology})
    ahead = [group for group in groups if gained[group, True] > max(0.0, gained.get((group, False), 0.0))]
    where = joined(ahead) if ahead else "no kind of trouble"
    said = f"Topology gains more steps of warning than every plain quantity in {where}, on average, untested."
    return [*([said] if groups else []), *_on_twin(data)]


def _on_twin(data: EarlyWarningData) -> list[str]:
    """Say whether H0 totals warn of more than that the weights grow."""
    return [
        f"{row['precursor']} warns of {row['warned']:.0%} of troubles, the norm of the same matrices, looked at as "
        f"rarely, of {row['warned_control']:.0%}: {row['gained']:+.1f} steps of warning ({row['gained_low']:.1f} to "
        f"{row['gained_high']:.1f}), "
        + ("more than the norm." if row["gained_low"] > 0 else "so nothing is shown beyond the growth of the weights.")
        for row in _against_twin(data)
    ]


def _against_twin(data: EarlyWarningData) -> list[dict[str, Any]]:
    """Return H0 totals against the norm of the same matrices; none without both."""
    return [row for row in data.tables["cadences"].to_dicts() if row["control"].startswith(MATRIX_NORM)]


def notes(data: EarlyWarningData) -> list[str]:
    """Return which runs are left out."""
    disturbed = sum(run.kind == QUIET and run.onset is not None for run in data.runs)
    calm = sum(run.kind != QUIET and run.onset is None for run in data.runs)
    held_out = data.trials[LOSS].reactions
    lone = sum(run.kind != QUIET and run.onset is not None and run.run not in held_out for run in data.runs)
    said = [
        (lone, f"{counted(lone, 'troubled run')} without a held-out quiet run of the same model as long: not used."),
        (disturbed, f"{counted(disturbed, 'run')} meant to be quiet had an onset: not used."),
        (calm, f"{counted(calm, 'run')} meant to be troubled had no onset: only what is noticed there is counted."),
    ]
    return [text for count, text in said if count]


_tenths, _two_digits = partial(signed, digits=1), partial(plain, digits=2)


def _range(low: str, high: str, write: Callable[[Any], str], group: str) -> Spec:
    """Return a column of intervals of what has no sign."""

    def written(row: Mapping[str, Any]) -> str:
        return write(None) if missing(row[low]) else f"{write(row[low])} to {write(row[high])}"

    return Column("95%", group=group), written


PERFORMANCE: tuple[Spec, ...] = (
    number_of("runs", "runs", whole),
    number_of("warned", "warned", share, group="before the onset"),
    _range("warned_low", "warned_high", share, "before the onset"),
    number_of("by chance", "by_chance", share, group="before the onset"),
    number_of("median steps", "lead", whole, group="before the onset"),
    _range("lead_low", "lead_high", whole, "before the onset"),
    number_of("mean steps, 0 if not", "steps", whole, group="before the onset"),
)
FALSE: tuple[Spec, ...] = (
    number_of("per 100,000 steps", "rate", _two_digits, group="false alarms"),
    _range("rate_low", "rate_high", _two_digits, "false alarms"),
)


def _precursor_blocks(data: EarlyWarningData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        text_of("quantity", "precursor", names_row=True),
        *PERFORMANCE,
        number_of("ahead", "ahead", share, group="against the loss"),
        number_of("behind", "behind", share, group="against the loss"),
        number_of("median lead", "over_loss", whole, group="against the loss"),
        number_of("warned by either", "warned_by_both", share, group="next to the loss"),
        number_of("steps gained", "gained", _tenths, group="next to the loss"),
        interval_of("95%", "gained_low", "gained_high", 1, group="next to the loss"),
        number_of("p, adjusted", "p_adjusted", p_value, group="next to the loss"),
        *FALSE,
        number_of("ms per step", "cost", lambda cost: _two_digits(None if cost is None else 1000 * cost)),
        text_of("verdict", "verdict", prose=True),
    )
    shared: tuple[Spec, ...] = (
        text_of("alerts", "alerts", names_row=True, prose=True),
        *FALSE,
        number_of("runs", "runs", whole),
        number_of("warned", "warned", share),
        number_of("by the loss alone", "warned_by_loss", share),
        number_of("steps gained", "gained", _tenths),
        interval_of("95%", "gained_low", "gained_high", 1),
    )
    others: tuple[Spec, ...] = (
        text_of("quantity", "precursor", names_row=True),
        text_of("choice of the first half", "choice_1"),
        text_of("choice of the second half", "choice_2"),
        number_of("noticed", "noticed", whole, group="faults that the loss never shows"),
        number_of("of", "silent", whole, group="faults that the loss never shows"),
        number_of("followed by an onset", "followed", whole, group="first alarms before it"),
        number_of("of", "alarmed", whole, group="first alarms before it"),
    )
    rows, alerts = data.tables["precursors"].to_dicts(), data.tables["together"].to_dicts()
    return (
        *pictures,
        table("precursors", "Each quantity, at one false alarm in 100,000 steps", specs, rows),
        paragraph(
            f"Warned: share of the held-out runs with an alarm {MIN_WARNING} or more steps before the onset, kinds of "
            "trouble counting alike; by chance: the same with the alarms of quiet runs of the same model at the same "
            "steps; against the loss: whether its first alarm, after the onset too, comes sooner or later than that "
            "of the loss, and by how much where both alarm; steps gained: steps of warning before the onset, at most "
            f"{SOON}, with both watched, each at half of the rate, less those of the loss alone. ",
            csv_link("precursors"), ", ",
            csv_link("leads"), ".", note=True,
        ),
        table("together", "All that leads, as alerts that share the one rate", shared, alerts) if alerts else None,
        details("What is measured", paragraph(MEASURED)),
        details("The rule", paragraph(RULE)),
        folded(table("choices", "Choices, and what was noticed and followed", others, rows), "Choices"),
        paragraph(
            f"Followed: an onset within {SOON} steps, of the runs with an alarm before any onset, quiet ones among "
            "them. It depends on how many of the runs are troubled.", note=True,
        ),
    )  # fmt: skip


def _cadence_blocks(data: EarlyWarningData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        text_of("quantity", "precursor", names_row=True),
        text_of("against", "control", names_row=True),
        number_of("runs", "runs", whole),
        number_of("ahead", "ahead", share),
        number_of("behind", "behind", share),
        number_of("warned", "warned", share),
        number_of("warned by the other", "warned_control", share),
        number_of("steps gained", "gained", _tenths),
        interval_of("95%", "gained_low", "gained_high", 1),
    )
    return (
        table("cadences", "What is measured rarely, against what is known as rarely", specs,
              data.tables["cadences"].to_dicts(), sortable=True),
        paragraph(
            "Each alone, at one false alarm in 100,000 steps. What is measured rarely warns late for that reason "
            "alone; the loss and the gradient norm are here looked at as rarely. The norm of the same matrices is the "
            "H0 total over the scale-free one: what the total has beside its shape. ",
            csv_link("cadences"), ".", note=True,
        ),
    )  # fmt: skip


def _group_blocks(data: EarlyWarningData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        text_of("quantity", "precursor", names_row=True),
        number_of("runs", "runs", whole),
        number_of("warned", "warned", share),
        number_of("median steps before", "lead", whole),
        number_of("steps gained", "gained", _tenths),
        number_of("first of all", "first", share),
        text_of("layer", "place"),
    )
    frame = data.tables["groups"]
    shown = frame.filter((pl.col("warned") > 0) | (pl.col("first") > 0)) if len(frame) else frame
    tables = [
        table(by, f"By {words}, what warns or comes first", (text_of(words, "group", names_row=True), *specs), rows)
        for by, words in GROUPS.items()
        if (rows := shown.filter(by=by).to_dicts() if len(shown) else [])
    ]
    return (
        *tables[:1],
        *(folded(each, each.caption) for each in tables[1:] if each is not None),
        paragraph(
            "First of all: share of the runs in which no other quantity alarms earlier. Layer: the one that most often "
            "was furthest from its level at the first alarm. ", csv_link("groups"), ".", note=True,
        ),
    )  # fmt: skip


def _layer_blocks(data: EarlyWarningData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        text_of("quantity", "precursor", names_row=True),
        text_of("layer", "place", names_row=True),
        number_of("runs", "runs", whole),
        number_of("share", "share", share),
        number_of("median step of the alarm, from the onset", "at", whole),
    )
    return (table("layers", "Which layer leads", specs, data.tables["layers"].to_dicts(), sortable=True),)


def _rule_blocks(data: EarlyWarningData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        text_of("rule", "rule", names_row=True),
        text_of("threshold", "at", names_row=True),
        number_of("mean threshold", "threshold", plain),
        *PERFORMANCE,
        *FALSE,
        number_of("share of steps above", "above", share, group="false alarms"),
        text_of("source", "source", prose=True),
    )
    return (
        table("rules", "Published rules", specs, data.tables["rules"].to_dicts()),
        paragraph(
            "As published, and with the threshold at which they raise one false alarm in 100,000 steps. A rule that "
            "skips a step or clips a gradient may well act too often; as a warning it is read by somebody. Above: "
            "share of the quiet steps, since alarms close to each other count as one. ",
            csv_link("rules"), ".", note=True,
        ),
    )  # fmt: skip


def _design_blocks(data: EarlyWarningData, _: Sequence[Picture]) -> Iterable[Block | None]:
    quiet = [run for run in data.runs if run.quiet]
    troubled = [run for run in data.runs if run.kind != QUIET and run.onset is not None]
    n_steps = sum(run.judged_steps for run in quiet)
    return (
        paragraph(
            f"{len(quiet):,} quiet runs of {n_steps:,} judged steps, and {len(troubled):,} runs with "
            f"an onset, of {counted(len({run.kind for run in troubled}), 'kind')}. Thresholds come from half of the "
            "quiet runs; transform, aggregation of layers and side from half of the kinds; all is "
            "scored on the other halves, and then the other way round. Halves: every other name, ordered by SHA-256."
        ),
        paragraph(
            f"An alarm warns if it comes {MIN_WARNING} to {BEFORE} steps before the onset, and not before a fault was "
            f"planted; one {AFTER} or more steps after the onset counts as none. Alarms at most {MIN_APART} steps "
            "apart are one."
        ),
    )


Section = ReportSection[EarlyWarningData]
SECTIONS: tuple[Section, ...] = (
    Section(
        anchor="precursors",
        title="What warns first",
        position=10,
        tables={"precursors": precursor_table, "leads": lead_table, "together": together_table},
        charts=(lead_chart,),
        blocks=_precursor_blocks,
        summary=lead,
        notes=notes,
    ),
    Section(
        anchor="cadences",
        title="What is measured rarely",
        position=15,
        tables={"cadences": cadence_table},
        blocks=_cadence_blocks,
    ),
    Section(
        anchor="groups", title="By kind of trouble", position=20, tables={"groups": group_table}, blocks=_group_blocks
    ),
    Section(
        anchor="layers", title="Which layer leads", position=30, tables={"layers": layer_table}, blocks=_layer_blocks
    ),
    Section(anchor="rules", title="Published rules", position=40, tables={"rules": rule_table}, blocks=_rule_blocks),
    Section(anchor="design", title="Design", position=50, blocks=_design_blocks),
)
assert PER * FALSE_ALARM_RATE == 1  # the page says one in 100,000


def early_warning_page(runs: list[ScoredRun]) -> Page[EarlyWarningData]:
    """Return the page of scored runs."""
    return Page(SECTIONS, EarlyWarningData(runs, makers_of(SECTIONS)))
