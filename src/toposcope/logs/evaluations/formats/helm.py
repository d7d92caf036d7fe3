"""Runs of HELM: ``runs/<suite>/<run spec>/`` with ``stats.json`` and ``run_spec.json``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.material import Material
from toposcope.logs.evaluations.names import read_name, without_checkpoint
from toposcope.logs.evaluations.raw import RawEvaluations, as_raw
from toposcope.logs.raw import join_names

STATS, SPEC = "stats.json", "run_spec.json"
HEADLINES = (
    *("chain_of_thought_correctness", "final_number_exact_match", "math_equiv_chain_of_thought", "math_equiv"),
    *("ifeval_strict_accuracy", "omni_math_accuracy", "wildbench_score_rescaled", "exact_match"),
    *("quasi_exact_match", "f1_score", "NDCG@10", "bleu_4", "rouge_2", "exact_match_indicator", "accuracy"),
    "bits_per_byte",
)
"""Metrics by which HELM ranks models, those of single scenarios first."""
HEADLINE_OF = dict.fromkeys(("narrative_qa", "natural_qa", "quac"), "f1_score") | dict.fromkeys(
    ("boolq", "imdb", "civil_comments", "raft", "legalbench", "med_qa"), "quasi_exact_match"
)
"""Scenarios that HELM ranks by another metric than the first of `HEADLINES`."""


def claims(material: Material, columns: Mapping[str, str]) -> bool:
    """Return whether it is the folder of a run, or its statistics."""
    if material.path.is_dir():
        return (material.path / STATS).is_file() and (material.path / SPEC).is_file()
    return material.path.name == STATS and bool(_means(material))


def evaluations(material: Material, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the headline metric of a run, without perturbations."""
    folder = material.path if material.path.is_dir() else material.path.absolute().parent
    spec, means = _spec(folder), _means(Material(folder / STATS))
    scenario = str(spec["name"]).partition(":")[0].partition(",")[0]
    order = (HEADLINE_OF.get(scenario, ""), *HEADLINES)
    split, metric = next(((s, m) for s in ("test", "valid") for m in order if (s, m) in means), ("", ""))
    if not metric:
        known = join_names(sorted({name for _, name in means}), 6) or "none"
        raise ToposcopeError(f"no headline metric of the split test or valid in {STATS}; it has {known}")
    adapter = spec["adapter_spec"] if isinstance(spec.get("adapter_spec"), dict) else {}
    named = (adapter.get("model"), _arguments(spec).get("model"), folder.name)
    model = next(name for name in named if isinstance(name, str) and name)
    said = read_name(model)
    n, shots = means.get((split, "num_instances")), adapter.get("max_train_instances")
    row = {
        "run": without_checkpoint(model) or model,
        "D": said.D,
        "step": said.step,
        "task": _task(scenario, spec),
        "shots": shots if isinstance(shots, int) and 0 <= shots < 1000 else None,
        "metric": metric,
        "value": means[split, metric],
        "n": n if n and n == int(n) else None,
    }
    remark = "of the metrics of HELM the one by which it ranks models is read, without perturbations"
    return [RawEvaluations(folder, as_raw(pl.from_dicts([row])), (remark,), named=True)]


def _means(material: Material) -> dict[tuple[str, str], float]:
    """Return the mean of each metric by split and name: of whole splits, without perturbations."""
    document = material.documents[0] if len(material.documents) == 1 else None
    means: dict[tuple[str, str], float] = {}
    for stat in document if isinstance(document, list) else ():
        name, mean = (stat.get("name"), stat.get("mean")) if isinstance(stat, dict) else (None, None)
        if not isinstance(name, dict) or not isinstance(mean, int | float) or isinstance(mean, bool):
            continue
        if not name.get("perturbation") and not name.get("sub_split"):
            means.setdefault((str(name.get("split")), str(name.get("name"))), float(mean))
    return means


def _spec(folder: Path) -> dict[str, Any]:
    """Return the specification of a run; without a file of it, what the folder's name says."""
    documents = Material(folder / SPEC).documents if (folder / SPEC).is_file() else []
    return {"name": folder.name} | (documents[0] if documents and isinstance(documents[0], dict) else {})


def _arguments(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments in the name of a run: ``mmlu:subject=anatomy,model=openai_gpt2``."""
    parts = (part.partition("=") for part in str(spec["name"]).partition(":")[2].split(","))
    return {key: value for key, _, value in parts if value}


def _task(scenario: str, spec: Mapping[str, Any]) -> str:
    """Return the scenario with the arguments that make it a task of its own: ``mmlu_anatomy``."""
    definition = spec.get("scenario_spec")
    arguments = definition.get("args") if isinstance(definition, dict) else None
    if not isinstance(arguments, dict):
        arguments = {k: v for k, v in _arguments(spec).items() if k in ("subject", "dataset", "subset", "task")}
    words = [str(key if value is True else value) for key, value in arguments.items() if value is not False]
    texts = [word for word in words if len(word) < 60 and "/" not in word]  # no paths, no lists
    # the scenario commonsense is no task, only the name before those of datasets
    return "_".join(texts if scenario == "commonsense" and texts else [scenario, *texts])
