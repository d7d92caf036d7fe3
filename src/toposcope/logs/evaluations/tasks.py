"""Standard tasks: what guessing reaches, and how many questions their usual part has."""

import re
from typing import NamedTuple


class Task(NamedTuple):
    """A standard task.

    Attributes
    ----------
    names : tuple of str
        Words joined by ``_``, as tools write them.
    chance : float or None
        Share of right answers by guessing: 0 where the answer is generated; None where it differs between questions.
    part : str
        The part whose number of questions is `n`: ``test`` or ``validation``. Empty if that is not known.
    n : int or None
    """

    names: tuple[str, ...]
    chance: float | None
    part: str = ""
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
PARTS = {"test": "test", "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation"}
"""Words of a task's name that say its part."""
SUITES = frozenset(
    {
        "leaderboard",
        "harness",
        "lighteval",
        "custom",
        "extended",
        "lukaemon",
        "eval",
        "olmes",
        "super",
        "glue",
        "tasks",
        "task",
        "openai",
    }
)
"""Words before the name of a task."""
_BY_NAME = {name: task for task in TASKS for name in task.names}
_MULTIPLE_CHOICE = frozenset({"norm", "char", "token", "byte", "uncond", "mc1", "mc2"})
"""Words of an accuracy that is by likelihoods of given answers."""
_SHOTS = re.compile(r"(?:^|[^0-9])(\d{1,3})[-_ ]?shots?(?:$|[^a-z])", re.IGNORECASE)


def standard_task(name: str) -> Task | None:
    """Return the standard task that a name begins with, whatever follows; None if it is none.

    Examples
    --------
    >>> standard_task("arc_challenge_test_rc_5shot").n
    1172
    >>> standard_task("leaderboard_mmlu_pro").chance
    0.1
    """
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
    is_subset = "mmlu" in task.names and not set(words) <= {
        "mmlu",
        "avg",
        "mc",
        "rc",
        "cloze",
        "olmes",
        *PARTS,
        *_shots_words(words),
    }
    return None if is_subset or parts - {task.part} else (task.part, task.n)


def shots_of(name: str) -> int | None:
    """Return the number of examples in the prompt, as a name says it: 5 of ``piqa_rc_5shot``."""
    match = _SHOTS.search(name)
    return int(match[1]) if match else None


def in_pipes(name: str) -> tuple[str, int | None]:
    """Return task and shots of a name as lighteval writes them.

    Examples
    --------
    >>> in_pipes("leaderboard|arc:challenge|25"), in_pipes("gsm8k|5"), in_pipes("piqa")
    (('arc_challenge', 25), ('gsm8k', 5), ('piqa', None))
    """
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


def _shots_words(words: list[str]) -> list[str]:
    return [word for word in words if re.fullmatch(r"\d*shots?|\d+", word)]
