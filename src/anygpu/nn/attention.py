"""Attention: for our arrays one primitive, which engines compute without storing the scores; composed for NumPy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anygpu.array.core.arguments import converted, either
from anygpu.array.core.array import Array
from anygpu.array.core.recording import apply, broadcast
from anygpu.base.float_errors import float_errors
from anygpu.engines.numpy.lowering import attended
from anygpu.program.ops.attention import Attend

#: A query that sees no key is 0 / 0, which is meant.
_attended = float_errors(invalid="ignore")(attended)


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None) -> Any:
    """softmax(q · kᵀ · scale + mask) · v for queries [..., n, d], keys [..., m, d] and values [..., m, e].

    Axes in front of these broadcast. `mask` broadcasts to [..., n, m]: truth values say which keys a query sees, floats
    are added to the scores. With `causal` the last query sees all keys, the one before it all but the last, and so on.
    `scale` is 1 / sqrt(d) unless it is given. A query that sees no key has NaN for its result.
    """
    q, k, v, mask = either(q, k, v, mask)
    stack, n, m = _checked(q, k, v, mask)
    dtype = np.result_type(q.dtype, k.dtype, v.dtype)
    if dtype.kind != "f":
        raise TypeError(f"attention takes floats, not {q.dtype}, {k.dtype} and {v.dtype}: convert them with astype.")
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    q, k, v = (converted(each, dtype) for each in (q, k, v))
    if isinstance(q, Array):
        parts = [q, k, v] if mask is None else [q, k, v, _added(mask, dtype)]
        ends = (q.shape[-2:], k.shape[-2:], v.shape[-2:], (n, m))
        values = [broadcast(each._value, (*stack, *end)) for each, end in zip(parts, ends, strict=False)]
        return Array(apply(Attend(scale, bool(causal)), *values))
    return _attended(q, k, v, None if mask is None else _added(mask, dtype), scale=scale, causal=causal)


def _checked(q: Any, k: Any, v: Any, mask: Any) -> tuple[tuple[int, ...], int, int]:
    """The broadcast leading axes, and the numbers of queries and keys."""
    for name, each in (("q", q), ("k", k), ("v", v)):
        if each.ndim < 2:
            raise ValueError(f"attention: {name} has at least two axes, and its shape is {each.shape}.")
    n, m = q.shape[-2], k.shape[-2]
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"attention: queries of length {q.shape[-1]} do not fit keys of length {k.shape[-1]} "
            f"(q has the shape {q.shape}, k {k.shape})."
        )
    if v.shape[-2] != m:
        raise ValueError(f"attention: {m} keys need as many values, and v has the shape {v.shape}.")
    shapes = [q.shape[:-2], k.shape[:-2], v.shape[:-2]]
    if mask is not None:
        if mask.dtype.kind not in "bf":
            raise TypeError(f"attention: the mask holds truth values or floats, not {mask.dtype}: write mask != 0.")
        last = mask.shape[-2:]
        if not all(length in (1, wanted) for length, wanted in zip(last[::-1], (m, n), strict=False)):
            raise ValueError(f"attention: a mask of shape {mask.shape} does not fit {n} queries and {m} keys.")
        shapes.append(mask.shape[:-2])
    try:
        return np.broadcast_shapes(*shapes), n, m
    except ValueError:
        raise ValueError(
            "attention: the axes in front of the last two do not broadcast: " + ", ".join(map(str, shapes)) + "."
        ) from None


def _added(mask: Any, dtype: Any) -> Any:
    """The mask as a bias that is added to the scores."""
    if mask.dtype.kind == "b":
        return np.where(mask, np.asarray(0, dtype), np.asarray(-math.inf, dtype))
    return converted(mask, dtype)
