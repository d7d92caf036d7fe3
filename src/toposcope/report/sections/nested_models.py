"""Whether topology predicts the end of a run better than loss, schedule and norms do; over a population of runs."""

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from toposcope.analysis.nested_models.fitting import WITH_PLAIN
from toposcope.analysis.nested_models.population import CONFIGURATIONS, NestedPopulation, nested_population
from toposcope.analysis.nested_models.tables import (
    DRAWS,
    MIN_RUNS,
    MODELS,
    RIDGE,
    NestedModels,
    nested_models,
    tested_rows,
)
from toposcope.analysis.nested_models.verdicts import RULE, SCHEMA, finding, nested_verdicts
from toposcope.analysis.wording import counted, examples
from toposcope.report.charts.nested_models import nested_models_charts
from toposcope.report.document import Block, Picture, csv, folded, say
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import (
    Spec,
    interval_of,
    number_of,
    p_value,
    percent,
    percent_of,
    plain,
    table,
    text_of,
    whole,
)

VERDICTS: tuple[Spec, ...] = (
    text_of("target", "target", names_row=True),
    text_of("topology", "verdict"),
    number_of("runs", "n_runs", whole),
    number_of("tests", "n_tests", whole, group="topology"),
    number_of("significant", "n_significant", whole, group="topology"),
    number_of("lowest p, adjusted", "p_adjusted", p_value, group="topology"),
    number_of("draws", "n_shuffled", whole, group="topology of other runs"),
    number_of("found", "n_shuffled_found", whole, group="topology of other runs"),
    number_of("draws", "n_planted", whole, group="planted feature"),
    number_of("found", "n_planted_found", whole, group="planted feature"),
    number_of("projections", "skill_projections", group="best skill of a control"),
    number_of("twin", "skill_twin", group="best skill of a control"),
)
ROWS: tuple[Spec, ...] = (
    text_of("target", "target"),
    percent_of("seen, %", "fraction"),
    text_of("left out", "left_out"),
    text_of("by", "learner"),
    text_of("model", "model", names_row=True),
    number_of("columns", "n_columns", whole),
    number_of("MAE", "mae", plain),
    text_of("beside", "versus"),
    number_of("skill", "skill"),
    interval_of("95% interval", "skill_low", "skill_high", 3),
    number_of("p", "p", p_value),
    number_of("p, ranks", "p_wilcoxon", p_value),
    number_of("p, adjusted", "p_adjusted", p_value),
)
CONTROLS: tuple[Spec, ...] = (
    text_of("target", "target"),
    percent_of("seen, %", "fraction"),
    text_of("control", "control", names_row=True),
    text_of("in place of", "model"),
    number_of("noise", "noise", plain),
    number_of("draws", "n_draws", whole),
    number_of("mean skill", "skill"),
    interval_of("range", "skill_least", "skill_most", 3),
    number_of("significant", "n_found", whole),
    number_of("as good as topology", "n_as_good", whole),
)


def _population(material: Material) -> NestedPopulation:
    return material.once(
        "nested population",
        lambda: nested_population(
            material.trajectories, material.log, material.runs, material.population, material.targets
        ),
    )


def _fitted(material: Material) -> NestedModels | None:
    """Return the models of a population; None where there are too few runs for any."""
    population = _population(material)
    if len(population.runs) < MIN_RUNS:
        return None
    return material.once("nested models", lambda: nested_models(population, material.adjust, material.workers))


def _models(material: Material) -> pl.DataFrame:
    fitted = _fitted(material)
    return fitted.models if fitted else pl.DataFrame(schema=MODELS)


def _draws(material: Material) -> pl.DataFrame:
    fitted = _fitted(material)
    return fitted.draws if fitted else pl.DataFrame(schema=DRAWS)


def _verdicts(material: Material) -> pl.DataFrame:
    fitted = _fitted(material)
    return nested_verdicts(fitted) if fitted else pl.DataFrame(schema=SCHEMA)


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    models, draws, verdicts = (material.tables[name] for name in SECTION.tables)
    if not len(models):
        return ()
    left_out = _population(material).left_out
    rows = models.filter(left_out=CONFIGURATIONS, learner=RIDGE).to_dicts()
    full = table("nested-models-all", "Every model, however runs are left out", ROWS, models.to_dicts(), sortable=True)
    main = table("nested-models", "Models by ridge regression, runs left out", ROWS, rows, sortable=True)
    drawn = table("nested-draws", "Topology of other runs, and planted features", CONTROLS, draws.to_dicts())
    return (
        *(say(text) for text in verdicts.get_column("sentence")),
        table("nested-verdicts", "What topology adds, and what its controls do", VERDICTS, verdicts.to_dicts()),
        *pictures,
        say(
            "Each model has the columns of the one named beside it and some more; topology, projections and twin are "
            f"each added to the model '{WITH_PLAIN}'. Skill is 1 − MAE / MAE of the model beside it, on runs it was "
            f"not fitted to. {_elsewhere(models)}"
        ),
        say(f"Left out: {examples([f'{run} ({why})' for run, why in left_out.items()])}.", note=True)
        if left_out
        else None,
        folded(main, "Models by ridge regression, runs left out", max_rows=0),
        folded(full, "Every model, however runs are left out", max_rows=0),
        folded(drawn, "Topology of other runs, and planted features", max_rows=0),
        say("All: ", csv("nested_models"), ", ", csv("nested_draws"), ", ", csv("nested_verdicts"), "."),
    )


def _named(left_out: Mapping[str, str]) -> str:
    return examples([f"{run} ({why})" for run, why in left_out.items()])


def _elsewhere(models: pl.DataFrame) -> str:
    """Say what topology adds where whole sizes, bands of learning rates or corpora are left out."""
    target = models.get_column("target").item(0)
    tested = models.filter(tested_rows()).get_column("model").unique()
    others = models.filter(pl.col("left_out") != CONFIGURATIONS, pl.col("model").is_in(tested.to_list()), target=target)
    said = [
        f"{percent(min(part['skill']))} to {percent(max(part['skill']))} with whole {name} left out"
        for (name,), part in others.group_by("left_out", maintain_order=True)
    ]
    return f"Of the {target} topology's skill is {'; '.join(said)}." if said else ""


def _methods(material: Material) -> Iterable[Block | None]:
    if len(material.tables["nested_models"]):
        return (say(RULE),)
    n = len(_population(material).runs)
    return (say(f"Nested models: not fitted; {counted(n, 'run')} can be compared, and it takes {MIN_RUNS}."),)


def _summary(material: Material) -> list[str]:
    """Say what topology adds to a forecast of the final loss."""
    if not len(material.tables["nested_models"]):
        return []
    return material.tables["nested_verdicts"].get_column("sentence").to_list()[:1]


def _finding(material: Material) -> str:
    if not len(material.tables["nested_models"]):
        return ""
    return finding(*material.tables["nested_verdicts"].select("target", "verdict").row(0))


SECTION = ReportSection(
    anchor="nested-models",
    title="What topology adds to a forecast",
    position=96,
    tables={"nested_models": _models, "nested_draws": _draws, "nested_verdicts": _verdicts},
    charts=(nested_models_charts,),
    blocks=_blocks,
    finding=_finding,
    summary=_summary,
    summary_position=4,
    methods=_methods,
)
