"""What the name of a model says: parameters, tokens, the step of a checkpoint, and the family."""

import re
from typing import NamedTuple

from toposcope.logs.evaluations.public_models import PublicModel, is_later_stage, public_model

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


class Name(NamedTuple):
    """What a name says; None where it says nothing.

    Attributes
    ----------
    N, D : float or None
        Parameters, as rounded as the name has them; tokens seen.
    step : int or None
    seed : str or None
    family : str or None
        The name without these; None where no size stands in it.
    public : PublicModel or None
        The public model of this name, with what its publisher declares.
    """

    N: float | None
    D: float | None
    step: int | None
    seed: str | None
    family: str | None
    public: PublicModel | None


def read_name(name: str) -> Name:
    """Return what a model's or a run's name says.

    Examples
    --------
    >>> read_name("runs/tiny-70M-step1000-seed3")[:-1]
    (70000000.0, None, 1000, '3', 'runs/tiny')
    >>> read_name("allenai/OLMo-2-1124-7B stage1-step150000-tokens630B").D
    630000000000.0
    >>> read_name("EleutherAI/pythia-160m step1000").public.tokens_at(1000)
    2097152000.0
    """
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
    """Return the name of a model without its checkpoint: step, tokens and stage.

    Examples
    --------
    >>> without_checkpoint("runs/tiny/step100"), without_checkpoint("pythia-160m-step1000")
    ('runs/tiny', 'pythia-160m')
    """
    short = name
    for pattern in (_TOKENS, _STEP):
        short = pattern.sub("", short)
    short = _joined(short).rstrip("/")
    if public_model(short) and not public_model(name):  # a checkpoint of one's own: not as the publisher declares
        return re.sub(r"[-_=/ ]*([a-z_]+?)[-_=]*\d+/?$", r"-\1", name, flags=re.IGNORECASE)
    return short
