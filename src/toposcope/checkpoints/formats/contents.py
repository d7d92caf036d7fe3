"""The models in a file of one pickle, by the keys that lead to them."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toposcope.checkpoints.formats.entry import Unread
from toposcope.checkpoints.formats.weight_names import is_other
from toposcope.checkpoints.unpickling import OtherTensor, Placeholder, StoredStorage, StoredTensor, name_of
from toposcope.errors import ToposcopeError, choices
from toposcope.untrusted import is_bounded

Key = tuple[str | int, ...]
WEIGHT_KEYS = ("model_state_dict", "state_dict", "model", "module", "model_state", "params", "state", "app")
"""Keys under which trainers save the weights: ours and many others, Lightning, nanoGPT, DeepSpeed, Flax and Haiku
(beside a state), Composer (state, then model), the recipes of torch.distributed.checkpoint (app, then model)."""
MAX_NESTING = 4  # usual keys within usual keys; a pickled dictionary can hold itself
MAX_DEPTH = 32  # dictionaries within dictionaries of one model
MAX_LIST = 1 << 15  # parts of a list that may be a model; a longer one is data
_STATES = re.compile(
    "opt|opt_?states?|optState|grads?|gradients|momentum|_?(optimizer|rng|random_state)", re.IGNORECASE
)
"""States of JAX; attributes of the objects of scikit-learn."""
_JAX_LEAVES = {"kernel", "embedding", "scale", "w", "b"}
_MODEL_WORDS = re.compile(
    r"(^|_)(emas?|averaged?|swa|teacher|student|generator|discriminator|net_?[dg]|[dg]|actor|critic|policy|value|target"
    r"|online|reference|ref)(_|\d|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Model:
    """The tensors of one model, and the values that are no plain tensors."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    unread: dict[str, Unread] = field(default_factory=dict)

    @property
    def has_matrix(self) -> bool:
        """Whether a tensor has two axes or more."""
        return any(len(shape_of(tensor)) > 1 for tensor in self.tensors.values())

    @property
    def has_unread(self) -> bool:
        """Whether numbers are left unread."""
        return any(value.numbers for value in self.unread.values())


@dataclass(frozen=True)
class Contents:
    """The models below a key."""

    chosen: Key | None = None  # the key of the model to read; None if none is usual, or if there are several
    others: list[Key] = field(default_factory=list)  # keys of the others, or of all if none is chosen
    left: dict[str, int] = field(default_factory=dict)  # matrices next to the model, and how many numbers they have


@dataclass(frozen=True)
class Inside:
    """What a checkpoint holds besides the tensors of one model, under its `key` as its dictionaries have it."""

    key: Key = ()
    stated: dict[str, int] = field(default_factory=dict)  # counters of steps, epochs and tokens
    models: Contents = field(default_factory=Contents)


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, () of anything else."""
    return value.shape if isinstance(value, StoredTensor) else ()


def text_of(key: Key) -> str:
    """Return a key as it is written after a path."""
    return ".".join(map(str, key))


def items_of(content: Any) -> Mapping[Any, Any] | None:
    """Return the items of a dictionary, also of another class, such as a FrozenDict; None of anything else."""
    if not isinstance(content, Placeholder):
        return content if isinstance(content, Mapping) else None
    made_of = content.arguments[0] if content.arguments else None
    if content or not isinstance(made_of, list | dict) or isinstance(made_of, Placeholder):
        return content or None
    if isinstance(made_of, dict):
        return made_of
    is_pairs = all(isinstance(p, list | tuple) and len(p) == 2 and isinstance(p[0], str) for p in made_of)
    return dict(made_of) if made_of and is_pairs else None


def fields_of(content: Any) -> Mapping[Any, Any] | None:
    """Return the items of a dictionary, or the attributes of an object."""
    items = items_of(content)
    return content.state or None if items is None and isinstance(content, Placeholder) else items


def is_module(content: Any) -> bool:
    """Return whether an object is an ``nn.Module`` that was saved whole."""
    fields = fields_of(content) if isinstance(content, Placeholder) else None
    return fields is not None and all(isinstance(fields.get(k), dict) for k in ("_parameters", "_modules"))


def refuse_key(location: str, key: Key) -> None:
    """Refuse a key of a file that can only hold one model."""
    if key:
        raise ToposcopeError(f"{location}: holds one model, not several; leave out :{text_of(key)[:40]}")


# One model


def model_of(content: Any) -> Model:
    """Return the tensors below an object; of a dictionary without what belongs to an optimizer and the like."""
    model = Model()
    fields = None if is_module(content) else fields_of(content)
    parts = {"": content} if fields is None else fields
    for name, value in parts.items():
        if isinstance(name, str | int) and (isinstance(value, StoredTensor) or not is_state(name, value)):
            _visit(model, str(name), value, [])
    return model


def _visit(model: Model, name: str, content: Any, above: list[int]) -> None:
    """Collect the tensors below an object, each under its dotted name."""
    if isinstance(content, StoredTensor):
        model.tensors[name] = content
    elif isinstance(content, str | int | float | bytes | None) or id(content) in above or len(above) > MAX_DEPTH:
        return
    elif is_module(content) or isinstance(content, list | tuple) or items_of(content) is not None:
        for part, value in _module_items(content) if is_module(content) else parts_by_key(content).items():
            if isinstance(part, str | int):
                # Haiku separates the modules of a name by slashes.
                inner = f"{name.replace('/', '.')}.{part}" if name else str(part)
                _visit(model, inner, value, [*above, id(content)])
            elif isinstance(value, StoredTensor):
                model.unread[f"{name}.?"] = Unread("a tensor whose key is no text", math.prod(shape_of(value)))
    elif what := name_of(content):
        shape = content.shape if isinstance(content, OtherTensor) else ()
        numbers = math.prod(shape) if shape else _count(content)
        is_weight = len(shape) > 1 if shape else numbers > 0 and "ensor" in what
        model.unread[name] = Unread(what, numbers, is_weight and "sparse" not in what)


def _module_items(module: Placeholder) -> Iterator[tuple[str, Any]]:
    """Yield what the state_dict of a module would hold."""
    fields = fields_of(module) or {}
    transient = fields.get("_non_persistent_buffers_set")
    if isinstance(transient, Placeholder):  # protocol 2 makes a set of a list
        transient = transient.arguments[0] if transient.arguments else ()
    transient = {name for name in transient or () if isinstance(name, str)}
    for part in ("_parameters", "_buffers", "_modules"):
        for name, value in (items_of(fields.get(part)) or {}).items():
            if isinstance(name, str) and not (part == "_buffers" and name in transient):
                yield name, value


def _count(content: Any) -> int:
    """Return how many numbers lie below an object that is not read."""
    count, seen, stack = 0, set[int](), [content]
    while stack:
        value = stack.pop()
        if isinstance(value, StoredTensor):
            count += math.prod(shape_of(value))
        elif isinstance(value, StoredStorage):
            count += value.count
        elif id(value) not in seen:
            seen.add(id(value))
            stack += _parts(value)
    return count


def is_state(name: str | int, value: Any) -> bool:
    """Return whether a value is the state of an optimizer, a scheduler or a random number generator."""
    text = name if isinstance(name, str) else ""
    return bool(is_other(text) or _STATES.fullmatch(text) or "param_groups" in (items_of(value) or ()))


def can_be_searched(content: Any) -> bool:
    """Return whether looking at all values of a file takes no longer than that of a model; what holds itself is cut."""
    return is_bounded(content, _parts)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Placeholder):
        return [*value.values(), value.state, value.arguments]  # many objects can share a state
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


# The models of a file


def contents_of(content: Any, key: Key = (), nesting: int = MAX_NESTING) -> Contents:
    """Find the models below an object, `key` being the way to it.

    A module is a model, and so is a list of tensors or layers. In a dictionary the model is what lies under the first
    usual key, the others being named; without one it is the only value with matrices, or the dictionary itself, unless
    its values are models by their own names, or by dotted names within.
    """
    if is_module(content):
        return Contents(key)
    parts = parts_by_key(content)
    if not parts or "param_groups" in parts:
        return Contents()
    own = dict(_models(parts))
    if isinstance(content, list | tuple):
        if not is_state_dict(content):
            return _alone(content, key, has_matrix=True)
        keys: list[Key] = [(*key, name) for name in own]
        return Contents(keys[0]) if len(keys) == 1 else Contents(None, keys)
    if len(own) > 1 and "params" not in own and _is_one(parts, [*own]):
        return Contents(key)
    loose = {str(name): math.prod(shape) for name, value in parts.items() if len(shape := shape_of(value)) > 1}
    for name in WEIGHT_KEYS if nesting else ():
        if name in own or (name in parts and not own and not isinstance(parts[name], StoredTensor)):
            usual = _usual(parts[name], (*key, name), nesting - 1, has_matrix=bool(own))
            if usual.chosen is not None or usual.others:
                others = [*usual.others, *((*key, other) for other in own if other != name)]
                return replace(usual, others=others, left=loose | usual.left)
    only = next(iter(own), "")
    is_list = len(own) == 1 and isinstance(parts[only], list | tuple) and not is_state_dict(parts[only])
    if len(own) == 1 and not is_list and not _is_one(parts, [only]) and len(loose) < len(own[only].tensors):
        inner = contents_of(parts[only], (*key, only), nesting - 1) if nesting else Contents()
        is_found = inner.chosen is not None or inner.others
        return replace(inner if is_found else Contents((*key, only)), left=loose | inner.left)
    if not loose and any(_is_model_name(name) or is_state_dict(parts[name]) for name in own):
        return Contents(None, [(*key, name) for name in own])
    return _alone(content, key)


def _usual(content: Any, key: Key, nesting: int, *, has_matrix: bool) -> Contents:
    """Find the models under a usual key: one, unless another usual key lies in it, or several known by their names."""
    is_several = isinstance(content, list | tuple) and is_state_dict(content)
    if key[-1] != "params" or is_several or "params" in (items_of(content) or ()):
        inner = contents_of(content, key, nesting)
        is_nested = inner.chosen is not None and inner.chosen[len(key) : len(key) + 1] in [(k,) for k in WEIGHT_KEYS]
        if is_several or is_nested or sum(_is_model_name(other[-1]) for other in inner.others) > 1:
            return inner
    return _alone(content, key, has_matrix=has_matrix)


def _alone(content: Any, key: Key, *, has_matrix: bool = False) -> Contents:
    """Choose an object if it has tensors, even such as cannot be read."""
    model = model_of(content)
    has_tensors = model.has_matrix if has_matrix else bool(model.tensors)
    return Contents(key) if has_tensors or model.has_unread else Contents()


def _models(parts: Mapping[Any, Any]) -> Iterator[tuple[str | int, Model]]:
    for name, value in parts.items():
        if isinstance(name, str | int) and isinstance(value, dict | list | tuple) and not is_state(name, value):
            model = model_of(value)
            if model.has_matrix:
                yield name, model


def is_state_dict(value: Any, nesting: int = MAX_NESTING) -> bool:
    """Return whether a value is a module or a dictionary of tensors with dotted names, itself or under a usual key."""
    if is_module(value) or (
        isinstance(value, list | tuple) and nesting and any(is_state_dict(v, nesting - 1) for v in value[:MAX_LIST])
    ):
        return True
    items = items_of(value) or {}
    if any(isinstance(name, str) and "." in name and shape_of(v) for name, v in items.items()):
        return True
    return nesting > 0 and any(is_state_dict(items[name], nesting - 1) for name in WEIGHT_KEYS if name in items)


def _is_one(parts: Mapping[Any, Any], names: Sequence[str | int]) -> bool:
    """Return whether values are parts of one model, by the names of Flax and Haiku."""
    if any(is_state_dict(parts[name]) or _is_model_name(name) for name in names):
        return False
    leaves = {leaf.rpartition(".")[2] for name in names for leaf in model_of(parts[name]).tensors}
    return bool(leaves & _JAX_LEAVES) and "weight" not in leaves


def _is_model_name(name: str | int) -> bool:
    return isinstance(name, str) and _MODEL_WORDS.search(name) is not None


def model_tensors(content: object) -> dict[str, StoredTensor]:
    """Find the tensors of the usual model in nested dictionaries, by name."""
    chosen = contents_of(content).chosen
    return {} if chosen is None else model_of(descend(content, chosen, "")).tensors


def without_attribute(weights: dict[str, Any]) -> dict[str, Any]:
    """Remove the name of the attribute under which a LightningModule keeps its model."""
    outer = {name.partition(".")[0] for name in weights}
    if len(outer) != 1 or not all("." in name for name in weights):
        return weights
    return {name.partition(".")[2]: tensor for name, tensor in weights.items()}


# Keys


def descend(content: Any, key: Key, location: str) -> Any:
    """Return what lies under a key; a text may hold several names, joined by dots."""
    for part in resolved(content, key, location):
        content = parts_by_key(content)[part]
    return content


def resolved(content: Any, key: Key, location: str) -> Key:
    """Return a key with a part for each dictionary or list on the way."""
    parts: list[str | int] = []
    left = list(reversed(key))
    while left:
        part, inside = left.pop(), parts_by_key(content)
        text = str(part)  # names may hold dots: the longest that it begins with
        fitting = [n for n in inside if isinstance(n, str | int) and (text == str(n) or text.startswith(f"{n}."))]
        name = part if part in inside else max(fitting, key=lambda name: len(str(name)), default=None)
        if name is None:
            names = [str(name)[:40] for name in inside if isinstance(name, str | int)][:20]
            raise ToposcopeError(f"{location}: no key {text[:40]!a} in it; {choices(text[:40], names)}")
        if len(text) > len(str(name)):
            left.append(text[len(str(name)) + 1 :])
        parts.append(name)
        content = inside[name]
    return tuple(parts)


def parts_by_key(content: Any) -> Mapping[Any, Any]:
    """Return what an object holds, by key, attribute or place in a list."""
    if isinstance(content, list | tuple):
        return dict(enumerate(content)) if len(content) <= MAX_LIST else {}
    return fields_of(content) or {}
