"""What is not element by element in jax: movement, reductions, sorting, contraction, gathering, transforms."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from anygpu.engines.jax.elementwise import LOWER, JaxSite, complex_ordering, hidden
from anygpu.program import primitives as p
from anygpu.program.dtypes import KIND
from anygpu.program.ops.linear import Attend

#: Up to so many neighbours, windows are slices side by side, which XLA fuses; beyond, they are gathered.
_SLICED_WINDOWS = 32


@LOWER.rule(p.Constant)
def constant(op: p.Constant, site: JaxSite) -> Array:
    return hidden(np.frombuffer(op.data, jnp.dtype(op.dtype)).reshape(op.shape))


@LOWER.rule(p.Iota)
def iota(op: p.Iota, site: JaxSite) -> Array:
    """The numbers from 0 on."""
    if KIND[op.dtype] == "complex":
        return lax.iota(np.int64, op.length).astype(jnp.dtype(op.dtype))
    return lax.iota(jnp.dtype(op.dtype), op.length)


@LOWER.rule(p.Reshape)
def reshape(op: p.Reshape, site: JaxSite, x: Array) -> Array:
    return lax.reshape(x, op.shape)


@LOWER.rule(p.Permute)
def permute(op: p.Permute, site: JaxSite, x: Array) -> Array:
    return lax.transpose(x, op.axes)


@LOWER.rule(p.Broadcast)
def broadcast(op: p.Broadcast, site: JaxSite, x: Array) -> Array:
    return jnp.broadcast_to(x, op.shape)


@LOWER.rule(p.Slice)
def slice_(op: p.Slice, site: JaxSite, x: Array) -> Array:
    return lax.slice(x, op.starts, op.stops, op.steps)


@LOWER.rule(p.Update)
def update(op: p.Update, site: JaxSite, x: Array, new: Array) -> Array:
    """`x` with new values in a region; a slice where it has no gaps, else a scatter without checks."""
    if new.size == 0:
        return x
    if all(step == 1 or count == 1 for step, count in zip(op.steps, new.shape, strict=True)):
        return lax.dynamic_update_slice(x, new, op.starts)
    region = tuple(
        slice(start, start + (count - 1) * step + 1, step)
        for start, step, count in zip(op.starts, op.steps, new.shape, strict=True)
    )
    return x.at[region].set(new, unique_indices=True, mode="promise_in_bounds")


@LOWER.rule(p.Flip)
def flip(op: p.Flip, site: JaxSite, x: Array) -> Array:
    return lax.rev(x, op.axes)


@LOWER.rule(p.Pad)
def pad(op: p.Pad, site: JaxSite, x: Array, value: Array) -> Array:
    return lax.pad(x, value, [(low, high, 0) for low, high in zip(op.low, op.high, strict=True)])


@LOWER.rule(p.Concatenate)
def concatenate(op: p.Concatenate, site: JaxSite, *parts: Array) -> Array:
    return lax.concatenate(parts, op.axis)


@LOWER.rule(p.Windows)
def windows(op: p.Windows, site: JaxSite, x: Array) -> Array:
    """Windows along an axis: as slices side by side for short ones, as a gather otherwise."""
    count = site.result.shape[op.axis]
    reach = (count - 1) * op.step + 1
    if op.size <= _SLICED_WINDOWS:
        parts = [lax.slice_in_dim(x, start, start + reach, op.step, op.axis) for start in range(op.size)]
        return jnp.stack(parts, axis=-1)
    starts = np.arange(count) * op.step
    picked = jnp.take(x, starts[:, None] + np.arange(op.size), axis=op.axis, mode="clip")
    return jnp.moveaxis(picked, op.axis + 1, -1)


@LOWER.rule(p.Reduce)
def reduce(op: p.Reduce, site: JaxSite, x: Array) -> Array:
    """A reduction; half precision is summed in float32, and complex extremes follow NumPy's order."""
    if KIND[site.dtype] == "complex" and op.fn in ("max", "min"):
        for axis in reversed(op.axes):
            position = jnp.expand_dims(_complex_extreme(x, axis, op.fn), axis)
            x = jnp.take_along_axis(x, position, axis, mode="promise_in_bounds").squeeze(axis)
        return x
    if KIND[site.dtype] == "complex" and op.fn in ("argmax", "argmin"):
        return _complex_extreme(x, op.axes[0], op.fn.removeprefix("arg"))
    match op.fn:
        case "argmax" | "argmin":
            return getattr(jnp, op.fn)(x, axis=op.axes[0]).astype(np.int64)
        case "sum" | "prod":
            dtype = np.float32 if site.dtype in ("float16", "bfloat16") else x.dtype
            return getattr(jnp, op.fn)(x, axis=op.axes, dtype=dtype).astype(x.dtype)
    return getattr(jnp, op.fn)(x, axis=op.axes)


def _complex_extreme(x: Array, axis: int, fn: str) -> Array:
    """Where the largest or least is, first by real and then by imaginary parts; what is not a number goes first."""
    extreme = getattr(jnp, fn)
    never = -jnp.inf if fn == "max" else jnp.inf
    at_best = x.real == extreme(x.real, axis=axis, keepdims=True)
    imaginary = jnp.where(at_best, x.imag, never)
    best = at_best & (imaginary == extreme(imaginary, axis=axis, keepdims=True))
    strange = jnp.isnan(x)
    found = jnp.where(jnp.any(strange, axis=axis, keepdims=True), strange, best)
    return jnp.argmax(found, axis=axis).astype(np.int64)


_SCANS = {"sum": lax.cumsum, "prod": lax.cumprod, "max": lax.cummax, "min": lax.cummin}


@LOWER.rule(p.Scan)
def scan(op: p.Scan, site: JaxSite, x: Array) -> Array:
    """A running reduction; half precision is carried in float32, and sums are added as a tree."""
    if KIND[site.dtype] == "complex" and op.fn in ("max", "min"):
        return lax.associative_scan(partial(complex_ordering, f"{op.fn}imum"), x, axis=op.axis)
    if KIND[site.dtype] == "complex" and op.fn == "sum":
        # In two halves, because XLA's simplifier aborts the process on some running sums of complex constants.
        return lax.complex(_running_sum(x.real, op.axis), _running_sum(x.imag, op.axis))
    if KIND[site.dtype] == "float" and op.fn == "sum":
        wide = x.astype(np.float32) if x.dtype in (np.float16, jnp.bfloat16) else x
        return _running_sum(wide, op.axis).astype(x.dtype)
    if op.fn in ("sum", "prod") and x.dtype in (np.float16, jnp.bfloat16):
        return _SCANS[op.fn](x.astype(np.float32), op.axis).astype(x.dtype)
    return _SCANS[op.fn](x, op.axis)


def _running_sum(x: Array, axis: int) -> Array:
    """jax begins with 0, and 0 + -0 is 0: a sum of nothing but -0 is -0 in NumPy."""
    total = lax.cumsum(x, axis)
    if not x.size:
        return total
    nothing = (x == 0) & jnp.signbit(x)

    def with_negative_zeros(total: Array) -> Array:
        return jnp.where(lax.cummin(nothing.astype(np.uint8), axis) == 1, x, total)

    first = lax.index_in_dim(nothing, 0, axis)
    return lax.cond(jnp.any(first), with_negative_zeros, lambda total: total, total)


@LOWER.rule(p.Sort)
def sort(op: p.Sort, site: JaxSite, x: Array) -> Array:
    """Sorted along an axis; complex numbers by real part first, as NumPy does."""
    if KIND[site.dtype] == "complex":
        return jnp.take_along_axis(x, argsort(p.Argsort(op.axis), site, x), op.axis, mode="promise_in_bounds")
    return jnp.sort(x, axis=op.axis, stable=True)


@LOWER.rule(p.Argsort)
def argsort(op: p.Argsort, site: JaxSite, x: Array) -> Array:
    """The positions that sort along an axis, stable; complex numbers with NaN come last."""
    if KIND[site.dtype] == "complex":
        # By what is not a number, then real parts, then imaginary parts.
        not_numbers = 2 * jnp.isnan(x.real).astype(np.uint8) + jnp.isnan(x.imag).astype(np.uint8)
        positions = lax.broadcasted_iota(np.int64, x.shape, op.axis)
        return lax.sort((not_numbers, x.real, x.imag, positions), dimension=op.axis, num_keys=3)[3]
    return jnp.argsort(x, axis=op.axis, stable=True).astype(np.int64)


@LOWER.rule(p.Search)
def search(op: p.Search, site: JaxSite, line: Array, values: Array) -> Array:
    """Positions in a sorted line."""
    if line.size == 0:
        return jnp.zeros(values.shape, np.int64)
    return jnp.searchsorted(line, values, side=op.side).astype(np.int64)


@LOWER.rule(p.Contract)
def contract(op: p.Contract, site: JaxSite, x: Array, y: Array) -> Array:
    """A product of matrices in the highest precision that the device has; half precision is summed in float32."""
    dimensions = ((op.left, op.right), (op.left_batch, op.right_batch))
    if site.dtype == "bool":
        # Sums of ones and zeros are 0 only when all are, in whatever precision.
        return lax.dot_general(x.astype(np.float32), y.astype(np.float32), dimensions) != 0
    half = site.dtype in ("float16", "bfloat16")
    # On cards and TPUs jax would otherwise round the inputs to fewer bits.
    result = lax.dot_general(
        x, y, dimensions, precision=lax.Precision.HIGHEST, preferred_element_type=np.float32 if half else x.dtype
    )
    return result.astype(x.dtype)


@LOWER.rule(Attend)
def attend(op: Attend, site: JaxSite, q: Array, k: Array, v: Array, *bias: Array) -> Array:
    """Attention with scores, softmax and sums in float32 or wider."""
    stack = tuple(range(q.ndim - 2))
    wide = np.float32 if site.dtype in ("float16", "bfloat16") else q.dtype

    def product(x: Array, y: Array, left: int, right: int) -> Array:
        dimensions = (((left,), (right,)), (stack, stack))
        return lax.dot_general(x, y, dimensions, precision=lax.Precision.HIGHEST, preferred_element_type=wide)

    scores = product(q, k, q.ndim - 1, q.ndim - 1) * jnp.asarray(op.scale, wide)
    if bias:
        scores += bias[0].astype(wide)
    if op.causal:
        n, m = scores.shape[-2:]
        scores = jnp.where(jnp.tri(n, m, m - n, dtype=bool), scores, -jnp.inf)
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True, initial=-jnp.inf))
    summed = product(weights, v.astype(wide), q.ndim - 1, q.ndim - 2)
    return (summed / weights.sum(axis=-1, keepdims=True)).astype(q.dtype)


# Gathering and scattering.


def _judge_indices(site: JaxSite, axis: int, indices: Array) -> tuple[Array, Any]:
    """The positions in a type that XLA likes, and what it may assume of them; complains of those outside."""
    length = site.inputs[0].shape[axis]
    if site.in_range:
        return indices.astype(_index_type(length)), lax.GatherScatterMode.PROMISE_IN_BOUNDS
    outside = (indices < 0) | (indices >= length) if _holds(indices.dtype, length) else indices < 0
    site.complain(jnp.any(outside), lambda: IndexError(f"an index is out of bounds for an axis with size {length}."))
    return jnp.where(outside, 0, indices).astype(_index_type(length)), lax.GatherScatterMode.CLIP


def _index_type(length: int) -> Any:
    return np.int32 if length <= np.iinfo(np.int32).max else np.int64


def _holds(dtype: Any, number: int) -> bool:
    return number <= np.iinfo(dtype).max


@LOWER.rule(p.Gather)
def gather(op: p.Gather, site: JaxSite, x: Array, indices: Array) -> Array:
    """Elements along an axis by index, which is checked unless it is known to be right."""
    index, mode = _judge_indices(site, op.axis, indices)
    if site.result.size == 0:
        return jnp.zeros(site.result.shape, x.dtype)
    return _pick(x, index, op.axis, op.batch, mode)


def _pick(x: Array, index: Array, axis: int, batch: int, mode: Any) -> Array:
    """Elements along an axis by index, with the first axes of both as a batch."""
    sizes = [1 if position < batch or position == axis else n for position, n in enumerate(x.shape)]
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=_offsets(x.ndim, index.ndim, axis, batch),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=tuple(range(batch)),
        start_indices_batching_dims=tuple(range(batch)),
    )
    return lax.gather(x, index[..., None], dimensions, sizes, mode=mode)


def _offsets(dimensions: int, index_dimensions: int, axis: int, batch: int) -> tuple[int, ...]:
    """Which axes of the result come from the array and not from the indices."""
    behind = axis + index_dimensions - batch
    return (*range(batch, axis), *range(behind, behind + dimensions - axis - 1))


_SCATTERS = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "maximum": lax.scatter_max,
    "minimum": lax.scatter_min,
}


@LOWER.rule(p.Scatter)
def scatter(op: p.Scatter, site: JaxSite, x: Array, indices: Array, updates: Array) -> Array:
    """`x` with updates at indices, which are checked first unless they are known to be right.

    With "set" the last update wins, as in NumPy, where jax would take any.
    """
    index, mode = _judge_indices(site, op.axis, indices)
    if site.inputs[2].size == 0 or x.size == 0:
        return x
    fn = op.fn
    if site.dtype == "bool":
        fn = {"add": "maximum", "multiply": "minimum"}.get(fn, fn)  # type: ignore[assignment]
        x, updates = x.astype(np.uint8), updates.astype(np.uint8)
    count = p.product(indices.shape[op.batch :])
    index = lax.reshape(index, (*indices.shape[: op.batch], count))
    updates = lax.reshape(updates, (*x.shape[: op.axis], count, *x.shape[op.axis + 1 :]))
    if fn == "set" and not site.distinct:
        updates = _last_wins(index, updates, x.shape[op.axis], op)
    result = _put(fn, x, index, updates, op.axis, op.batch, mode, unique=site.distinct)
    return result.astype(jnp.dtype(site.dtype))


def _put(
    fn: str, x: Array, index: Array, updates: Array, axis: int, batch: int, mode: Any, *, unique: bool = False
) -> Array:
    """A scatter of jax along one axis, with the first axes as a batch."""
    dimensions = lax.ScatterDimensionNumbers(
        update_window_dims=_offsets(x.ndim, index.ndim, axis, batch),
        inserted_window_dims=(axis,),
        scatter_dims_to_operand_dims=(axis,),
        operand_batching_dims=tuple(range(batch)),
        scatter_indices_batching_dims=tuple(range(batch)),
    )
    return _SCATTERS[fn](x, index[..., None], updates, dimensions, mode=mode, unique_indices=unique)


def _last_wins(index: Array, updates: Array, length: int, op: p.Scatter) -> Array:
    """Every update of one element is replaced by the last one: then it does not matter which XLA takes."""
    batch, mode = op.batch, lax.GatherScatterMode.CLIP
    positions = lax.broadcasted_iota(np.int32, index.shape, batch)
    last = jnp.zeros((*index.shape[:batch], length), np.int32)
    winners = _pick(_put("maximum", last, index, positions, batch, batch, mode), index, batch, batch, mode)
    return _pick(updates, winners, op.axis, batch, mode)


# Transforms and linear algebra.


@LOWER.rule(p.Fourier)
def fourier(op: p.Fourier, site: JaxSite, x: Array) -> Array:
    """A transform; half precision is computed in float32, and nothing at all gives zeros."""
    if site.result.size == 0:
        return jnp.zeros(site.result.shape, jnp.dtype(site.result.dtype))
    if x.dtype in (np.float16, jnp.bfloat16):
        x = x.astype(np.float32)
    return getattr(jnp.fft, op.fn)(x, n=op.length, axis=op.axis)


@LOWER.rule(p.Linear)
def linear(op: p.Linear, site: JaxSite, *matrices: Array) -> Any:
    """All parts of the result at once, as a tuple where there are several."""
    a = matrices[0]
    match op.fn:
        case "inv":
            unit = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
            return _solve(site, a, unit)
        case "solve":
            return _solve(site, a, matrices[1])
        case "cholesky":
            factor = jnp.linalg.cholesky(a, symmetrize_input=False)
            failed = jnp.isnan(factor).any((-2, -1)) & ~jnp.isnan(jnp.tril(a)).any((-2, -1))
            site.complain(failed.any(), lambda: np.linalg.LinAlgError("Matrix is not positive definite"))
            return factor
        case "eigh":
            return tuple(jnp.linalg.eigh(a, UPLO="L", symmetrize_input=False))
        case "eigvalsh":
            return jnp.linalg.eigh(a, UPLO="L", symmetrize_input=False)[0]
        case "qr":
            return tuple(jnp.linalg.qr(a, mode="complete" if op.full else "reduced"))
        case "svd":
            site.complain(jnp.isnan(a).any(), lambda: np.linalg.LinAlgError("SVD did not converge"))
            return tuple(jnp.linalg.svd(a, full_matrices=op.full))
        case "svdvals":
            site.complain(jnp.isnan(a).any(), lambda: np.linalg.LinAlgError("SVD did not converge"))
            return jnp.linalg.svd(a, compute_uv=False)
        case "eig":
            message = "Array must not contain infs or NaNs"
            site.complain(~jnp.isfinite(a).all(), lambda: np.linalg.LinAlgError(message))
            return tuple(jnp.linalg.eig(a))
    found = getattr(jnp.linalg, op.fn)(a)
    return tuple(found) if op.fn == "slogdet" else found


def _solve(site: JaxSite, a: Array, b: Array) -> Array:
    """By rows in the order of the pivots; a pivot of exactly 0 is what NumPy complains of."""
    if b.size == 0:
        return b
    factors, _, order = lax.linalg.lu(a)
    pivots = jnp.diagonal(factors, axis1=-2, axis2=-1)
    site.complain(jnp.any(pivots == 0), lambda: np.linalg.LinAlgError("Singular matrix"))
    arranged = jnp.take_along_axis(b, order[..., None], axis=-2)
    half = lax.linalg.triangular_solve(factors, arranged, left_side=True, lower=True, unit_diagonal=True)
    return lax.linalg.triangular_solve(factors, half, left_side=True, lower=False)
