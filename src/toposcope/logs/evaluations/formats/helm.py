"""Results of HELM: ``stats.json`` beside ``run_spec.json``, ``runs.json`` of a suite, and tables of groups."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.evaluations import SCHEMA, RawEvaluations, as_raw
from toposcope.logs.evaluations.formats import EvaluationFile, as_number, dictionary, object_in
from toposcope.logs.evaluations.formats.table import read_table
from toposcope.logs.evaluations.tasks import metric_of
from toposcope.logs.raw import join_names, plural

SCORES = frozenset(
    """
    f1_score classification_micro_f1 classification_macro_f1 rouge_2 bleu_4 ndcg_at_10 rr_at_10
    final_number_exact_match math_equiv math_equiv_chain_of_thought code_eval_acc pass ifeval_strict_accuracy
    chain_of_thought_correctness wildbench_score_rescaled omni_math_accuracy
    """.split()
)
"""Further names of scores than `toposcope.logs.evaluations.tasks.SCORES`."""
SPLITS = ("test", "valid")
OF_THE_ASKING = frozenset(
    """
    model model_deployment method data_augmentation max_train_instances num_train_trials stop instructions
    eval_split train_split num_outputs groups follow_format_instructions max_tokens use_official_examples
    use_chain_of_thought output_format output_format_instructions temperature
    """.split()
)
"""Arguments of a run that say how a task is asked, not which it is."""
SUITE = ("runs.json", "run_specs.json")


def claims(material: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether it is statistics of a run, those of all runs, or tables of groups."""
    return bool(_stats(material)) or bool(_tables(material))


def evaluations(material: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the scores of each run, or those of the table of accuracies."""
    if tables := _tables(material):
        return [_of_groups(tables, material.path)]
    rows, unread = [], set()
    for spec, stats in _stats(material):
        known = [
            stat for stat in stats if as_number(stat.get("mean")) is not None and not stat["name"].get("perturbation")
        ]
        split = next((s for s in SPLITS if any(stat["name"].get("split") == s for stat in known)), None)
        known = [stat for stat in known if stat["name"].get("split") == split and not stat["name"].get("sub_split")]
        values = {str(stat["name"]["name"]): as_number(stat.get("mean")) for stat in known}
        scores = {name: value for name, value in values.items() if _is_score(name)}
        unread |= set(values) - set(scores) - {"num_instances"}
        about = _about(spec, material.path) | {"n": int(values.get("num_instances") or 0) or None}
        rows += [about | {"metric": name, "value": value} for name, value in scores.items()]
    if not rows:
        raise ToposcopeError(f"no score among its statistics: {join_names(sorted(unread), 6)}")
    remarks = [
        f"{plural(len(unread), 'statistic', 'statistics')} of HELM not read, such as {join_names(sorted(unread), 4)}"
    ]
    table = as_raw(pl.from_dicts(rows, infer_schema_length=None))
    return [RawEvaluations(material.path, table, tuple(remarks if unread else ()), named=True)]


def _stats(material: EvaluationFile) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the specification and the statistics of each run in a file; none of another file."""
    document = material.document
    if not isinstance(document, list) or not document or not all(isinstance(part, dict) for part in document):
        return []
    if all(_is_stat(part) for part in document):
        return [(object_in(material.path.with_name("run_spec.json")), document)]
    of_runs = [
        part for part in document if isinstance(part.get("stats"), list) and isinstance(part.get("run_spec"), dict)
    ]
    return [(part["run_spec"], [stat for stat in part["stats"] if _is_stat(stat)]) for part in of_runs]


def _is_stat(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("name"), dict) and "name" in part["name"] and "count" in part


def _is_score(name: str) -> bool:
    plain = re.sub(r"\W+", "_", name.replace("@", "_at_")).lower()
    return plain in SCORES or metric_of(name).role in ("score", "loss")


def _about(spec: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return task, shots and model of a run, of its folder's name where it has no specification."""
    name = str(spec.get("name") or path.parent.name)
    scenario, _, rest = name.partition(":")
    arguments = dict(part.partition("=")[::2] for part in rest.split(",") if "=" in part)
    which = {key: value for key, value in arguments.items() if key not in OF_THE_ASKING}
    adapter = dictionary(spec.get("adapter_spec"))
    # commonsense:dataset=openbookqa
    task = which.pop("dataset", "") or scenario
    return {
        "run": str(adapter.get("model") or arguments.get("model", "").replace("_", "/", 1)) or None,
        "task": "_".join([task, *which.values()]),
        "shots": shots if isinstance(shots := adapter.get("max_train_instances"), int) else None,
    }


def _tables(material: EvaluationFile) -> list[dict[str, Any]]:
    """Return the tables in a file of a group: a heading, a header and rows of cells; none of another file."""
    tables = material.document if isinstance(material.document, list) else [material.document]
    return [table for table in tables if isinstance(table, dict) and _is_table(table)] if tables else []


def _is_table(table: Mapping[str, Any]) -> bool:
    header, rows = table.get("header"), table.get("rows")
    cells = isinstance(header, list) and header and all(isinstance(cell, dict) and "value" in cell for cell in header)
    return bool(cells) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)


def _of_groups(tables: list[dict[str, Any]], path: Path) -> RawEvaluations:
    """Return the scores in the table of accuracies, unless the runs that it sums up are beside it."""
    if any((folder / name).is_file() for folder in path.parents[:4] for name in SUITE):
        empty = pl.DataFrame(schema=SCHEMA)
        return RawEvaluations(path, empty, (f"{path.name}: a table of HELM over the runs beside it, not read",))
    table = next((table for table in tables if table.get("title") == "Accuracy"), tables[0])
    others = [str(other.get("title")) for other in tables if other is not table]
    remarks = (f"tables of HELM not read: {join_names(others, 20)}",) if others else ()
    names = [_column(cell) for cell in table["header"]]
    rows = [
        [str(_value(row, i)) if _value(row, i) is not None else None for i in range(len(names))]
        for row in table["rows"]
    ]
    columns = {
        name: pl.Series([row[i] for row in rows], dtype=pl.String) for i, name in reversed(list(enumerate(names)))
    }
    return read_table(pl.DataFrame(dict(reversed(columns.items()))), path, {}, remarks)


def _column(cell: Mapping[str, Any]) -> str:
    """Return task and metric of a column, or its heading."""
    about = dictionary(cell.get("metadata"))
    if about.get("run_group") and about.get("metric"):
        return f"{about['run_group']} ({about['metric']})"
    heading = str(cell["value"])
    return "model" if heading in ("Model/adapter", "Model") else re.sub(r"(.+) - (.+)", r"\1 (\2)", heading)


def _value(row: list[Any], i: int) -> object:
    return row[i].get("value") if i < len(row) and isinstance(row[i], dict) else None
