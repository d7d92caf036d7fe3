"""Whether transitions of topology coincide with those of the loss, or lead them."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.efficiency import NP_SPEED, PER_STEP, PER_TOKEN
from toposcope.analysis.transitions import GROUPS, LOSS, NO, RATE, YES, transition_table
from toposcope.probes.feature import NETWORK
from toposcope.report.association_tables import SHORT
from toposcope.report.document import Block, Picture, folded, linked
from toposcope.report.headline import TARGETS, named, uncapitalised
from toposcope.report.not_made import needs_checkpoints, needs_features, needs_loss
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Column, Table, feature_of, numbers, table, text_of

OTHERS = {LOSS: "loss", RATE: "learning rate", **{name: TARGETS[name] for name in (PER_STEP, PER_TOKEN)}}


def answer(rows: pl.DataFrame) -> str:
    """Say whether transitions of the network's topology coincide with others, or lead them."""
    rows = rows.filter(group=NETWORK) if len(rows) else rows
    if not len(rows):
        return ""
    n, weak = len(rows), len(rows.filter(~pl.col("found").is_in([YES, NO])))
    if len(found := rows.filter(found=YES).sort("p")):
        row = found.row(0, named=True)
        more = f"; {len(found)} of {n} tests" if len(found) > 1 else ""
        return f"Yes: those of {uncapitalised(named(row['feature']))} {row['relation']} ({OTHERS[row['target']]}){more}"
    if 2 * weak < n:
        return "None found to coincide or lead" + (f"; {weak} of {n} tests have too little power" if weak else "")
    return f"Cannot be told: {weak} of {n} tests have too little power, the others find nothing"


def _table(name: str, caption: str, rows: pl.DataFrame) -> Table | None:
    specs = (
        text_of("of", "part", names_row=True),
        feature_of(),
        (Column("and the", True, names_row=True), lambda row: OTHERS[row["target"]]),
        text_of("do they", "relation"),
        text_of("found", "found"),
        *numbers("change points", whole={"topology": "changes", "other": "target_changes"}),
        *numbers("share aligned", share={"seen": "share", "by chance": "expected"}),
        *numbers("test", p_value={"p-value": "p", "adjusted": "p_adjusted"}, share={"power": "power"}),
    )
    return table(name, caption, specs, rows.rename({"group": "part"}).to_dicts())


def _blocks(data: StudyData, _: Sequence[Picture]) -> Iterable[Block | None]:
    """Answer the question, and show the tests; those of layers, and efficiency next to speed, apart."""
    rows = data.tables["transitions"]
    if not len(rows):
        return ()
    whole, layers = (rows.filter(pl.col("group").is_in(GROUPS) == kept) for kept in (True, False))
    paces = data.tables["association"].filter(feature=str(NP_SPEED)).to_dicts()
    note = (
        "Change points: those that no smooth trend explains; all count, the more the less a trend explains them. "
        "Compared with blocks of checkpoints moved in all runs alike, and with series of the same trend and noise: p "
        "is the larger, adjusted over the tests of the network, of attention and MLP, and of layers. Power: how often "
        "half of topology's change points, planted there, would be found. All: transitions.csv."
    )
    return (
        linked(f"{answer(rows)}. A transition is a change point; it leads from up to a tenth of the run before."),
        linked(note, note=True),
        _table("transitions", "Transitions of the network, attention and MLP", whole),
        folded(_table("transitions-of-layers", "Transitions of layers", layers), max_rows=0),
        table("efficiency", "Efficiency and the speed of neural persistence", SHORT, paces),
    )


SECTION = ReportSection(
    anchor="transitions",
    title="Transitions",
    position=112,
    tables={"transitions": lambda data: transition_table(data.trajectories, data.progress)},
    blocks=_blocks,
    finding=lambda data: answer(data.tables["transitions"]),
    needs={"transitions": (needs_loss, needs_features, needs_checkpoints(6))},
)
