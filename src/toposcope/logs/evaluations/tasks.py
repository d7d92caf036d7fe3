"""Standard tasks and metrics of evaluations, by their names."""

import re
from typing import NamedTuple

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
LIKELIHOOD_WORDS = frozenset(
    {"prob", "probs", "margin", "logits", "logprob", "likelihood", "loglikelihood", "brier", "soft", "ctx", "logit"}
)
PERPLEXITY_WORDS = frozenset({"perplexity", "ppl"})
NO_METRICS = frozenset(
    {"no_answer", "correct_choice", "predicted_index", "num_instances", "sample_len", "alias", "name"}
)
ERROR_WORDS = ("stderr", "standard_error", "std_err", "sem")
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

    names: tuple[str, ...]  # words joined by ``_``, as tools write them
    # share of right answers by guessing: 0 where the answer is generated; None where it differs between questions
    chance: float | None
    part: str = ""  # the part whose number of questions is `n`: ``test`` or ``validation``. Empty if that is not known
    n: int | None = None


TASKS = (
    Task(("arc_easy", "arc_e", "ai2_arc_easy"), 0.25, "test", 2376),
    Task(("arc_challenge", "arc_c", "ai2_arc_challenge"), 0.25, "test", 1172),
    Task(("hellaswag",), 0.25, "validation", 10042),
    Task(("openbookqa", "openbook_qa", "obqa"), 0.25, "test", 500),
    Task(("arc_agi",), 0.0),
    Task(("arc",), 0.25),
    Task(("sciq",), 0.25, "test", 1000),
    Task(("mmlu_pro",), 0.1),
    Task(("mmlu", "hendryckstest", "hendrycks_test"), 0.25, "test", 14042),
    Task(("cmmlu", "ceval", "race", "c_eval", "logiqa", "medmcqa", "qasper_mc", "gpqa"), 0.25),
    Task(("piqa",), 0.5, "validation", 1838),
    Task(("winogrande",), 0.5, "validation", 1267),
    Task(("boolq",), 0.5, "validation", 3270),
    Task(("copa", "wsc", "wsc273", "wic", "rte", "xcopa", "xwinograd", "storycloze", "xstorycloze", "blimp"), 0.5),
    Task(("socialiqa", "social_iqa", "social_i_qa", "siqa"), 1 / 3, "validation", 1954),
    Task(("cb", "anli", "mnli", "xnli"), 1 / 3),
    Task(("csqa", "commonsense_qa", "commonsenseqa"), 0.2, "validation", 1221),
    Task(
        ("gsm8k", "gsm", "gsm_plus", "math", "minerva_math", "hendrycks_math", "humaneval", "codex_humaneval", "mbpp"),
        0.0,
    ),
    Task(
        ("triviaqa", "trivia_qa", "naturalqs", "natural_qs", "nq", "nq_open", "squad", "drop", "coqa", "lambada"), 0.0
    ),
    Task(
        ("jeopardy", "webqs", "popqa", "ifeval", "human_eval", "lcb", "livecodebench", "aime", "math500", "math_500"),
        0.0,
    ),
    Task(
        ("truthfulqa", "truthful_qa", "bbh", "big_bench_hard", "bigbench", "musr", "agieval", "toxigen", "crows_pairs"),
        None,
    ),
)
"""Chance by the number of answers; questions as the publishers count them (a tool's own statement always wins)."""
_BY_NAME = {name: task for task in TASKS for name in task.names}


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
    is_subset = "mmlu" in task.names and not own <= {"mmlu", "avg", "mc", "rc", "cloze", "olmes", *PARTS}
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
