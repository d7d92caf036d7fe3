"""Largest logit and entropy of attention by head, and norms of queries and keys, in bounded memory."""

from collections.abc import Iterable, Iterator
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from toposcope.probes.activations import MAX_POINTS
from toposcope.probes.hidden_states import evenly

MAX_LOGITS = 1 << 22  # logits in memory at a time
MASKED = -9_000.0
"""Masks are minus infinity, the least number of a dtype, or -10,000: a query whose logits are all below has no key."""
MIN_LOGARITHM = -87.0  # of a share of attention; below, it would be no normal number, and its exponential slow

Heads = dict[str, Tensor]
"""By statistic: those of attention have shape (heads,), norms have no dimension."""


def from_states(
    query: Tensor, key: Tensor, mask: Tensor | None, *, is_causal: bool, scale: float | None, n_vectors: int
) -> Heads:
    """Measure attention from its queries and keys, of shape (..., tokens, width), as scaled_dot_product_attention does.

    `n_vectors` is the number of tokens of all sequences: it tells sequences from heads where one axis has both.
    """
    q, k = _by_head(query, n_vectors), _by_head(key, n_vectors, query)
    n_heads, n_queries, width = q.shape[1:]
    n_keys = k.shape[2]
    factor = 1 / sqrt(width) if scale is None else scale
    if mask is not None:
        lead = torch.broadcast_shapes(query.shape[:-2], mask.shape[:-2])  # type: ignore[no-untyped-call]
        mask = mask.broadcast_to(*lead, n_queries, n_keys).reshape(-1, n_heads, n_queries, n_keys)

    def logits() -> Iterator[Tensor]:
        for b, rows in _queries(max(len(q), len(k)), n_queries, n_heads * n_keys, q.device):
            # Heads that share a key are multiplied with it together.
            groups = (q[b % len(q)][:, rows].float() * factor).reshape(k.shape[1], -1, width)
            products = torch.bmm(groups, k[b % len(k)].float().transpose(1, 2))
            found = products.reshape(n_heads, len(rows), n_keys)
            if is_causal:
                found.masked_fill_(torch.arange(n_keys, device=q.device) > rows[:, None], -torch.inf)
            if mask is not None:
                chosen = mask[b % len(mask)][:, rows]
                is_bool = chosen.dtype == torch.bool
                found = found.masked_fill_(~chosen, -torch.inf) if is_bool else found.add_(chosen)
            yield found

    return _by_statistic(logits()) | {"query_norm": mean_norm(query), "key_norm": mean_norm(key)}


def from_logits(logits: Tensor, n_vectors: int) -> Heads:
    """Measure attention from the input of its softmax, of shape (..., queries, keys)."""
    x = _by_head(logits, n_vectors)
    n_sequences, n_heads, n_queries, n_keys = x.shape
    chunks = _queries(n_sequences, n_queries, n_heads * n_keys, x.device)
    return _by_statistic((x[b][:, rows].float() for b, rows in chunks), may_be_shifted=True)


def mean_norm(vectors: Tensor, dim: int = -1) -> Tensor:
    """Return the mean L2 norm of vectors."""
    norms: Tensor = torch.linalg.vector_norm(vectors.detach(), dim=dim, dtype=torch.float32)
    return norms.mean()


def _by_head(tensor: Tensor, n_vectors: int, query: Tensor | None = None) -> Tensor:
    """Return a tensor as (sequences, heads, tokens, width); three axes may have the first two as one."""
    n_tokens = (tensor if query is None else query).shape[-2]
    n = len(tensor) if tensor.ndim > 3 else 1
    if tensor.ndim == 3:
        n = max(1, n_vectors // n_tokens)
        n = n if len(tensor) % n == 0 else len(tensor)
    return tensor.detach().reshape(n, -1, *tensor.shape[-2:])


def _queries(n_sequences: int, n_queries: int, n_logits: int, device: Any) -> Iterator[tuple[int, Tensor]]:
    """Yield the evenly spaced queries that are measured, sequence by sequence; each has so many logits."""
    chosen = torch.from_numpy(evenly(n_sequences * n_queries, MAX_POINTS))
    size = max(1, MAX_LOGITS // n_logits)
    for b, first in enumerate(range(0, n_sequences * n_queries, n_queries)):
        rows = (chosen[(chosen >= first) & (chosen < first + n_queries)] - first).to(device)
        yield from ((b, rows[start : start + size]) for start in range(0, len(rows), size))


def _by_statistic(chunks: Iterable[Tensor], *, may_be_shifted: bool = False) -> Heads:
    """Return largest logit and mean entropy by head, of logits of shape (heads, queries, keys), which it overwrites."""
    largest, entropies, negative = [], [], []
    for logits in chunks:
        if may_be_shifted:
            negative.append(((logits < 0) & (logits > MASKED)).any())
        top = logits.amax(dim=2, keepdim=True)
        below = logits.sub_(top).clamp_min_(MIN_LOGARITHM)
        share = below.exp()
        total = share.sum(dim=2)
        entropies.append(total.log() - share.mul_(below).sum(dim=2) / total)
        largest.append(top[..., 0])
    rows, entropy = torch.cat(largest, dim=1), torch.cat(entropies, dim=1)
    is_valid = ~(rows <= MASKED)  # NaN is valid, and remains
    top = rows.masked_fill(~is_valid, -torch.inf).amax(dim=1)
    if may_be_shifted:  # some code subtracts each row's largest logit before the softmax, and it is gone
        top = top.masked_fill(((rows == 0) | ~is_valid).all() & torch.stack(negative).any(), torch.nan)
    mean = entropy.masked_fill(~is_valid, 0).sum(dim=1) / is_valid.sum(dim=1)
    return {"attention_logit_max": top, "attention_entropy": mean}
