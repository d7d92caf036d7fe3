"""What the columns of a log mean, by their names. This is the one table of column aliases."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple


def _words_by_name(table: str) -> dict[str, tuple[str, ...]]:
    """Return the words that follow each name and its colon, whatever lines they stand in."""
    _, *parts = re.split(r"\s(\w+):", table)
    return {name: tuple(words.split()) for name, words in zip(parts[::2], parts[1::2], strict=True)}


COLUMN_NAMES = _words_by_name(
    """
    run: run run_name run_id run_uuid experiment_name config_name model
    step: global_step iter_num step optimizer_step update_step iteration iter it update num_updates n_iter train_step
    steps iterations iters t current_step current_steps cur_step global_steps training_step batch batch_idx batch_id
    rank: rank global_rank local_rank process_index worker replica
    epoch: epoch current_epoch epochs ep
    learning_rate: learning_rate lr optimizer_lr lr_group0 learning_rate_group0 lr_group_0 lr_pg1 lr_adam_w
    lr_adam_w_pg1 lr_adam lr_adam_pg1 lr_sgd learning_rate_learning_rate lr_decoupled_adam_w_group0
    lr_decoupled_lion_w_group0 last_lr optim0_lr0 current_lr l_r
    tokens: tokens total_tokens tokens_seen num_tokens n_tokens num_input_tokens_seen consumed_tokens tokens_consumed
    num_tokens_seen n_tokens_seen time_token
    flops: flops total_flops training_flops
    weight_norm: weight_norm param_norm params_norm weight_norm_total parameter_norm weights_norm total_param_norm
    params_norm_params_norm l2_norm_param_global
    grad_norm: grad_norm gradient_norm total_grad_norm grad_norm_total global_grad_norm gnorm g_norm grad_norm_grad_norm
    grad_2_0_norm_total l2_norm_grad_global grad_l2_norm
    last_step: T last_step max_steps total_steps num_training_steps total_train_steps train_iters
    total_optimization_steps total_training_steps total_iterations num_iterations total_iters max_step max_iter
    max_updates max_update total_updates max_iters max_iterations num_train_steps num_steps n_steps steps
    last_epoch: num_train_epochs num_epochs max_epochs total_epochs n_epochs max_epoch epochs
    parameters: N n_params num_params n_parameters num_parameters parameters total_params parameter_count param_count
    non_embedding_params model_size params
    tokens_per_step: tps tokens_per_step tokens_per_batch tokens_per_iter batch_tokens
    family: family collection
    schedule: sched schedule lr_schedule lr_scheduler lr_scheduler_type scheduler lr_decay_style
    """
)
"""Names of each quantity, the likeliest first: lower case, words joined by ``_``. A single letter keeps its case."""
FACTS = ("last_step", "last_epoch", "parameters", "tokens_per_step", "family", "schedule")
"""Quantities with one value for a whole run."""
FIELDS = ("loss", *COLUMN_NAMES)  # what the caller can say that a column is
LOSSES = tuple(
    """
    loss cross_entropy_loss cross_entropy crossentropy ce_loss lm_loss lm_loss_training_lm_loss
    language_cross_entropy nll_loss nll ce loss_step step_loss loss_train loss_train_total global_avg_loss
    loss_metrics_global_avg_loss avg_loss mean_loss loss_mean loss_avg total_loss loss_total loss_epoch loss_ce
    next_token_loss running_loss avr_loss reduced_train_loss xent cost ce_mean_words logloss log_loss binary_logloss
    multi_logloss mlogloss
    """.split()
)
UNIT_WORDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("bits", "per", "byte"), "bits per byte"),
    (("bits", "byte"), "bits per byte"),
    (("bpb",), "bits per byte"),
    (("bits", "per", "character"), "bits per character"),
    (("bits", "per", "char"), "bits per character"),
    (("bits", "char"), "bits per character"),
    (("bpc",), "bits per character"),
    (("nats", "per", "byte"), "nats per byte"),
    (("bits", "per", "token"), "bits"),
    (("bits",), "bits"),
    (("nats", "per", "token"), "nats"),
    (("nats",), "nats"),
    (("perplexity",), "perplexity"),
    (("ppl",), "perplexity"),
)
NAME_PREFIXES = frozenset(
    """
    train training trainer metrics metric optim throughput perf log state config args params hparams hyperparameters
    """.split()
)
"""Words before a name that do not change its meaning."""
VALIDATION = frozenset(
    """
    eval evaluation val valid validation test dev heldout validate validating evaluate evaluating testing holdout held
    vali
    """.split()
)
AUXILIARY_WORDS = frozenset(
    """
    aux auxiliary z kl balance balancing router min max std scale best lowest target delta previous threshold scaler
    weight weights tokens time coef
    """.split()
)
"""Words of a loss that is not the model's own, or of a spread."""
GAME_WORDS = frozenset(
    """
    policy value actor critic reward rewards advantage vf pg ppo generator discriminator gen disc d g adversarial gan
    """.split()
)
"""Words of losses of players against each other, or of an agent: these need not fall where training goes well."""
AGENT_WORDS = frozenset("reward rewards rew policy actor advantage advantages clipfrac ppo grpo".split())
PREFERENCE_WORDS = frozenset({"chosen", "rejected"})
"""Words of columns next to the loss of an agent; of pairs of preferences, which have rewards and a loss that falls."""
_BRACKETS = re.compile(r"\([^()]*\)|\[[^][]*\]")  # a unit after a name: ``step (iterations)``
ACCURACY = "accuracy"
ACCURACIES = frozenset({"accuracy", "acc"})  # words of an accuracy


class Target(NamedTuple):
    """A quantity by which a run is judged: a loss or an accuracy."""

    name: str  # of its column
    unit: str  # of a loss, one of `toposcope.logs.UNITS` or ``perplexity``; ``accuracy``
    validation: bool  # whether it was measured on held-out text


class Columns(NamedTuple):
    """What the columns of a log are, by their names."""

    named: dict[str, list[str]]  # the columns that may be each of `COLUMN_NAMES`, the likeliest first
    losses: list[Target]  # training losses before validation losses, the likeliest of each first
    accuracies: list[Target]


def identify_columns(names: Iterable[str]) -> Columns:
    """Identify columns by their names; each is one thing at most."""
    ranked: dict[str, list[tuple[int, int, str]]] = {}
    losses: list[tuple[bool, int, int, int, Target]] = []
    accuracies, other_losses = [], []
    for name in (name for name in names if len(name) <= 1000):  # a longer one names no quantity
        words = words_of(name)
        if match := _known(words) or _known(words_of(_BRACKETS.sub("", name))):
            quantity, prefixes, rank = match
            ranked.setdefault(quantity, []).append((rank, prefixes, name))
        elif loss := _loss(name, words):
            losses.append(loss)
        elif AUXILIARY_WORDS.isdisjoint(words):
            if not ACCURACIES.isdisjoint(words):
                accuracies.append(target_of(name))
            elif "loss" in words:
                other_losses.append(target_of(name))
    if not losses and len({" ".join(w for w in words_of(o.name) if w not in VALIDATION) for o in other_losses}) == 1:
        losses = [(other.validation, 0, 0, 0, other) for other in other_losses]
    named = {quantity: [name for *_, name in sorted(matches)] for quantity, matches in ranked.items()}
    return Columns(named, [loss for *_, loss in sorted(losses)], accuracies)


def identify_facts(facts: Mapping[str, object]) -> dict[str, list[str]]:
    """Return which of the facts that a tool keeps of a run may be each of `FACTS`, the likeliest first."""
    found = {}
    for quantity in FACTS:
        ranked = sorted((*match, name) for name in facts if (match := _rank(words_of(name), COLUMN_NAMES[quantity])))
        if ranked:
            found[quantity] = [name for *_, name in ranked]
    return found


@lru_cache(maxsize=4096)
def target_of(name: str) -> Target:
    """Return the target that a column holds, by its name: an accuracy if it says so, else a loss."""
    words = words_of(name)
    if not ACCURACIES.isdisjoint(words):
        return Target(name, ACCURACY, not VALIDATION.isdisjoint(words))
    loss = _loss(name, words)
    return loss[-1] if loss else Target(name, _unit(words)[0], not VALIDATION.isdisjoint(words))


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case; a single letter keeps its case."""
    if len(name) == 1:
        return [name]
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())


def _known(words: list[str]) -> tuple[str, int, int] | None:
    """Return the quantity that a name stands for, how many prefixes it has, and its rank among the names for that."""
    matches = [(*match, quantity) for quantity, names in COLUMN_NAMES.items() if (match := _rank(words, names))]
    if not matches:
        return None
    # of equal matches the first counts: a column `steps` is that of the steps, not the last step
    prefixes, rank, quantity = min(matches, key=lambda match: match[0])
    return quantity, prefixes, rank


def _rank(words: list[str], names: tuple[str, ...]) -> tuple[int, int] | None:
    """Return the number of prefixes before the known name, and its place among the names."""
    for prefixes in range(len(words)):
        name = "_".join(words[prefixes:])
        if name in names:
            return prefixes, names.index(name)
        if words[prefixes] not in NAME_PREFIXES:
            return None
    return None


def _loss(name: str, words: list[str]) -> tuple[bool, int, int, int, Target] | None:
    """Return a loss after the keys it is sorted by: validation, prefixes, unit, place among the names of losses."""
    if not AUXILIARY_WORDS.isdisjoint(words):
        return None
    unit, base = _unit(words)
    last = words_of(name.rpartition("/")[2])
    if unit != "nats" and last and _unit(last)[0] == "nats" and _rank(last, LOSSES):
        unit, base = "nats", words  # eval/c4-ppl/CrossEntropyLoss
    validation = not VALIDATION.isdisjoint(base)
    if validation:
        # eval/wikitext/loss: the text stands in the middle; lm loss validation: the word comes last
        first = min(i for i, word in enumerate(base) if word in VALIDATION)
        base = base[first + 1 :] if first < len(base) - 1 else base[:first]
        base = [word for word in base if word not in VALIDATION]
        match = next((m for i in range(len(base)) if (m := _rank(base[i:], LOSSES))), None)
    else:
        match = _rank(base, LOSSES)
    if match is None and unit != "nats" and set(base) <= NAME_PREFIXES | VALIDATION:
        match = (len(base), 0)  # bpb, val_bpb: the unit of a loss
    if match is None:
        return None
    units = ["nats", "nats per byte", "bits", "bits per byte", "bits per character", "perplexity"]
    return validation, match[0], units.index(unit), match[1], Target(name, unit, validation)


def _unit(words: list[str]) -> tuple[str, list[str]]:
    """Return the unit in a name, nats if it has none, and the words without it."""
    for unit_words, unit in UNIT_WORDS:
        n = len(unit_words)
        for i in range(len(words) - n + 1):
            if tuple(words[i : i + n]) == unit_words:
                return unit, words[:i] + words[i + n :]
    return "nats", words


def compares_validation(logged: Sequence[bool]) -> bool:
    """Return whether runs are compared by validation loss, by which of them log it: at least half."""
    return 2 * sum(logged) >= len(logged)
