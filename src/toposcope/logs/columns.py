"""What the columns of a log mean, guessed by their names."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

NAMES: dict[str, tuple[str, ...]] = {
    "run": ("run", "run_name", "run_id", "run_uuid", "experiment_name", "config_name", "model"),
    "step": (
        *(
            "global_step",
            "iter_num",
            "step",
            "optimizer_step",
            "update_step",
            "iteration",
            "iter",
            "it",
            "update",
            "num_updates",
        ),
        *("n_iter", "train_step", "steps", "iterations", "iters", "t"),
    ),
    "learning_rate": (
        *("learning_rate", "lr", "optimizer_lr", "lr_group0", "learning_rate_group0", "lr_group_0", "lr_pg1"),
        *("lr_adam_w", "lr_adam_w_pg1", "lr_adam", "lr_adam_pg1", "lr_sgd", "learning_rate_learning_rate"),
        *("lr_decoupled_adam_w_group0", "lr_decoupled_lion_w_group0", "last_lr"),
    ),
    "tokens": (
        *("tokens", "total_tokens", "tokens_seen", "num_tokens", "n_tokens", "num_input_tokens_seen"),
        *("consumed_tokens", "tokens_consumed", "num_tokens_seen", "n_tokens_seen", "time_token"),
    ),
    "weight_norm": (
        *("weight_norm", "param_norm", "params_norm", "weight_norm_total", "parameter_norm", "weights_norm"),
        *("total_param_norm", "params_norm_params_norm", "l2_norm_param_global"),
    ),
    "grad_norm": (
        *("grad_norm", "gradient_norm", "total_grad_norm", "grad_norm_total", "global_grad_norm", "gnorm"),
        *("grad_norm_grad_norm", "grad_2_0_norm_total", "l2_norm_grad_global", "grad_l2_norm"),
    ),
    "last_step": (
        *("T", "last_step", "max_steps", "total_steps", "num_training_steps", "total_train_steps", "train_iters"),
        *("max_iters", "max_iterations", "num_train_steps", "num_steps", "n_steps", "steps"),
    ),
    "parameters": (
        *("N", "n_params", "num_params", "n_parameters", "num_parameters", "parameters", "total_params"),
        *("parameter_count", "param_count", "non_embedding_params", "model_size", "params"),
    ),
    "tokens_per_step": ("tps", "tokens_per_step", "tokens_per_batch", "tokens_per_iter", "batch_tokens"),
    "family": ("family", "collection"),
    "schedule": (
        "sched",
        "schedule",
        "lr_schedule",
        "lr_scheduler",
        "lr_scheduler_type",
        "scheduler",
        "lr_decay_style",
    ),
}
"""Names of each thing, the likeliest first: lower case, words joined by ``_``. One letter is taken as it is written."""

FACTS = ("last_step", "parameters", "tokens_per_step", "family", "schedule")
"""What is one value for a whole run."""
FIELDS = ("loss", *NAMES)
"""What a column can be named to be."""

LOSSES = (
    *("loss", "cross_entropy_loss", "cross_entropy", "crossentropy", "ce_loss", "lm_loss", "lm_loss_training_lm_loss"),
    *("language_cross_entropy", "nll_loss", "nll", "ce", "loss_step", "step_loss", "loss_train", "loss_train_total"),
    *("global_avg_loss", "loss_metrics_global_avg_loss", "avg_loss", "mean_loss", "loss_mean", "loss_avg"),
    *("total_loss", "loss_total", "loss_epoch", "loss_ce", "next_token_loss", "running_loss"),
)
UNIT_WORDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("bits", "per", "byte"), "bits per byte"),
    (("bpb",), "bits per byte"),
    (("nats", "per", "byte"), "nats per byte"),
    (("bits", "per", "token"), "bits"),
    (("bits",), "bits"),
    (("nats", "per", "token"), "nats"),
    (("nats",), "nats"),
    (("perplexity",), "perplexity"),
    (("ppl",), "perplexity"),
)
PREFIXES = frozenset(
    (
        *("train", "training", "trainer", "metrics", "metric", "optim", "throughput", "perf", "log", "state"),
        *("config", "args", "params", "hparams", "hyperparameters"),
    )
)
"""Words before a name that do not change what it means."""
VALIDATION = frozenset({"eval", "evaluation", "val", "valid", "validation", "test", "dev", "heldout"})
AUXILIARY = frozenset({"aux", "auxiliary", "z", "kl", "balance", "balancing", "router", "min", "max", "std", "scale"})
"""Words that make a loss another one than that of the model, or a spread."""


class LossColumn(NamedTuple):
    """A column that holds a loss.

    Attributes
    ----------
    column : str
    unit : str
        One of `UNITS`, or ``perplexity``.
    validation : bool
        Measured on held-out text.
    """

    column: str
    unit: str
    validation: bool


class Guess(NamedTuple):
    """Which columns may be what, the likeliest first.

    Attributes
    ----------
    columns : dict of list of str
        By `FIELDS`, but for the loss.
    losses : list of LossColumn
        Training losses before validation losses.
    """

    columns: dict[str, list[str]]
    losses: list[LossColumn]


def guess(names: Iterable[str]) -> Guess:
    """Guess what columns mean; each means one thing at most."""
    ranked: dict[str, list[tuple[int, int, str]]] = {}
    losses: list[tuple[bool, int, int, int, LossColumn]] = []
    rest = []
    for name in names:
        words = _words(name)
        if found := _known(words):
            what, stripped, rank = found
            ranked.setdefault(what, []).append((rank, stripped, name))
        elif loss := _loss(name, words):
            losses.append(loss)
        elif "loss" in words and not AUXILIARY & set(words):
            rest.append((name, words))
    if not losses and len(rest) == 1:
        name, words = rest[0]
        losses = [(False, 0, 0, 0, LossColumn(name, _unit(words)[0], bool(VALIDATION & set(words))))]
    columns = {what: [name for *_, name in sorted(found)] for what, found in ranked.items()}
    return Guess(columns, [loss for *_, loss in sorted(losses)])


def guess_facts(facts: Mapping[str, object]) -> dict[str, str]:
    """Return which of the facts that a tool keeps of a run is which of `FACTS`."""
    found = {}
    for what in FACTS:
        ranked = sorted((*match, name) for name in facts if (match := _rank(_words(name), NAMES[what])))
        if ranked:
            found[what] = ranked[0][-1]
    return found


def loss_column(name: str) -> LossColumn:
    """Return what is known of a column that was named to be the loss."""
    words = _words(name)
    return LossColumn(name, _unit(words)[0], bool(VALIDATION & set(words)))


def _words(name: str) -> list[str]:
    """Return the words of a name in lower case; one letter stays as it is."""
    if len(name) == 1:
        return [name]
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.findall(r"[a-z0-9]+", parted.lower())


def _known(words: list[str]) -> tuple[str, int, int] | None:
    """Return what a name means, how many prefixes it had, and its rank among the names for that."""
    found = [(*match, what) for what, names in NAMES.items() if (match := _rank(words, names))]
    if not found:
        return None
    # of equal matches the first thing counts: a column `steps` is that of the steps
    stripped, rank, what = min(found, key=lambda f: f[0])
    return what, stripped, rank


def _rank(words: list[str], names: tuple[str, ...]) -> tuple[int, int] | None:
    """Return how many prefixes to take off until the name is known, and its place among the names."""
    for stripped in range(len(words)):
        name = "_".join(words[stripped:])
        if name in names:
            return stripped, names.index(name)
        if words[stripped] not in PREFIXES:
            return None
    return None


def _loss(name: str, words: list[str]) -> tuple[bool, int, int, int, LossColumn] | None:
    """Return a loss with what it is sorted by: held out, prefixes, unit, place among the names of losses."""
    if AUXILIARY & set(words):
        return None
    unit, base = _unit(words)
    validation = bool(VALIDATION & set(base))
    if validation:
        # eval/wikitext/loss: what stands between is the text; lm loss validation: the word comes last
        first = min(i for i, word in enumerate(base) if word in VALIDATION)
        base = base[first + 1 :] if first < len(base) - 1 else base[:first]
        base = [word for word in base if word not in VALIDATION]
        match = next((m for i in range(len(base)) if (m := _rank(base[i:], LOSSES))), None)
    else:
        match = _rank(base, LOSSES)
    if match is None and unit != "nats" and set(base) <= PREFIXES | VALIDATION:
        match = (len(base), 0)  # bpb, val_bpb: the unit says that it is a loss
    if match is None:
        return None
    units = ["nats", "nats per byte", "bits", "bits per byte", "perplexity"]
    return validation, match[0], units.index(unit), match[1], LossColumn(name, unit, validation)


def _unit(words: list[str]) -> tuple[str, list[str]]:
    """Return the unit that a name tells, nats if none, and the words without it."""
    for unit_words, unit in UNIT_WORDS:
        n = len(unit_words)
        for i in range(len(words) - n + 1):
            if tuple(words[i : i + n]) == unit_words:
                return unit, words[:i] + words[i + n :]
    return "nats", words
