"""Standard tasks and metrics by their names; averages are no tasks, a group's is its score, MMLU is its 57 subjects."""

import re
from typing import NamedTuple

import polars as pl

from toposcope.extend import join_names, plural

MIN_GROUP_PARTS = 3  # names that begin with a task's, from which on they are its parts: one is another way to ask
MAX_ROUNDING = 1e-3  # of an average and the mean of its parts, relative to the average: both may be rounded

SCORES = (
    *("primary_score", "primary_metric"),
    *("acc_norm", "len_norm", "length_normalized_accuracy", "acc_per_char", "acc_per_byte", "acc_norm_bytes"),
    *("acc", "accuracy", "acc_raw", "raw_accuracy", "acc_per_token", "acc_uncond", "uncond_acc", "pmi_dc"),
    *("exact_match", "em", "quasi_exact_match", "pass_1", "pass_at_1", "mc2", "mc1", "f1", "mcc"),
    *("bleu", "rouge1", "rouge2", "rougel", "chrf", "score", "value", "raw_score", "normalized_score"),
)
"""Metrics that are scores. The first that a task has in most of its runs is the task's score."""
LOSSES = (
    *("bits_per_byte", "bpb", "bits_per_byte_corr", "logits_per_byte_corr", "bits_per_char", "bpc", "nats_per_byte"),
    *("ce_loss", "loss", "cross_entropy_loss", "crossentropyloss", "cross_entropy", "nll", "task_loss", "ce"),
    *("perplexity", "byte_perplexity", "word_perplexity", "ppl"),
)
"""Losses of a task's right answers, or of a corpus; of a perplexity the logarithm is taken."""
LIKELIHOOD_WORDS = frozenset("prob probs margin logits logprob likelihood loglikelihood brier soft ctx logit".split())
PERPLEXITY_WORDS = frozenset({"perplexity", "ppl"})
NO_METRICS = frozenset("no_answer correct_choice predicted_index num_instances sample_len alias name".split())
ERROR_WORDS = ("stderr", "standard_error", "std_err", "sem")
DIAGNOSTICS = frozenset(
    """
    time seconds secs elapsed duration latency throughput std stdev stddev variance var entropy repetition diversity
    invalid truncated timeouts failures parity
    """.split()
)
"""Words in names of what is measured of an evaluation and is no score."""
_FILTERS = ("none", "strict-match")  # filters of lm-evaluation-harness whose results come first
UNKNOWN = len(SCORES)
_ENDINGS = frozenset({"ctx_ce_loss", "soft", "soft_log", "soft_loss", "log_soft_loss"})
"""Likelihoods by which columns end."""
PARTS = {"test": "test", "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation"}
"""Words of a task's name that say its part."""
SUITES = frozenset(
    "leaderboard harness lighteval custom extended lukaemon eval olmes super glue tasks task openai".split()
)
"""Words before the name of a task."""
_MULTIPLE_CHOICE = frozenset({"norm", "char", "token", "byte", "uncond", "mc1", "mc2"})
"""Words of an accuracy that is by likelihoods of given answers."""
_SHOTS = re.compile(r"(?:^|[^0-9])(\d{1,3})[-_ ]?shots?(?:$|[^a-z])", re.IGNORECASE)
AVERAGES = frozenset(
    "average averages averaged avg mean overall aggregate aggregated moyenne promedio durchschnitt".split()
)
"""Words of a score over several tasks."""
_OF_AVERAGES = AVERAGES | frozenset(
    """
    all macro micro weighted unweighted total final global grand main normalized score scores acc accuracy norm result
    results performance tasks task evals benchmark benchmarks leaderboard open llm of over across the v1 v2 raw shot
    shots geometric arithmetic harmonic rate win in percent zero few
    """.split()
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
OTHER_TASKS = frozenset({"pro", "redux", "agi", "plus"})
"""Words that make a name another task: MMLU-Pro is no part of MMLU."""


class Metric(NamedTuple):
    """What a metric is."""

    role: str  # ``score``, ``loss``, ``likelihood``; empty if it is none of these
    rank: int  # among the scores or the losses, the lowest first


def plain_name(metric: str) -> str:
    """Return a metric's name in lower case, words joined by ``_``, without the filter behind a comma."""
    return "_".join(re.findall(r"[a-z0-9]+", metric.partition(",")[0].lower()))


def metric_of(metric: str) -> Metric:
    """Return what a metric is, by its name."""
    name, filtered = plain_name(metric), metric.partition(",")[2]
    words = name.split("_")
    nth = 0 if not filtered else _FILTERS.index(filtered) if filtered in _FILTERS else len(_FILTERS)
    if name in NO_METRICS or name.startswith("predicted_index"):
        return Metric("", 0)
    if name in SCORES:
        return Metric("score", 10 * SCORES.index(name) + nth)
    if name in LOSSES:
        return Metric("loss", LOSSES.index(name))
    if not LIKELIHOOD_WORDS.isdisjoint(words):
        return Metric("likelihood", 0)
    if not PERPLEXITY_WORDS.isdisjoint(words) or {"loss", "nll", "bpb"} & set(words):
        return Metric("loss", len(LOSSES))
    if {"acc", "accuracy", "match"} & set(words):
        return Metric("score", 10 * SCORES.index("f1") + nth)
    return Metric("", 0)


def is_error(name: str) -> bool:
    """Return whether a metric or a column is a standard error."""
    return plain_name(name).endswith(ERROR_WORDS)


def is_diagnostic(metric: str) -> bool:
    """Return whether a metric says how an evaluation went, not how good the answers were."""
    return plain_name(metric) in NO_METRICS or not DIAGNOSTICS.isdisjoint(plain_name(metric).split("_"))


def is_perplexity(metric: str) -> bool:
    """Return whether a metric is a perplexity."""
    return not PERPLEXITY_WORDS.isdisjoint(plain_name(metric).split("_"))


def split_metric(name: str) -> tuple[str, str]:
    """Return the task and the metric in the name of a column; the metric is empty if it ends in none."""
    task, metric = name, ""
    if bracketed := re.fullmatch(r"(.+?)\s*\(([^()]+)\)", name):
        task, metric = bracketed[1], bracketed[2]
    else:
        for separator in re.finditer(r"[_/.: -]", name):
            if separator.start() and _is_metric(ending := name[separator.end() :]):
                task, metric = name[: separator.start()], ending
                break
    return task.removesuffix(f"_{metric.lower()}"), metric


def _is_metric(ending: str) -> bool:
    name = plain_name(ending)
    return name in SCORES or name in LOSSES or name in _ENDINGS


class Task(NamedTuple):
    """A standard task."""

    names: str  # as tools write them, words joined by ``_``; a space between names
    # share of right answers by guessing: 0 where the answer is generated; None where it differs between questions
    chance: float | None
    part: str = ""  # the part whose number of questions is `n`: ``test`` or ``validation``. Empty if that is not known
    n: int | None = None


TASKS = (
    Task("arc_easy arc_e ai2_arc_easy", 0.25, "test", 2376),
    Task("arc_challenge arc_c ai2_arc_challenge", 0.25, "test", 1172),
    Task("hellaswag", 0.25, "validation", 10042),
    Task("openbookqa openbook_qa obqa", 0.25, "test", 500),
    Task("arc_agi", 0.0),
    Task("arc", 0.25),
    Task("sciq", 0.25, "test", 1000),
    Task("mmlu_pro", 0.1),
    Task("mmlu hendryckstest hendrycks_test", 0.25, "test", 14042),
    Task("cmmlu ceval race c_eval logiqa medmcqa qasper_mc gpqa", 0.25),
    Task("piqa", 0.5, "validation", 1838),
    Task("winogrande", 0.5, "validation", 1267),
    Task("boolq", 0.5, "validation", 3270),
    Task("copa wsc wsc273 wic rte xcopa xwinograd storycloze xstorycloze blimp", 0.5),
    Task("socialiqa social_iqa social_i_qa siqa", 1 / 3, "validation", 1954),
    Task("cb anli mnli xnli", 1 / 3),
    Task("csqa commonsense_qa commonsenseqa", 0.2, "validation", 1221),
    Task("gsm8k gsm gsm_plus math minerva_math hendrycks_math humaneval codex_humaneval mbpp", 0.0),
    Task("triviaqa trivia_qa naturalqs natural_qs nq nq_open squad drop coqa lambada", 0.0),
    Task("jeopardy webqs popqa ifeval human_eval lcb livecodebench aime math500 math_500", 0.0),
    Task("truthfulqa truthful_qa bbh big_bench_hard bigbench musr agieval toxigen crows_pairs", None),
)
"""Chance by the number of answers; questions as the publishers count them (a tool's own statement always wins)."""
_BY_NAME = {name: task for task in TASKS for name in task.names.split()}


def standard_task(name: str) -> Task | None:
    """Return the standard task that a name begins with, whatever follows; None if it is none."""
    words = own_words(name)
    for n in range(min(len(words), 3), 0, -1):
        if task := _BY_NAME.get("_".join(words[:n])):
            return task
    return None


def chance_of(name: str, metric: str) -> float | None:
    """Return what guessing reaches on a task by a metric; None if unknown."""
    task, words = standard_task(name), task_words(metric)
    if task is None or "mcc" in words or ("f1" in words and task.chance):
        return None
    if task.chance == 0 and not _MULTIPLE_CHOICE.isdisjoint(words):
        return None  # gsm8k as a choice between answers
    return task.chance


def usual_part(name: str) -> tuple[str, int] | None:
    """Return the part of a standard task and its number of questions; None if the name says otherwise."""
    task, words = standard_task(name), task_words(name)
    if task is None or task.n is None:
        return None
    parts = {PARTS[word] for word in words if word in PARTS}
    own = {word for word in words if not re.fullmatch(r"\d*shots?|\d+", word)}
    is_subset = "mmlu" in task.names.split() and not own <= {"mmlu", "avg", "mc", "rc", "cloze", "olmes", *PARTS}
    return None if is_subset or parts - {task.part} else (task.part, task.n)


def shots_of(name: str) -> int | None:
    """Return the number of examples in the prompt, as a name says it: 5 of ``piqa_rc_5shot``."""
    match = _SHOTS.search(name)
    return int(match[1]) if match else None


def in_pipes(name: str) -> tuple[str, int | None]:
    """Return task and shots of a name as lighteval writes them."""
    parts = name.split("|")
    if len(parts) < 2:
        return name, None
    task, *rest = parts if len(parts) == 2 and parts[1].isdigit() else parts[1:]
    shots = int(rest[0]) if rest and re.fullmatch(r"\d{1,3}", rest[0]) else None
    return task.replace(":", "_"), shots


def task_words(name: str) -> list[str]:
    """Return the words of a name in lower case."""
    return re.findall(r"[a-z0-9]+", name.lower())


def own_words(name: str) -> list[str]:
    """Return the words of a task's name without those of suites before it."""
    words = task_words(name)
    while words and words[0] in SUITES:
        words = words[1:]
    return words


def is_average(task: str) -> bool:
    """Return whether a name is that of a score over several tasks, whichever they are."""
    words = [word for word in _words(task) if not word.isdigit()]
    if any(word in task for word in ("平均", "总分", "總分", "средн", "Средн")):
        return True
    if re.search(r"[^\W\d_a-zA-Z]", task):  # 问答 Score
        return False
    return (not AVERAGES.isdisjoint(words) and set(words) <= _OF_AVERAGES) or "_".join(words) in _ALONE


def averaged_group(task: str) -> str:
    """Return the group whose average a name says: mmlu of ``mmlu:_average``; empty if it says none."""
    match = _AVERAGE_LAST.fullmatch(task) or _AVERAGE_FIRST.fullmatch(task)
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
        if group in renamed.values() or ("_".join(own_words(group)) in GROUPS and len(parts) >= MIN_GROUP_PARTS):
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
    return len(stated) > 0 and bool(((stated["value"] / stated["mean"] - 1).abs() < MAX_ROUNDING).all())


def _without_parts(table: pl.DataFrame, group: str, parts: list[str], remarks: list[str]) -> pl.DataFrame:
    """Return the table without the parts of a group, in the evaluations that have its score."""
    if not parts:
        return table
    remarks.append(
        f"{plural(len(parts), 'part is', 'parts are')} left to the score of {group}: {join_names(parts, 60)}"
    )
    scored = table.filter(pl.col("task") == group).select("run", "step", scored=pl.lit(True)).unique()
    table = table.join(scored, on=["run", "step"], how="left", nulls_equal=True, maintain_order="left")
    return table.filter(~(pl.col("task").is_in(parts) & pl.col("scored").fill_null(False))).drop("scored")
