"""Attention by torch's own fused kernels."""

from __future__ import annotations

import torch

from anygpu.engines.torch.site import LOWER, Site, Step
from anygpu.program.ops.attention import Attend


@LOWER.rule(Attend)
def attend(op: Attend, site: Site) -> Step:
    n, m = site.inputs[0].shape[-2], site.inputs[1].shape[-2]
    hidden = torch.ones(n, m, dtype=torch.bool, device=site.place).triu(m - n + 1) if op.causal else None
    biased = len(site.inputs) == 4
    if not site.result.size or not m:
        return lambda q, k, v, *bias: q.new_full((*q.shape[:-1], v.shape[-1]), torch.nan)
    # Of torch's own causal attention, the first query sees the first key alone: the same only for as many of both.
    if not biased and (hidden is None or n == m):
        return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=op.causal, scale=op.scale
        )

    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        mask = bias[0] if bias else q.new_zeros(n, m)
        if hidden is not None:
            mask = mask.masked_fill(hidden, -torch.inf)
        result = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=op.scale)
        # torch gives zeros for a query that sees no key; what it means is NaN.
        blind = (_once(mask) == -torch.inf).all(dim=-1, keepdim=True)
        return result.masked_fill(blind, torch.nan)

    return masked


def _once(x: torch.Tensor) -> torch.Tensor:
    """What is only repeated along an axis, once: a mask of a batch is the same for all heads and queries."""
    return x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())]
