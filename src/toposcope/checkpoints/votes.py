"""Evidence of which way round a matrix is stored, and the words in names that it is found by."""

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from toposcope.checkpoints.roles import leaf_of

Shape = tuple[int, ...]
NUMBER = re.compile(r"\d+")
WEIGHT_WORDS = {"w", "weight", "weights", "kernel", "coef", "coefs", "theta", "matrix"}
BIAS_WORDS = {"b", "bias", "biases", "intercept", "intercepts", "offset"}
NORM_WORDS = {"ln", "bn", "norm", "layernorm", "batchnorm", "rmsnorm", "gamma", "beta", "scale", "g"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_CONV1D = re.compile(r"(?:^|\.)(?:c_attn|c_proj|c_fc|q_attn)\.(?:weight|kernel)$")


class Convention(IntEnum):
    """Ways of storing that names stand for: matrices of one convention in a file are stored the same way round."""

    BY_HAND, LINEAR, KERNEL, CONV1D, EXPERTS = range(5)


class Rank(IntEnum):
    """How much a vote is worth."""

    HALF_BY_NAME, CHAIN, STREAM, BIAS = range(4)


class Vote(NamedTuple):
    """A piece of evidence: whether it shows (inputs, outputs), what it is worth, and what it is, in words."""

    transposed: bool
    rank: Rank
    reason: str


@dataclass(frozen=True)
class Stored:
    """A matrix as stored: its name, shape, role, and whether it is one of several experts in a tensor."""

    name: str
    shape: Shape
    role: str
    is_expert: bool = False

    @property
    def convention(self) -> Convention:
        """The way of storing that its name stands for."""
        leaf = leaf_of(self.name)
        if self.is_expert:
            return Convention.EXPERTS
        if _CONV1D.search(self.name):
            # Conv1D has the names of a linear map of nanoGPT, in torch and in Flax.
            return Convention.CONV1D
        if leaf.endswith("kernel") or (leaf == "w" and ("/" in self.name or "~" in self.name)):
            return Convention.KERNEL
        is_linear = leaf == "weight" or leaf.endswith("_weight") or leaf.startswith("weight_")
        return Convention.LINEAR if is_linear else Convention.BY_HAND


@lru_cache(maxsize=1 << 16)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words and numbers of a name; the letter of a weight or bias is a word of its own: ``Wq``, ``bq``."""
    words: list[str] = []
    for part in re.split(r"[^A-Za-z0-9]+", re.sub(r":\d+$", "", name)):
        if re.fullmatch(r"[wb][a-z]{1,2}", part) or re.fullmatch(r"[WB][a-z]{1,3}", part):
            words += [part[0].lower(), part[1:]]
        else:
            words += [word.lower() for word in _WORD.findall(part)]
    return tuple(words)


def is_bias(name: str) -> bool:
    """Return whether a name has a word of biases, and none of norms."""
    words = set(words_of(name))
    return not BIAS_WORDS.isdisjoint(words) and NORM_WORDS.isdisjoint(words)


@lru_cache(maxsize=1 << 16)
def template_of(name: str) -> str:
    """Return a name with a sign in place of its numbers, equal for those of one list."""
    return NUMBER.sub("#", name)
