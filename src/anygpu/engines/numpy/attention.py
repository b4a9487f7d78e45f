"""Attention of NumPy's arrays. This is the reference: what it means is what happens here."""

from __future__ import annotations

import numpy as np

from anygpu.base.typing import HostArray


def attended(
    q: HostArray, k: HostArray, v: HostArray, bias: HostArray | None = None, *, scale: float, causal: bool
) -> HostArray:
    """The result of `Attend`; axes in front of the last two broadcast. The caller silences NumPy's warnings."""
    # float16 is summed up in float32, as every engine does.
    wide = np.result_type(q.dtype, np.float32)
    q_wide, k_wide, v_wide = (each.astype(wide, copy=False) for each in (q, k, v))
    scores = np.matmul(q_wide, np.swapaxes(k_wide, -1, -2)) * wide.type(scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        n, m = scores.shape[-2:]
        scores = np.where(np.tri(n, m, m - n, dtype=bool), scores, wide.type(-np.inf))
    if scores.size:
        scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    return np.asarray(np.matmul(weights, v_wide) / weights.sum(axis=-1, keepdims=True), q.dtype)
