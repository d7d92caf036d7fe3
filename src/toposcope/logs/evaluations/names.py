"""What the name of a model says: parameters, tokens, step, family; of a public model, what its publisher declares."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from toposcope.logs.evaluations.public_families import FAMILIES, Family

MIRRORS = ("unsloth", "nousresearch", "huggyllama", "huggingface")
"""Organisations that publish other people's weights as they are, under their names."""
LATER_STAGES = 1.1
"""Steps until the end of training for each step of its first stage, at most: OLMo 2 and 3 have 1.01 to 1.06."""
_FOLDER = re.compile(
    r"\.{0,2}|~|(?:.*[-_.])?(?:models?|checkpoints?|ckpts?|weights|pretrained|hub|hf|huggingface|cache)"
)
_CACHED = re.compile(r"models--([^/]+?)--([^/]+)(?:/snapshots/[0-9a-f]+)?")
_STAGE = re.compile(r"(?<![a-z])stage(\d+)-", re.IGNORECASE)
_CHECKPOINT = re.compile(
    r"(?:[ /@:,;]+(?:revision=)?main|[-_ /@:,;]+(?:revision=)?(?:stage\d+-(?:ingredient\d+-)?)?"
    r"(?P<word>step|ckpt_)[-_]?(?P<step>\d+)(?:-tokens\d+b)?(?:-seed-[-a-z0-9]+)?)$",
    re.IGNORECASE,
)
_SIGNS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:[._]\d+)?)([mb])(?![a-z0-9])", re.IGNORECASE)
_STEP = re.compile(
    r"(?<![a-z])(?:step|checkpoint|ckpt|iter|global_step)[-_=]?(\d+)(?![0-9.]*[kmbt]?[a-z])", re.IGNORECASE
)
_TOKENS = re.compile(
    r"(?:(?<![a-z])tokens?[-_=]?(\d+(?:\.\d+)?)([mbt])"
    r"|(?<![a-z0-9.])(\d+(?:\.\d+)?)([mbt])[-_ ]?(?:tokens?|toks?))(?![a-z])",
    re.IGNORECASE,
)
_CHINCHILLA = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)xC(?![a-z])")
_SEED = re.compile(r"(?<![a-z])seed[-_=]?(\d+|default|[a-z]+-[a-z0-9-]*\d)(?![a-z0-9])", re.IGNORECASE)
TOKENS_PER_PARAMETER = 20
"""Of a run named ``1xC``: the tokens of Hoffmann et al. 2022 for each parameter, as the OLMo ladder counts them."""


@dataclass(frozen=True)
class PublicModel:
    """A public model, as its publisher declares it."""

    name: str  # family and size
    family: str  # with the data where the family has several: ``pythia-deduped``
    N: float  # parameters of the published weights, embeddings included, shared ones once
    # seen at the end of training; None where that is not public, or where the model was trained further
    tokens: float | None
    # of the first stage of training, both; None if no checkpoints within training are published, or it is not known
    tokens_per_step: float | None
    last_step: float | None
    # what stands before the number in the names of published checkpoints within training; empty without any
    checkpoints: str
    every: int  # steps between published checkpoints; earlier ones are at powers of two
    later_stages: bool  # whether training has stages after the first
    fine_tuned: bool  # whether the publisher trained it further, for chats or instructions
    source: str  # where the figures stand: a paper or a model card

    def has_step(self, step: int) -> bool:
        """Return whether a checkpoint of this step may be one of those published."""
        power_of_two = step < self.every and step & (step - 1) == 0
        within = self.last_step is None or step <= self.last_step * (LATER_STAGES if self.later_stages else 1)
        return bool(self.checkpoints) and within and (step % self.every == 0 or power_of_two)

    def tokens_at(self, step: int | None) -> float | None:
        """Return the tokens seen at a step of the first stage of training; without one, at the end."""
        if step is None:
            return self.tokens
        if self.tokens_per_step is None or (self.last_step is not None and step > self.last_step):
            return None
        return float(step * self.tokens_per_step)


def public_model(name: str) -> PublicModel | None:
    """Return the public model of a name, or None.

    All of the name must be as the publisher writes it, alone or below the publisher's name or a folder of models, and
    perhaps with a checkpoint that is published. What somebody else trained further is another model.
    """
    path = _CACHED.sub(r"\1/\2", name.strip().replace("\\", "/")).replace("__", "/").rstrip("/")
    checkpoint = _CHECKPOINT.search(path)
    folder, _, tail = path[: checkpoint.start() if checkpoint else None].rpartition("/")
    parent = folder.rpartition("/")[2].lower()
    model = next((found for family in _compiled() if (found := _member(*family, parent, tail))), None)
    if model is None or checkpoint is None or checkpoint["step"] is None:
        return model
    published = checkpoint["word"].lower() == model.checkpoints and model.has_step(int(checkpoint["step"]))
    return model if published else None


def is_later_stage(name: str) -> bool:
    """Return whether a checkpoint is of a stage of training after the first: its steps and tokens count anew."""
    stage = _STAGE.search(name)
    return stage is not None and int(stage[1]) > 1


@cache
def _compiled() -> tuple[tuple[Family, re.Pattern[str], Mapping[str, str]], ...]:
    """Return the families with their patterns, and their sizes by the text that matches."""
    compiled = []
    for family in FAMILIES:
        sizes = {_folded(size): size for size in family.N}
        either = "|".join(re.escape(size) for size in sorted(sizes, key=len, reverse=True))
        pattern = family.pattern.replace("{}", f"(?P<size>{either})")
        owners = "|".join(re.escape(_folded(owner)) for owner in family.publishers.split())
        compiled.append((family, re.compile(f"(?:(?P<owner>{owners})-)?(?:{pattern})(?:-hf)?"), sizes))
    return tuple(compiled)


def _member(
    family: Family, pattern: re.Pattern[str], sizes: Mapping[str, str], parent: str, tail: str
) -> PublicModel | None:
    """Return the model of a family that has this name, below this organisation or folder."""
    match = pattern.fullmatch(_folded(tail))
    if match is None:
        return None
    known = match["owner"] or parent in (*family.publishers.lower().split(), *MIRRORS)
    if not known and (family.publisher_required or not _FOLDER.fullmatch(parent)):
        return None
    groups, size = match.groupdict(), sizes[match["size"]]
    variant = f"-{tail[slice(*match.span('variant'))]}" if groups.get("variant") else ""
    recipe, tuned = family.name + variant, groups.get("tuned") is not None
    return PublicModel(
        name=f"{recipe}-{size.strip('-')}" if size else recipe,
        family=f"{recipe} fine-tuned" if tuned else recipe,
        N=family.N[size],
        tokens=None if tuned else _of(family.tokens, size),
        tokens_per_step=None if tuned else _of(family.tokens_per_step, size),
        last_step=None if tuned else _of(family.last_step, size),
        checkpoints="" if tuned else family.checkpoints,
        every=family.every,
        later_stages=family.later_stages,
        fine_tuned=tuned,
        source=family.source,
    )


def _folded(text: str) -> str:
    """Return a name in lower case with one sign for those that people exchange; as long as it was."""
    return re.sub(r"[._ ]", "-", text.lower())


def _of(figures: Mapping[str, float] | float | None, size: str) -> float | None:
    """Return the figure of a size, where each has its own."""
    return figures.get(size) if isinstance(figures, Mapping) else figures


class Name(NamedTuple):
    """What a name says; None where it says nothing."""

    N: float | None  # parameters, as rounded as the name has them
    D: float | None  # tokens seen, the same
    step: int | None
    seed: str | None
    family: str | None  # the name without these; None where no size stands in it
    public: PublicModel | None  # the public model of this name, with what its publisher declares


def read_name(name: str) -> Name:
    """Return what a model's or a run's name says."""
    rest = name
    tokens, step, seed, chinchilla = (pattern.search(name) for pattern in (_TOKENS, _STEP, _SEED, _CHINCHILLA))
    for pattern in (_TOKENS, _STEP, _SEED, _CHINCHILLA):
        rest = pattern.sub("", rest)
    size = _SIZE.search(rest)
    N = float(size[1].replace("_", ".")) * _SIGNS[size[2].lower()] if size else None
    number, sign = (tokens[1] or tokens[3], tokens[2] or tokens[4]) if tokens else ("", "")
    D = float(number) * _SIGNS[sign.lower()] if tokens else None
    if D is None and chinchilla and N and not step:
        D = TOKENS_PER_PARAMETER * float(chinchilla[1]) * N
    public, at = public_model(name), int(step[1]) if step else None
    if is_later_stage(name):  # its steps and tokens are those of the stage alone
        last = int(public.last_step) if public and public.last_step else None
        before = public.tokens_at(last) if public and last else None
        D = before + D if before and D else None
        at = last + at if last and at is not None else at
    family = _joined(rest[: size.start()] + rest[size.end() :]) if size else None
    return Name(N, D, at, seed[1] if seed else None, family, public)


def _joined(rest: str) -> str:
    """Return what is left of a name without the signs at its gaps."""
    rest = re.sub(r"[-_ ]*stage\d+[-_ ]*$", "", rest)
    return re.sub(r"(?<=[-_ ])[-_ ]+|[-_ ]+$|^[-_ ]+|[-_ ]+(?=/)", "", rest)


def without_checkpoint(name: str) -> str:
    """Return the name of a model without its checkpoint: step, tokens and stage."""
    short = name
    for pattern in (_TOKENS, _STEP):
        short = pattern.sub("", short)
    short = _joined(short).rstrip("/")
    if public_model(short) and not public_model(name):  # a checkpoint of one's own: not as the publisher declares
        return re.sub(r"[-_=/ ]*([a-z_]+?)[-_=]*\d+/?$", r"-\1", name, flags=re.IGNORECASE)
    return short
