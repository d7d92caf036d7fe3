"""What the metrics of evaluations are, by their names."""

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
_FILTERS = ("none", "strict-match")
"""Filters of lm-evaluation-harness whose results come first."""
UNKNOWN = len(SCORES)


class Metric(NamedTuple):
    """What a metric is.

    Attributes
    ----------
    role : str
        ``score``, ``loss``, ``likelihood``; empty if it is none of these.
    rank : int
        Among the scores or the losses, the lowest first.
    """

    role: str
    rank: int


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
    """Return the task and the metric in the name of a column; the metric is empty if it ends in none.

    Examples
    --------
    >>> split_metric("piqa_rc_5shot_bpb_bpb")
    ('piqa_rc_5shot', 'bpb')
    >>> split_metric("arc_easy (length-normalized accuracy)")
    ('arc_easy', 'length-normalized accuracy')
    """
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


_ENDINGS = frozenset({"ctx_ce_loss", "soft", "soft_log", "soft_loss", "log_soft_loss"})
"""Likelihoods by which columns end."""
