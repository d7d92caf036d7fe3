"""The parameters of a model in training, under the names and in the layout of a saved checkpoint."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from toposcope.checkpoints import Layer, roles
from toposcope.checkpoints.in_memory import CheckpointInMemory
from toposcope.errors import ToposcopeError, choices
from toposcope.monitor.shards import local

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter

WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "module")
"""Attributes in which wrappers store the model."""
MAX_LISTED = 5  # names of layers in a hint
MEASURED_DTYPES = ("float64", "float32", "bfloat16", "float16")


def watched(model: "Module") -> "dict[str, Parameter]":
    """Return the parameters of a model that can be measured, frozen ones included, by name and in its order.

    Prefixes of wrappers are removed. A parameter with several names has the one that a saved checkpoint uses. Do not
    call this during a forward pass: FSDP2 replaces the parameters then.
    """
    return {name: parameter for name, parameter, reason in _named(model) if not reason}


def unmeasured(model: "Module") -> dict[str, str]:
    """Return the parameters that cannot be measured, by name, with the reason."""
    reasons = {
        layer.name.partition("[")[0]: f"a live run reads plain matrices only ({layer.how}); measure its checkpoints"
        for layer in _layers(model)
        if not layer.tensor
    }
    return reasons | {name: reason for name, _, reason in _named(model) if reason}


def layout(model: "Module") -> list[Layer]:
    """Return the plain matrices of a model as layers of a saved checkpoint: names, roles and global shapes.

    The values of sharded matrices cannot be read from the result.
    """
    return [layer for layer in _layers(model) if layer.tensor and layer.role not in roles.NOT_ANALYSED]


def names_of(keyword: str, wanted: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names that an argument gives; refuse what is neither a name nor names."""
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted) if isinstance(wanted, Iterable) else (wanted,)
    if not all(isinstance(name, str) for name in names):
        raise ToposcopeError(f"{keyword}: {wanted!r} is neither a name nor a list of names")
    return names


def choose(layers: Sequence[Layer], wanted: str | Sequence[str] | None) -> list[Layer]:
    """Return the layers with these names, patterns of names (``*.mlp.*``), roles (``attn.q``) or roles (``attn``)."""
    if wanted is None:
        return list(layers)
    chosen = dict[str, Layer]()
    for pattern in names_of("layers", wanted):
        found = [x for x in layers if _is_chosen(x, pattern)]
        if not found:
            raise ToposcopeError(f"layers: no layer is named {pattern!r} or has that role; {_near(layers, pattern)}")
        chosen |= {layer.name: layer for layer in found}
    return [layer for layer in layers if layer.name in chosen]


def _is_chosen(layer: Layer, pattern: str) -> bool:
    return fnmatchcase(layer.name, pattern) or pattern in (layer.role, layer.role.partition(".")[0])


def _near(layers: Sequence[Layer], pattern: str) -> str:
    """Return a hint that names the roles, and the names that are most like a pattern."""
    from difflib import get_close_matches

    names = [layer.name for layer in layers]
    near = get_close_matches(pattern, names, MAX_LISTED, cutoff=0.4) or names[:MAX_LISTED]
    return choices(pattern, [*near, *dict.fromkeys(layer.role for layer in layers)])


def _layers(model: "Module") -> list[Layer]:
    """Return all layers of a model, as a saved checkpoint would have them."""
    inner = unwrapped(model)
    return CheckpointInMemory(type(inner).__name__, watched(model), _config(inner), only_parameters=True).layers()


def unwrapped(model: "Module") -> "Module":
    """Return the model inside torch.compile, DistributedDataParallel, FSDP and other wrappers."""
    while True:
        children = dict(model.named_children())
        inside = [name for name in WRAPPED if name in children]
        # A model may have a submodule named "module".
        is_bare = len(children) == 1 and not any(True for _ in model.parameters(recurse=False))
        if not inside or (inside[0] == "module" and not is_bare):
            return model
        model = children[inside[0]]


def _named(model: "Module") -> "Iterator[tuple[str, Parameter, str]]":
    """Yield name, parameter, and the reason why it cannot be measured, empty if it can."""
    places = list(model.named_parameters(remove_duplicate=False))
    plain = roles.plain_names([place for place, _ in places])
    names: dict[int, list[str]] = {}
    for name, (_, parameter) in zip(plain, places, strict=True):
        names.setdefault(id(parameter), []).append(name)
    inner = unwrapped(model)
    if any(c.__name__ == "PreTrainedModel" for c in type(inner).__mro__):
        chosen = _names_of_transformers(inner, {names[id(parameter)][0]: parameter for _, parameter in places})
    else:
        # as it is analysed in a checkpoint
        chosen = {
            n[0]: next((x for x in n if roles.role_of(x) not in roles.NOT_ANALYSED), n[0]) for n in names.values()
        }
    for place, parameter in places:
        own = names.pop(id(parameter), [])
        if own:
            yield chosen[own[0]], parameter, _reason(place, parameter)


def _names_of_transformers(model: "Module", parameters: "Mapping[str, Parameter]") -> dict[str, str]:
    """Return the names under which transformers saves parameters; split or merged parameters keep theirs."""
    import torch

    same = {name: name for name in parameters}
    empty = {name: torch.empty(p.shape, dtype=p.dtype, device="meta") for name, p in parameters.items()}
    if set(_saved_shapes(model, empty)) == set(same):
        return same
    for name, tensor in empty.items():
        saved = _saved_shapes(model, {name: tensor})
        if list(saved.values()) == [tensor.shape]:
            same[name] = next(iter(saved))
    return same


def _saved_shapes(model: "Module", tensors: "Mapping[str, Tensor]") -> dict[str, tuple[int, ...]]:
    """Return the names and shapes that transformers would save for these tensors; empty if it needs others too."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # version 4 saves them as they are
        return {name: tensor.shape for name, tensor in tensors.items()}
    try:
        saved = revert_weight_conversion(model, dict(tensors))
    except Exception:  # noqa: BLE001 - some saved tensors are merged from several
        return {}
    return {name: tensor.shape for name, tensor in saved.items()}


def _reason(place: str, parameter: "Parameter") -> str:
    """Return why a parameter cannot be measured; empty if it can."""
    from torch import Tensor
    from torch.nn.parameter import is_lazy

    dtype = str(parameter.dtype).removeprefix("torch.")
    if "_fsdp_wrapped_module." in f".{place}":
        return "FSDP1 flattens it together with others; use fully_shard (FSDP2)"
    if hasattr(parameter, "ds_id"):
        return "DeepSpeed ZeRO-3 partitions it; use fully_shard (FSDP2)"
    if parameter.is_meta or is_lazy(parameter):
        return "it is not initialised yet"
    if dtype not in MEASURED_DTYPES:
        return f"its dtype is {dtype}"
    stored = local(parameter)
    if type(stored) is not Tensor:
        return f"it is stored as {type(stored).__name__}"
    return "" if parameter.numel() else "it is empty"


def _config(model: "Module") -> dict[str, bytes]:
    """Return the configuration that transformers would save next to the weights."""
    as_json = getattr(getattr(model, "config", None), "to_json_string", None)
    return {} if as_json is None else {"config.json": as_json().encode()}
