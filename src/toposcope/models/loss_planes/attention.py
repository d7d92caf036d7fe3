"""Fused attention for several sets of weights at once; forward only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

DEVICE_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Of an accelerator, the fastest first."""


class _Attention(torch.autograd.Function):
    """Attention that `torch.func.vmap` can map: the points become part of the batch.

    Without it, vmap calls the fused kernel once for each point.
    """

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Tensor:
        if query.device.type != "cpu":
            with sdpa_kernel(DEVICE_KERNELS):
                return functional.scaled_dot_product_attention(query, key, value, mask, **options)
        if mask is None and _is_plain(query, key, value, options):
            # By its name: which kernels are enabled is a setting of the process, and other threads change it too.
            fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 - no public name
            attended: Tensor = fused(
                query, key, value, 0.0, options.get("is_causal", False), scale=options.get("scale")
            )[0]
            return attended
        return functional.scaled_dot_product_attention(query, key, value, mask, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: there is no backward pass."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, int]:
        if in_dims[3] is not None:
            raise RuntimeError("vmap: a mask that depends on the weights")
        n = info.batch_size
        parts = zip((query, key, value), in_dims, strict=False)
        joined = [_points_first(part, dim, n).flatten(0, 1) for part, dim in parts]
        if mask is not None and mask.ndim == joined[0].ndim and len(mask) > 1:  # a mask for each sequence
            mask = mask.repeat(n, *[1] * (mask.ndim - 1))
        out = _attention(*joined, mask, options)
        return out.reshape(n, -1, *out.shape[1:]), 0


_attention: Callable[..., Tensor] = _Attention.apply


def _points_first(tensor: Tensor, dim: int | None, n: int) -> Tensor:
    return tensor.expand(n, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _is_plain(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> bool:
    """Return whether the fused kernel of the CPU takes these: as many heads and components in all three."""
    return (
        query.ndim == 4
        and query.shape[1] == key.shape[1] == value.shape[1]
        and query.shape[3] == value.shape[3]
        and all(part.stride(-1) == 1 for part in (query, key, value))
        and options.keys() <= {"is_causal", "scale", "dropout_p", "enable_gqa"}
    )


class _Replaced(TorchFunctionMode):
    """Replaces attention by that of many points."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is not functional.scaled_dot_product_attention or kwargs.get("dropout_p"):
            return function(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        kwargs |= dict(zip(names, args, strict=False))
        parts = [kwargs.pop(name) for name in names[:3]]
        return _attention(*parts, kwargs.pop("attn_mask", None), kwargs)


@contextmanager
def attention_of_many_points() -> Iterator[None]:
    """Compute attention by a fused kernel, for several points at once under `torch.func.vmap`; forward only."""
    with _Replaced():
        yield
