"""The parameters of a model in training: their plain names, and the matrices that a saved checkpoint would hold."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from toposcope.checkpoints import Layer, roles
from toposcope.checkpoints.in_memory import CheckpointInMemory
from toposcope.monitor.shards import local

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter

WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "module")
"""Attributes under which wrappers keep a model."""
MEASURED_DTYPES = ("float64", "float32", "bfloat16", "float16")


def watched(model: "Module") -> "dict[str, Parameter]":
    """Return the parameters of a model by plain name, in its order; frozen ones too.

    The name of a shared parameter is the one under which a saved checkpoint of the model has it; transformers saves
    such a parameter once. FSDP2 exchanges its parameters in the forward pass: call this before or after it.
    """
    return {name: parameter for name, parameter, reason in _named(model) if not reason}


def left_out(model: "Module") -> dict[str, str]:
    """Return the parameters that cannot be measured, by plain name, and why, a few words each."""
    return {name: reason for name, _, reason in _named(model) if reason}


def layout(model: "Module") -> list[Layer]:
    """Return the matrices of a model in training as the layers of a saved checkpoint: names, roles, global shapes.

    Their numbers cannot be read where they are sharded.

    Raises
    ------
    ToposcopeError
        If there is none.
    """
    inner, parameters = unwrapped(model), watched(model)
    return CheckpointInMemory(type(inner).__name__, parameters, _config(inner)).analysed()


def unwrapped(model: "Module") -> "Module":
    """Return the model inside torch.compile, DistributedDataParallel, FSDP and other wrappers."""
    while True:
        children = dict(model.named_children())
        inside = [name for name in WRAPPED if name in children]
        # A model may have a part that is called module.
        is_bare = len(children) == 1 and not any(True for _ in model.parameters(recurse=False))
        if not inside or (inside[0] == "module" and not is_bare):
            return model
        model = children[inside[0]]


def _named(model: "Module") -> "Iterator[tuple[str, Parameter, str]]":
    """Yield name, parameter, and the reason for which it is not measured, empty if it is."""
    places = list(model.named_parameters(remove_duplicate=False))
    plain = roles.plain_names([place for place, _ in places])
    names: dict[int, list[str]] = {}
    for name, (_, parameter) in zip(plain, places, strict=True):
        names.setdefault(id(parameter), []).append(name)
    inner = unwrapped(model)
    if any(c.__name__ == "PreTrainedModel" for c in type(inner).__mro__):
        chosen = _names_of_transformers(inner, {names[id(parameter)][0]: parameter for _, parameter in places})
    else:
        chosen = {own[0]: _analysed_name(own) for own in names.values()}
    for place, parameter in places:
        own = names.pop(id(parameter), [])
        if own:
            yield chosen[own[0]], parameter, _reason(place, parameter)


def _analysed_name(names: Sequence[str]) -> str:
    """Return the name of a shared parameter that is measured in a checkpoint with all of its names."""
    return next((name for name in names if roles.role_of(name) not in roles.NOT_ANALYSED), names[0])


def _names_of_transformers(model: "Module", parameters: "Mapping[str, Parameter]") -> dict[str, str]:
    """Return the names under which transformers saves parameters; those saved in parts or with others keep theirs."""
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
    """Return names and shapes that transformers would save; none if it cannot save these alone."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # version 4 changes nothing
        return {name: tensor.shape for name, tensor in tensors.items()}
    try:
        saved = revert_weight_conversion(model, dict(tensors))
    except Exception:  # noqa: BLE001 - some are made of several tensors
        return {}
    return {name: tensor.shape for name, tensor in saved.items()}


def _reason(place: str, parameter: "Parameter") -> str:
    """Return why a parameter cannot be measured; empty if it can."""
    from torch import Tensor
    from torch.nn.parameter import is_lazy

    dtype = str(parameter.dtype).removeprefix("torch.")
    if "_fsdp_wrapped_module." in f".{place}":
        return "FSDP1 keeps it flattened with others; fully_shard (FSDP2) does not"
    if hasattr(parameter, "ds_id"):
        return "ZeRO-3 of DeepSpeed keeps it in pieces of its own; fully_shard (FSDP2) does not"
    if parameter.is_meta or is_lazy(parameter):
        return "it has no numbers yet"
    if dtype not in MEASURED_DTYPES:
        return f"its numbers are {dtype}"
    stored = local(parameter)
    if type(stored) is not Tensor:
        return f"its numbers are stored as {type(stored).__name__}"
    return "" if parameter.numel() else "it has no numbers"


def _config(model: "Module") -> dict[str, bytes]:
    """Return the configuration that transformers would save beside the weights."""
    as_json = getattr(getattr(model, "config", None), "to_json_string", None)
    return {} if as_json is None else {"config.json": as_json().encode()}
