"""What topology adds to the forecasts of a study, as sections of a page."""

import polars as pl

from toposcope.experiments.topology_gain.gain import TopologyChance
from toposcope.report.document import Section, csv, say, section
from toposcope.report.tables import Spec, interval_of, number_of, p_value, plain, table, text_of, whole


def topology_sections(chance: TopologyChance, rules: pl.DataFrame) -> list[Section | None]:
    """Return the sections: topology's chance, and the published rules where they can be asked.

    Parameters
    ----------
    chance : TopologyChance
    rules : polars.DataFrame
        From `published_rules`; may have no rows.
    """
    verdict = say(f"{chance.verdict()} ", csv("topology"), ", ", csv("topology_placebos"), ".")
    notes = [say(note, note=True) for note in chance.notes]
    found = table("topology", "Errors with topology and without", ERRORS, chance.errors.to_dicts())
    placebos = table("topology_placebos", "Placebos in its place", PLACEBOS, chance.placebos.to_dicts())
    sections: list[Section | None] = [section("topology", "Topology's chance", verdict, found, placebos, *notes)]
    if len(rows := rules.to_dicts()):
        told = say(
            "The rules of the published study beside the same blend without topology, and beside the default here. ",
            csv("rules"),
            ".",
        )
        sections.append(section("rules", "The published rules", told, table("rules", "Mean errors", RULES, rows)))
    return sections


def topology_tables(chance: TopologyChance, rules: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the same as frames, by name."""
    return {"topology": chance.errors, "topology_placebos": chance.placebos, "rules": rules}


def _percent(value: float | None) -> str:
    return plain(None if value is None else 100 * value)


ERRORS: tuple[Spec, ...] = (
    number_of("seen, %", "fraction", _percent),
    text_of("forecaster", "forecaster", names_row=True),
    number_of("runs", "n", whole),
    number_of("groups", "n_groups", whole),
    number_of("MAE", "mae", plain),
    number_of("skill beside norms", "skill"),
    interval_of("95% interval", "skill_low", "skill_high", 3),
    number_of("p", "p", p_value),
    number_of("p, adjusted", "p_adjusted", p_value),
)
PLACEBOS: tuple[Spec, ...] = (
    number_of("seen, %", "fraction", _percent),
    text_of("placebo", "placebo", names_row=True),
    number_of("draws", "n_draws", whole),
    number_of("mean skill", "skill"),
    interval_of("range", "skill_least", "skill_most", 3),
    number_of("as good as topology", "n_as_good", whole),
)
RULES: tuple[Spec, ...] = (
    text_of("target", "protocol"),
    number_of("seen, %", "fraction", _percent),
    text_of("forecaster", "forecaster", names_row=True),
    number_of("runs", "n", whole),
    number_of("MAE, nats", "mae", plain),
    number_of("worst, nats", "worst", plain),
)
