"""Sees attention and routing where torch computes them in a forward pass, whatever the model's code or backend.

Attention is ``scaled_dot_product_attention``, or a softmax over products of two batches of matrices; a router is a
linear map to fewer numbers than it is given, of which each token takes the largest.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC2701

from toposcope.monitor.attention import Heads, from_logits, from_states, mean_norm
from toposcope.monitor.preserved import Preserved
from toposcope.probes.activations import ATTENTION, LOGIT_MAX, PER_HEAD

aten = torch.ops.aten
sdpa = torch.nn.functional.scaled_dot_product_attention
N_PRODUCTS = 4  # batched products that may come between that of queries and keys and its softmax


class _Product(NamedTuple):
    n_rows: int  # over all batches
    n_columns: int
    norms: Heads  # of queries and keys, if these are the factors


@dataclass
class _Block:
    n_vectors: int  # tokens of all sequences
    heads: list[Heads] = field(default_factory=list)  # of each attention
    products: deque[_Product] = field(default_factory=lambda: deque(maxlen=N_PRODUCTS))
    weights: tuple[int, int] | None = None  # rows and columns of a softmax whose product with the values is to come
    routers: set[int] = field(default_factory=set)  # numbers of outputs of linear maps that may be routers
    loads: dict[int, Tensor] = field(default_factory=dict)  # by number of experts: tokens of each


class ForwardPass:
    """What the blocks of a model do in a forward pass, which runs inside `watching`."""

    def __init__(self, state: Preserved, *, attention: bool, routing: bool) -> None:
        self._state, self._attention, self._routing = state, attention, routing
        self._blocks: dict[str, _Block] = {}
        self._now: _Block | None = None
        self._is_inside = False  # whether within an attention that is measured already

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every operation."""
        with ExitStack() as stack:
            stack.enter_context(_Operations(self))
            if self._attention:
                stack.enter_context(_Functions(self))
            yield

    def enter(self, block: str, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Begin a block with the arguments of its forward."""
        tensors = (value for value in (*inputs, *named.values()) if isinstance(value, Tensor) and value.ndim)
        first = next(tensors, None)
        self._now = self._blocks[block] = _Block(1 if first is None else max(1, first[..., 0].numel()))

    def leave(self) -> None:
        """End a block."""
        self._now = None

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return the statistics by block; of a GPU, wait for them."""
        return {name: _attention(block.heads) | _routing(block.loads) for name, block in self._blocks.items()}

    def attend(self, run: Callable[[], Any], arguments: Mapping[str, Any]) -> Any:
        """Run an attention with these arguments, and measure it."""
        if self._now is None or not self._attention or self._is_inside:
            return run()
        mask = arguments.get("attn_mask") if "attn_mask" in arguments else arguments.get("attn_bias")
        self._now.heads.append(
            from_states(
                arguments["query"],
                arguments["key"],
                mask,
                is_causal=bool(arguments.get("is_causal")),
                scale=arguments.get("scale"),
                n_vectors=self._now.n_vectors,
            )
        )
        self._is_inside = True
        try:
            return run()
        finally:
            self._is_inside = False

    def operate(self, func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Run an operation, and look at it."""
        names, written, is_attention = _signature(func)
        arguments = dict(zip(names, args, strict=False)) | dict(named)
        for name in written:
            values = arguments.get(name)
            for tensor in values if isinstance(values, list | tuple) else [values]:
                if isinstance(tensor, Tensor) and type(tensor) in (Tensor, torch.nn.Parameter):
                    self._state.before_write(tensor)
        if is_attention:
            return self.attend(lambda: func(*args, **named), arguments)
        result = func(*args, **named)
        look = LOOKS.get(getattr(func, "overloadpacket", None))
        if look is not None and self._now is not None and not self._is_inside:
            look(self, self._now, args, named, result)
        return result

    def product(self, block: _Block, a: Tensor, b: Tensor, result: Tensor) -> None:
        """Look at a product of matrices, or of two batches of them."""
        n_columns = result.shape[-1]
        n_rows = result.numel() // max(1, n_columns)
        if self._routing and n_rows == block.n_vectors and 1 < n_columns < a.shape[-1]:
            block.routers.add(n_columns)
        if self._attention and a.ndim == 3:
            is_of_values, block.weights = block.weights == (n_rows, a.shape[-1]), None
            if not is_of_values and result.numel():
                norms = {"query_norm": mean_norm(a), "key_norm": mean_norm(b, dim=-2)}
                block.products.append(_Product(n_rows, n_columns, norms))

    def softmax(self, block: _Block, logits: Tensor, dim: int) -> None:
        """Look at a softmax; after a product of as many rows and columns, or of one column less, it is an attention."""
        if not self._attention or logits.ndim < 3 or dim % logits.ndim != logits.ndim - 1 or not logits.numel():
            return
        n_columns = logits.shape[-1]
        n_rows = logits.numel() // n_columns
        for product in reversed(block.products):
            if product.n_rows == n_rows and n_columns - product.n_columns in (0, 1):  # the one more is a sink
                block.heads.append(from_logits(logits, block.n_vectors) | product.norms)
                block.weights = n_rows, n_columns
                block.products.clear()
                return

    def choose(self, block: _Block, scores: Tensor, dim: int | None, chosen: Tensor) -> None:
        """Look at a choice of the largest; of the outputs of a router, it is of experts."""
        n = scores.shape[-1] if scores.ndim > 1 else 0
        if dim is None or n not in block.routers or dim % scores.ndim != scores.ndim - 1:
            return
        if scores.numel() == n * block.n_vectors:
            flat = chosen.reshape(-1)
            load = block.loads.setdefault(n, torch.zeros(n, dtype=torch.int64, device=flat.device))
            load.scatter_add_(0, flat, torch.ones_like(flat))


Look = Callable[[ForwardPass, _Block, tuple[Any, ...], Mapping[str, Any], Any], None]
LOOKS: dict[Any, Look] = {
    aten.mm: lambda now, block, args, _, result: now.product(block, args[0], args[1], result),
    aten.addmm: lambda now, block, args, _, result: now.product(block, args[1], args[2], result),
    aten.bmm: lambda now, block, args, _, result: now.product(block, args[0], args[1], result),
    aten.baddbmm: lambda now, block, args, _, result: now.product(block, args[1], args[2], result),
    aten._softmax: lambda now, block, args, _, result: now.softmax(block, args[0], args[1]),  # noqa: SLF001
    aten._safe_softmax: lambda now, block, args, _, result: now.softmax(block, args[0], args[1]),  # noqa: SLF001
    aten.topk: lambda now, block, args, named, result: now.choose(block, args[0], _dim(args, named, -1), result[1]),
    aten.argmax: lambda now, block, args, named, result: now.choose(block, args[0], _dim(args, named, None), result),
}
"""What is looked at, by operation."""


def _dim(args: tuple[Any, ...], named: Mapping[str, Any], default: int | None) -> int | None:
    place = 2 if default is not None else 1  # topk takes the number first
    found: int | None = args[place] if len(args) > place else named.get("dim", default)
    return found


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operation to a forward pass."""

    supports_higher_order_operators = True

    def __init__(self, seen_by: ForwardPass) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen_by = seen_by

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._seen_by.operate(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Passes calls of scaled_dot_product_attention on, which may reach no kernel of attention.

    While it is active, modules such as `TransformerEncoderLayer` do not take their fast path, which cannot be seen.
    """

    def __init__(self, seen_by: ForwardPass) -> None:
        super().__init__()
        self._seen_by = seen_by

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is not sdpa:
            return func(*args, **named)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        return self._seen_by.attend(lambda: func(*args, **named), dict(zip(names, args, strict=False)) | named)


@lru_cache(maxsize=4096)
def _signature(func: Any) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the arguments of an operation, those that it writes to, and whether it is a kernel of attention."""
    schema = getattr(func, "_schema", None)
    if schema is None:  # an operation of higher order
        return (), (), False
    names = tuple(argument.name for argument in schema.arguments)
    written = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return names, written, {"query", "key", "is_causal"} <= set(names) and "grad_out" not in names


def _attention(heads: list[Heads]) -> dict[str, float]:
    """Return the statistics of a block, and those of each head; heads of several attentions are numbered on."""
    found: dict[str, float] = {}
    for name in ATTENTION if heads else ():
        values = torch.cat([each[name].reshape(-1) for each in heads])
        if bool(values.isfinite().all()):
            found[name] = float(values.max() if name == LOGIT_MAX else values.mean())
        if name in PER_HEAD:
            by_head = {f"{name}@head.{h:02d}": value for h, value in enumerate(values.tolist())}
            found |= {key: value for key, value in by_head.items() if value - value == 0}
    return found


def _routing(loads: Mapping[int, Tensor]) -> dict[str, float]:
    """Return the share of experts that no token takes, and the entropy of the shares of tokens."""
    if not loads:
        return {}
    load = max(loads.values(), key=len).double()
    share = load / load.sum()
    entropy = -torch.special.xlogy(share, share).sum()
    return {"dead_experts": float((load == 0).double().mean()), "routing_entropy": float(entropy)}
