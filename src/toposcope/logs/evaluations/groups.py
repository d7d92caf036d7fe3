"""Scores over several tasks: averages are no tasks, a group's average is the group's score, MMLU is its 57 subjects."""

import re

import polars as pl

from toposcope.logs.evaluations.tasks import own_words, standard_task, task_words
from toposcope.logs.raw import join_names, plural

AVERAGES = frozenset(
    "average averages averaged avg mean overall aggregate aggregated moyenne promedio durchschnitt".split()
)
"""Words of a score over several tasks."""
_OF_AVERAGES = frozenset(
    {
        *AVERAGES,
        *("all", "macro", "micro", "weighted", "unweighted", "total", "final", "global", "grand", "main", "normalized"),
        *("score", "scores", "acc", "accuracy", "norm", "result", "results", "performance", "tasks", "task", "evals"),
        *("benchmark", "benchmarks", "leaderboard", "open", "llm", "of", "over", "across", "the", "v1", "v2", "raw"),
        *("shot", "shots", "geometric", "arithmetic", "harmonic", "rate", "win", "in", "percent", "zero", "few"),
    }
)
_ALONE = tuple("all total macro micro macro_avg micro_avg all_tasks total_score final_score openllm score".split())
"""Names of averages without a word of `AVERAGES`, or joined in one word."""
SUBJECTS = frozenset(
    """
    abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
    college_computer_science college_mathematics college_medicine college_physics computer_security
    conceptual_physics econometrics electrical_engineering elementary_mathematics formal_logic global_facts
    high_school_biology high_school_chemistry high_school_computer_science high_school_european_history
    high_school_geography high_school_government_and_politics high_school_macroeconomics high_school_mathematics
    high_school_microeconomics high_school_physics high_school_psychology high_school_statistics
    high_school_us_history high_school_world_history human_aging human_sexuality international_law jurisprudence
    logical_fallacies machine_learning management marketing medical_genetics miscellaneous moral_disputes
    moral_scenarios nutrition philosophy prehistory professional_accounting professional_law professional_medicine
    professional_psychology public_relations security_studies sociology us_foreign_policy virology world_religions
    """.split()
)
"""The 57 parts of MMLU (Hendrycks et al. 2021)."""
_MMLU = re.compile(r"(?:(?:leaderboard|harness|lighteval|original|helm|lukaemon)_)*(?:mmlu|hendrycks_?test)_(.+)")
_AVERAGE_FIRST = re.compile(r"(?:average|avg|mean|overall)[^a-z0-9]+(?:(?:of|over|across)\W+)?(.+)", re.IGNORECASE)
_AVERAGE_LAST = re.compile(
    r"(.+?)[^a-z0-9]+(?:(?:macro|micro)[^a-z0-9]*)?(?:average|avg|mean|overall)\W*", re.IGNORECASE
)
_KEY_OF_ROW = ["recipe", "run", "N", "D", "step", "seed", "shots", "metric"]
_KEY = [*_KEY_OF_ROW, "kind"]  # what the parts of one score of MMLU agree in
GROUPS = frozenset({"mmlu", "hendryckstest", "bbh", "ceval", "c_eval", "cmmlu", "agieval"})
"""Tasks of many parts, whose score is that of all."""
MIN_PARTS = 3
"""Names that begin with such a task's, from which on they are its parts: ``mmlu_cot`` alone is another way to ask."""
OTHER_TASKS = frozenset({"pro", "redux", "agi", "plus"})
"""Words that make a name another task: MMLU-Pro is no part of MMLU."""
TOLERANCE = 1e-3  # of an average and the mean of its parts, relative to the average: both may be rounded


def is_average(task: str) -> bool:
    """Return whether a name is that of a score over several tasks, whichever they are."""
    words = [word for word in _words(task) if not word.isdigit()]
    if any(word in task for word in ("平均", "总分", "總分", "средн", "Средн")):
        return True
    if re.search(r"[^\W\d_a-zA-Z]", task):  # 问答 Score
        return False
    known = not AVERAGES.isdisjoint(words) and set(words) <= _OF_AVERAGES
    return known or "_".join(words) in _ALONE


def averaged_group(task: str) -> str:
    """Return the group whose average a name says: mmlu of ``mmlu:_average``; empty if it says none."""
    first, last = _AVERAGE_FIRST.fullmatch(task), _AVERAGE_LAST.fullmatch(task)
    match = last or first
    return match[1].strip(" (:-_") if match and not is_average(task) else ""


def subject_of(task: str) -> tuple[str, str] | None:
    """Return the subject of MMLU that a task is, and what else its name says; None of another task."""
    match = _MMLU.fullmatch("_".join(task_words(task)))
    words = match[1].split("_") if match else []
    for n in range(len(words), 0, -1):
        if (subject := "_".join(words[:n])) in SUBJECTS:
            return subject, "_".join(words[n:])
    return None


def without_averages(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table without averages; that of a group is the group's score."""
    tasks = table.filter(~pl.col("corpus"))["task"].unique().sort().to_list()
    dropped, renamed = [], {}
    for task in tasks:
        group = averaged_group(task)
        parts = [part for part in tasks if part != task and group and _is_part(part, group)]
        is_group = (
            group not in tasks and (standard_task(group) or parts) and not _is_of_few_subjects(table, task, parts)
        )
        if is_average(task) or (group and not is_group):
            dropped.append(task)
        elif group:
            renamed[task] = group
    if dropped:
        remarks.append(f"averages left out, as they are no tasks: {join_names(dropped, 40)}")
    if renamed:
        said = [f"{task} is the score of {group}" for task, group in renamed.items()]
        remarks.append(f"averages of groups: {join_names(said, 20)}")
    table = table.filter(pl.col("corpus") | ~pl.col("task").is_in(dropped))
    table = table.with_columns(task=pl.col("task").replace(renamed))
    names = sorted({renamed.get(task, task) for task in tasks if task not in dropped})
    for group in names:
        parts = [task for task in names if _is_part(task, group)]
        if group in renamed.values() or ("_".join(own_words(group)) in GROUPS and len(parts) >= MIN_PARTS):
            table = _without_parts(table, group, parts, remarks)
    return table


def with_mmlu(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table with the score of MMLU made from its 57 subjects, where an evaluation has all and no score."""
    tasks = table.filter(~pl.col("corpus"))["task"].unique().sort().to_list()
    subjects = {task: found for task in tasks if (found := subject_of(task))}
    if not subjects:
        return table
    several = len({kind for _, kind in subjects.values()}) > 1
    names = {task: f"mmlu:{kind}" if kind and several else "mmlu" for task, (_, kind) in subjects.items()}
    spelt = {_key(name): name for name in names.values()}
    spelt |= {f"mmlu_{kind}": names[task] for task, (_, kind) in subjects.items() if kind}
    scored = {task: spelt[_key(task)] for task in tasks if _key(task) in spelt}
    stated = table.filter(pl.col("task").is_in(list(scored))).select("run", "step", kind=pl.col("task").replace(scored))
    parts = table.filter(pl.col("task").is_in(list(subjects)) & ~pl.col("corpus")).with_columns(
        subject=pl.col("task").replace_strict({task: subject for task, (subject, _) in subjects.items()}),
        kind=pl.col("task").replace(names),
    )
    parts = parts.join(stated, on=["run", "step", "kind"], how="anti", nulls_equal=True, maintain_order="left")
    parts = parts.with_columns(parts=pl.col("subject").n_unique().over(_KEY))
    whole, some = (parts.filter(is_whole) for is_whole in (pl.col("parts") == 57, pl.col("parts") < 57))
    if len(some):
        runs = some["run"].unique().sort()
        remarks.append(
            f"{plural(len(runs), 'run has', 'runs have')} at most {some['subject'].n_unique()} of the 57 subjects of "
            f"MMLU (the first: {runs[0]}): each subject stays a task of its own, and there is no score of mmlu"
        )
    if whole.is_empty():
        return table
    made = _means(whole).select(pl.col(name).cast(dtype) for name, dtype in table.schema.items())
    how = "unweighted, as some state no questions" if made["n"].null_count() else "weighted by their questions"
    remarks.append(f"the score of {join_names(sorted(made['task'].unique()))} is the mean of its 57 subjects, {how}")
    rest = table.join(whole.select("task", *_KEY_OF_ROW), on=["task", *_KEY_OF_ROW], how="anti", nulls_equal=True)
    return pl.concat([rest, made])


def _means(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over the parts of each score, weighted by their questions where all state them."""
    weighted, value, n = pl.col("n").is_not_null().all(), pl.col("value"), pl.col("n")
    others = pl.exclude([*_KEY, "task", "value", "n", "standard_error"])
    return parts.group_by(_KEY, maintain_order=True).agg(
        others.first(),
        task=pl.col("kind").first(),
        value=pl.when(weighted).then((value * n).sum() / n.sum()).otherwise(value.mean()),
        n=pl.when(weighted).then(n.sum()),
        standard_error=pl.lit(None, pl.Float64),
    )


def _key(task: str) -> str:
    """Return a task's name in lower case, words joined by ``_``."""
    return "_".join(task_words(task))


def _words(task: str) -> list[str]:
    """Return the words of a name, those joined by capitals parted."""
    return task_words(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", task))


def _is_part(task: str, group: str) -> bool:
    """Return whether a name begins with all words of the group, and goes on."""
    words, of = own_words(task), own_words(group)
    is_longer = len(words) > len(of) > 0 and words[: len(of)] == of
    return is_longer and words[len(of)] not in OTHER_TASKS and AVERAGES.isdisjoint(words)


def _is_of_few_subjects(table: pl.DataFrame, average: str, parts: list[str]) -> bool:
    """Return whether an average is that of some subjects of MMLU, not of all 57."""
    subjects = [part for part in parts if subject_of(part)]
    if not 1 < len(subjects) < len(SUBJECTS):
        return False
    key = ["run", "step", "metric"]
    mean = table.filter(pl.col("task").is_in(subjects)).group_by(key).agg(mean=pl.col("value").mean())
    stated = table.filter(pl.col("task") == average).join(mean, on=key, nulls_equal=True)
    return len(stated) > 0 and bool(((stated["value"] / stated["mean"] - 1).abs() < TOLERANCE).all())


def _without_parts(table: pl.DataFrame, group: str, parts: list[str], remarks: list[str]) -> pl.DataFrame:
    """Return the table without the parts of a group, in the evaluations that have its score."""
    if not parts:
        return table
    remarks.append(
        f"{plural(len(parts), 'part is', 'parts are')} left to the score of {group}: {join_names(parts, 60)}"
    )
    scored = table.filter(pl.col("task") == group).select("run", "step", scored=pl.lit(True)).unique()
    table = table.join(scored, on=["run", "step"], how="left", nulls_equal=True, maintain_order="left")
    left = pl.col("task").is_in(parts) & pl.col("scored").fill_null(False)
    return table.filter(~left).drop("scored")
