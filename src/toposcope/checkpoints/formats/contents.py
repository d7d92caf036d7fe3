"""The models in a file of one pickle, by the keys that lead to them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toposcope.checkpoints.formats.pickles import StoredArray
from toposcope.checkpoints.formats.weight_names import is_other
from toposcope.checkpoints.unpickling import MAX_NESTED, Placeholder, StoredTensor, name_of
from toposcope.errors import ToposcopeError, choices

Key = tuple[str | int, ...]
Stored = StoredTensor | StoredArray
WEIGHT_KEYS = ("model_state_dict", "state_dict", "model", "module", "model_state", "state", "app", "params")
"""Keys under which trainers save the weights: ours and many others, Lightning, nanoGPT, DeepSpeed, Composer (state,
then model), the recipes of torch.distributed.checkpoint (app, then model), Flax."""
_DEFAULT_KEYS = [(name,) for name in WEIGHT_KEYS]
MAX_NESTING = 4  # usual keys within usual keys; a pickled dictionary can hold itself
MAX_DEPTH = 32  # dictionaries within dictionaries of one model
MAX_REPEATED = 1 << 16
"""Values that a file may have if those in several places are counted several times, or eight times its own."""
MAX_LISTED = 5
_JAX_STATES = re.compile("opt|opt_?states?|optState|grads?|gradients|momentum", re.IGNORECASE)
_JAX_LEAVES = {"kernel", "embedding", "scale", "w", "b"}
_MODEL_WORDS = re.compile(
    r"(^|_)(emas?|averaged?|swa|teacher|student|generator|discriminator|net_?[dg]|[dg]|actor|critic|policy|value|target"
    r"|online|reference|ref)(_|\d|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Model:
    """The tensors of one model, and the values that are no plain tensors, with what each is."""

    tensors: dict[str, Stored] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def has_matrix(self) -> bool:
        """Whether a tensor has two axes or more."""
        return any(len(shape_of(tensor)) > 1 for tensor in self.tensors.values())


@dataclass(frozen=True)
class InnerSeries:
    """Models of one architecture in one file: their keys, their steps if any are known, and where these come from."""

    place: str
    keys: list[Key]
    steps: list[int] | None
    origin: str


@dataclass(frozen=True)
class Contents:
    """The models below a key."""

    chosen: Key | None = None  # the key of the model to read; None if none is usual, or if there are several
    others: list[Key] = field(default_factory=list)  # keys of the others, or of all if none is chosen
    left: list[str] = field(default_factory=list)  # matrices next to the model, which do not belong to it


@dataclass(frozen=True)
class Inside:
    """What a checkpoint holds besides the tensors of one model.

    Attributes
    ----------
    key : tuple
        The key as its dictionaries have it.
    series : InnerSeries or None
    stated : dict of int
        Counters of steps, epochs and tokens, by name.
    models : Contents
    """

    key: Key = ()
    series: InnerSeries | None = None
    stated: dict[str, int] = field(default_factory=dict)
    models: Contents = field(default_factory=Contents)


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor or an array, () of anything else."""
    described = value.tensor if isinstance(value, StoredArray) else value
    return described.shape if isinstance(described, StoredTensor) else ()


def text_of(key: Key) -> str:
    """Return a key as it is written after a path."""
    return ".".join(map(str, key))


def items_of(content: Any) -> Mapping[Any, Any] | None:
    """Return the items of a dictionary, also of another class, such as a FrozenDict; None of anything else."""
    if not isinstance(content, Placeholder):
        return content if isinstance(content, Mapping) else None
    if content:
        return content
    made_of = content.arguments[0] if content.arguments else None
    if isinstance(made_of, list) and made_of:
        is_made_of_pairs = all(isinstance(p, list | tuple) and len(p) == 2 and isinstance(p[0], str) for p in made_of)
        return dict(made_of) if is_made_of_pairs else None
    return made_of if isinstance(made_of, dict) and not isinstance(made_of, Placeholder) else None


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


class _Walk:
    """Collects the tensors below an object, each under its dotted name."""

    def __init__(self) -> None:
        self.model = Model()
        self._above: list[int] = []

    def visit(self, name: str, content: Any, depth: int = MAX_DEPTH) -> None:
        if isinstance(content, StoredTensor) or (isinstance(content, StoredArray) and content.tensor is not None):
            self.model.tensors[name] = content
        elif isinstance(content, StoredArray):
            self.model.unread[name] = f"array of dtype {content.code}" if content.code else "array"
        elif isinstance(content, str | int | float | bytes | None):
            return
        elif depth and id(content) not in self._above:
            self._above.append(id(content))
            self._object(name, content, depth - 1)
            self._above.pop()

    def _object(self, name: str, content: Any, depth: int) -> None:
        if is_module(content):
            for part, value in _module_items(content):
                self.visit(_joined(name, part), value, depth)
        elif (items := items_of(content)) is not None:
            for part, value in items.items():
                if isinstance(part, str | int):
                    self.visit(_joined(name, str(part)), value, depth)
                elif isinstance(value, StoredTensor | StoredArray):
                    self.model.unread[_joined(name, "?")] = "a tensor whose key is no text"
        elif isinstance(content, list | tuple):
            for number, value in enumerate(content):
                self.visit(_joined(name, str(number)), value, depth)
        elif what := name_of(content):
            self.model.unread[name] = what


def _joined(outer: str, name: str) -> str:
    # Haiku separates the modules of a name by slashes.
    return f"{outer.replace('/', '.')}.{name}" if outer else name


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


def model_of(content: Any) -> Model:
    """Return the tensors below an object; of a file's top level, without what belongs to an optimizer and the like."""
    walk = _Walk()
    fields = None if is_module(content) else fields_of(content)
    if fields is None:
        walk.visit("", content)
        return walk.model
    for name, value in fields.items():
        if isinstance(name, str | int) and (isinstance(value, StoredTensor) or not is_state(name, value)):
            walk.visit(str(name), value)
    return walk.model


def is_state(name: str | int, value: Any) -> bool:
    """Return whether a value is the state of an optimizer, a scheduler or a random number generator."""
    text = name if isinstance(name, str) else ""
    is_state = is_other(text) or _JAX_STATES.fullmatch(text) is not None
    return is_state or "param_groups" in (items_of(value) or ())


def repeats(content: Any) -> bool:
    """Return whether looking at all values of a file would take far longer than their number, or go too deep."""
    sizes: dict[int, int] = {}
    stack: list[tuple[Any, bool]] = [(content, False)]
    total = depth = 0
    while stack:
        value, is_done = stack.pop()
        parts = _parts(value)
        depth += -1 if is_done else id(value) not in sizes
        if depth > MAX_NESTED:
            return True
        if is_done:
            size = len(parts) + 1 + sum(sizes.get(id(part), 0) for part in parts)
            sizes[id(value)] = min(size, 1 << 60)
            total += len(parts) + 1
        elif id(value) not in sizes:
            sizes[id(value)] = 0  # of a value inside itself, which is not followed
            stack.append((value, True))
            stack += [(part, False) for part in parts if isinstance(part, dict | list | tuple)]
    return sizes[id(content)] > max(MAX_REPEATED, 8 * total)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Placeholder):
        return [*value.values(), *value.state.values(), *value.arguments]
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


# The models of a file


def contents_of(content: Any, key: Key = (), nesting: int = MAX_NESTING) -> Contents:
    """Find the models below an object, `key` being the way to it."""
    fields = fields_of(content)
    if is_module(content) or (fields is None and _is_list_of_arrays(content)):
        return Contents(key)
    if fields is None and isinstance(content, list | tuple):
        return _in_list(content, key)
    if fields is None or "param_groups" in fields:
        return Contents()
    usual = _usual_in(fields, key, nesting, with_matrix=True)
    own = {name: model for name, model in _models(fields) if usual is None or name != _first(usual, len(key))}
    if usual is None and not own:
        usual = _usual_in(fields, key, nesting, with_matrix=False)
    if usual is not None:
        first = _first(usual, len(key))
        if own and first != "params" and _is_one(fields, [*own, first]):
            return Contents(key)
        return Contents(usual.chosen, [*usual.others, *((*key, name) for name in own)], usual.left)
    return _unusual(fields, key, own, nesting)


def _in_list(content: Sequence[Any], key: Key) -> Contents:
    """Find the models in a list or tuple, such as that of a model and its optimizer."""
    keys: list[Key] = [(*key, name) for name, _ in _models(dict(enumerate(content)))]
    if len(keys) > 1 and not any(map(is_state_dict, content)):
        return Contents(key)
    return Contents(keys[0]) if len(keys) == 1 else Contents(None, keys)


def _first(found: Contents, place: int) -> str | int:
    return (found.chosen if found.chosen is not None else found.others[0])[place]


def _usual_in(fields: Mapping[Any, Any], key: Key, nesting: int, *, with_matrix: bool) -> Contents | None:
    """Find the models under the first usual key that has any."""
    for name in WEIGHT_KEYS if nesting else ():
        if name in fields and not isinstance(fields[name], StoredTensor):
            usual = _usual(fields[name], (*key, name), nesting - 1, with_matrix=with_matrix)
            if usual.chosen is not None or usual.others:
                return usual
    return None


def _usual(content: Any, key: Key, nesting: int, *, with_matrix: bool) -> Contents:
    """Find the models under a usual key: one, unless several in it are known by their names."""
    items = items_of(content)
    if key[-1] == "params" and items is not None and "params" in items and nesting:
        return _usual(items["params"], (*key, "params"), nesting - 1, with_matrix=with_matrix)
    if isinstance(content, list | tuple) and is_state_dict(content):
        return _in_list(content, key)
    if key[-1] != "params":
        inner = contents_of(content, key, nesting)
        is_nested = inner.chosen is not None and inner.chosen[len(key) : len(key) + 1] in _DEFAULT_KEYS
        if is_nested or sum(_is_model_name(other[-1]) for other in inner.others) > 1:
            return inner
    return _alone(content, key, with_matrix=with_matrix)


def _alone(content: Any, key: Key, *, with_matrix: bool = False) -> Contents:
    """Choose an object if it has tensors, even such as cannot be read."""
    model = model_of(content)
    has_tensors = model.has_matrix if with_matrix else bool(model.tensors)
    return Contents(key) if has_tensors or any(map(is_tensor, model.unread.values())) else Contents()


def is_tensor(text: str) -> bool:
    """Return whether the name of a class is one of tensors."""
    return "ensor" in text or text.startswith(("lazy", "array"))


def _models(fields: Mapping[Any, Any]) -> Iterator[tuple[str | int, Model]]:
    for name, value in fields.items():
        if not isinstance(name, str | int) or isinstance(value, StoredTensor | StoredArray | str | int | float | None):
            continue
        if not is_state(name, value):
            model = _within(value)
            if model.has_matrix:
                yield name, model


def _within(value: Any) -> Model:
    """Return the tensors of a value, of an object also those that are its attributes."""
    walk = _Walk()
    walk.visit("", value if is_module(value) or not isinstance(value, Placeholder) else fields_of(value))
    return walk.model


def _is_one(fields: Mapping[Any, Any], names: Sequence[str | int]) -> bool:
    """Return whether values are parts of one model, by the names of Flax and Haiku."""
    if any(is_state_dict(fields[name]) for name in names):
        return False
    leaves = {leaf.rpartition(".")[2] for name in names for leaf in _within(fields[name]).tensors}
    return bool(leaves & _JAX_LEAVES) and "weight" not in leaves and not any(map(_is_model_name, names))


def _is_model_name(name: str | int) -> bool:
    return isinstance(name, str) and _MODEL_WORDS.search(name) is not None


def _unusual(fields: Mapping[Any, Any], key: Key, own: dict[str | int, Model], nesting: int) -> Contents:
    """Find the models where no key is usual."""
    direct = [name for name, value in fields.items() if isinstance(name, str | int) and len(shape_of(value)) > 1]
    others: list[Key] = [(*key, *part) for name in own for part in _parts_of(name, fields[name])]
    whole = [name for name in own if _is_model_name(name) or is_state_dict(fields[name])]
    is_list = any(isinstance(fields[name], list | tuple) for name in own)
    n_tensors = sum(len(model.tensors) for model in own.values())
    if len(others) == 1 and not is_list and not _is_one(fields, list(own)) and len(direct) < n_tensors:
        inner = contents_of(fields[others[0][-1]], others[0], nesting - 1) if nesting else Contents()
        is_found = inner.chosen is not None or inner.others
        return replace(inner if is_found else Contents(others[0]), left=list(map(str, direct)))
    if whole and not direct:
        return Contents(None, others)
    has_leaf = any(isinstance(value, StoredTensor | StoredArray | Placeholder | type) for value in fields.values())
    return _alone(fields, key) if own or direct or has_leaf else Contents()


def _parts_of(name: str | int, value: Any) -> list[Key]:
    """Return the keys of the models in a value: of each where it is a list of them."""
    if not isinstance(value, list | tuple) or not is_state_dict(value):
        return [(name,)]
    return [(name, place) for place, part in enumerate(value) if is_state_dict(part)]


def is_state_dict(value: Any, nesting: int = MAX_NESTING) -> bool:
    """Return whether a value is a module or a dictionary of tensors with dotted names, itself or under a usual key."""
    if is_module(value) or (
        isinstance(value, list | tuple) and nesting and any(is_state_dict(part, nesting - 1) for part in value)
    ):
        return True
    items = items_of(value) or {}
    if any(isinstance(name, str) and "." in name and shape_of(v) for name, v in items.items()):
        return True
    return nesting > 0 and any(is_state_dict(items[name], nesting - 1) for name in WEIGHT_KEYS if name in items)


def _is_list_of_arrays(content: Any) -> bool:
    is_list = isinstance(content, list | tuple) and bool(content)
    return is_list and all(isinstance(v, StoredArray | list | tuple) for v in content) and _within(content).has_matrix


def weights_of(content: object) -> dict[str, StoredTensor]:
    """Find the tensors of the usual model in nested dictionaries, by name."""
    chosen = contents_of(content).chosen
    found = model_of(descend(content, chosen, "") if chosen else content).tensors if chosen is not None else {}
    weights = {name: tensor for name, tensor in found.items() if isinstance(tensor, StoredTensor)}
    is_lightning = isinstance(content, Mapping) and "pytorch-lightning_version" in content
    return without_attribute(weights) if is_lightning else weights


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
            raise ToposcopeError(f"{location}: no key {str(part)[:40]!a} in it; {choices(str(part)[:40], names)}")
        if len(str(part)) > len(str(name)):
            left.append(str(part)[len(str(name)) + 1 :])
        parts.append(name)
        content = inside[name]
    return tuple(parts)


def parts_by_key(content: Any) -> Mapping[Any, Any]:
    """Return what an object holds, by key, attribute or place in a list."""
    if isinstance(content, list | tuple):
        return dict(enumerate(content))
    return fields_of(content) or {}
