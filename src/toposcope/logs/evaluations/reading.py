"""Scores of tasks that any tool wrote, read from a file or a folder."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from toposcope.errors import ToposcopeError
from toposcope.files import refuse_link
from toposcope.logs.evaluations.combining import combine
from toposcope.logs.evaluations.evaluations import Evaluations, RawEvaluations
from toposcope.logs.evaluations.formats import read_raw
from toposcope.logs.formats import existing, nothing_read, search
from toposcope.logs.raw import join_names

NAMED = tuple("run recipe N D step seed task shots metric value n standard_error chance score".split())
"""What the caller can say that a column is; ``score`` is the metric that counts."""
KINDS = (
    "results of lm-evaluation-harness, OLMES, OpenCompass, MTEB or HELM, a table with tasks (CSV, Parquet, JSON "
    "lines), a study"
)
MAX_DEPTH = 6  # folders below the given one that are searched
FILES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".pq")
MARKDOWN = (".md", ".markdown")
"""Files of a folder that are searched where no others hold evaluations, which a README tells again."""
PER_QUESTION = ("predictions", "requests", "recorded-inputs")
"""Ends of names of files with a row for each question, which are not read."""
WITH_RESULTS = frozenset("per_instance_stats scenario_state instances scenario run_spec run_specs model_meta".split())
"""Names of files that hold questions, or what is read together with the results beside them."""
RUNS = ("runs.csv", "runs.tsv", "runs.parquet", "runs.json", "runs.jsonl")
"""Tables of what is known of the runs in the files beside them."""


def read_evaluations(
    path: str | Path, *, columns: Mapping[str, str] | None = None, chance: Mapping[str, float] | None = None
) -> Evaluations:
    """Read the scores and losses of all runs that a file or folder holds."""
    columns = dict(columns or {})
    for quantity in columns:
        if quantity not in NAMED:
            raise ToposcopeError(f"no column can be named to be {quantity!r}; choose from {', '.join(NAMED)}")
    path = existing(path)
    parts = read_raw(path, columns)
    errors: list[str] = []
    if parts is None and path.is_dir():

        def read(endings: tuple[str, ...], one: Path) -> list[RawEvaluations] | None:
            if one.is_file() and (one.suffix.lower() not in endings or _is_per_question(one)):
                return None
            refuse_link(one, path)
            return read_raw(one, columns)

        parts = search(path, MAX_DEPTH, partial(read, FILES), errors)
        parts = parts or search(path, MAX_DEPTH, partial(read, MARKDOWN), errors)
    elif parts is not None and path.is_file():
        parts += _beside(path, columns)
    if not parts:
        named = [name for quantity, name in columns.items() if quantity != "score"]
        reason = f", and no column {join_names(named)}" if named else ""
        raise nothing_read(errors, f"{path}: holds no evaluations of a known format ({KINDS}){reason}")
    try:
        combined = combine(parts, columns.get("score", ""), chance)
    except ToposcopeError as error:
        raise ToposcopeError(f"{path}: {error}") from error
    left_out = tuple(f"left out: {error}" for error in errors)
    return Evaluations(combined.table, combined.targets, (*left_out, *combined.remarks))


def _beside(path: Path, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the table of runs beside a file."""
    beside = next((path.with_name(name) for name in RUNS if path.name != name and path.with_name(name).is_file()), None)
    if beside:
        refuse_link(beside, path.parent)
    found = read_raw(beside, {}) if beside else None
    return [part for part in found or [] if part.table["task"].is_null().all()]


def _is_per_question(path: Path) -> bool:
    return path.name.startswith("samples_") or path.stem.endswith(PER_QUESTION) or path.stem in WITH_RESULTS
