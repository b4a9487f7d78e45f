"""Movement, reductions, sorting, contraction, gathering and transforms in torch.

Each function is the rule of one primitive: it chooses the torch call at a site. Indices are checked before a card sees
them, for a wrong one would break its context.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from anygpu.engines.torch.elementwise import HELD, LOWER, STAND_IN, TORCH, Site, Step, has_stand_in, ordered, widened
from anygpu.program import primitives as p
from anygpu.program.dtypes import KIND, DType
from anygpu.program.ops.linear import Attend


@LOWER.rule(p.Iota)
def iota(op: p.Iota, site: Site) -> Step:
    """The torch call that counts."""
    count = functools.partial(torch.arange, op.length, device=site.place)
    if KIND[op.dtype] == "complex" or op.dtype in STAND_IN:
        return lambda: count(dtype=torch.int64).to(HELD[op.dtype])
    return functools.partial(count, dtype=TORCH[op.dtype])


# Movement: views, wherever torch has them.


@LOWER.rule(p.Reshape)
def reshape(op: p.Reshape, site: Site) -> Step:
    return lambda x: x.reshape(op.shape)


@LOWER.rule(p.Permute)
def permute(op: p.Permute, site: Site) -> Step:
    return lambda x: x.permute(op.axes)


@LOWER.rule(p.Broadcast)
def broadcast(op: p.Broadcast, site: Site) -> Step:
    return lambda x: x.expand(op.shape)


@LOWER.rule(p.Flip)
def flip(op: p.Flip, site: Site) -> Step:
    return lambda x: x.flip(op.axes)


@LOWER.rule(p.Windows)
def windows(op: p.Windows, site: Site) -> Step:
    return lambda x: x.unfold(op.axis, op.size, op.step)


@LOWER.rule(p.Concatenate)
def concatenate(op: p.Concatenate, site: Site) -> Step:
    # torch skips empty vectors whatever the others look like, and ours all fit.
    return lambda *parts: torch.cat(parts, op.axis)


@LOWER.rule(p.Slice)
def slice_(op: p.Slice, site: Site) -> Step:
    region = tuple(slice(*each) for each in zip(op.starts, op.stops, op.steps, strict=True))
    return lambda x: x[region]


def _region(starts: tuple[int, ...], steps: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The slices of an update or of what padding surrounds."""
    return tuple(
        slice(start, start + (count - 1) * step + 1 if count else start, step)
        for start, step, count in zip(starts, steps, shape, strict=True)
    )


@LOWER.rule(p.Update)
def update(op: p.Update, site: Site) -> Step:
    """A copy with new values in a region."""
    region = _region(op.starts, op.steps, site.inputs[1].shape)

    def replaced(x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        result = x.clone()
        result[region] = new
        return result

    return replaced


@LOWER.rule(p.Pad)
def pad(op: p.Pad, site: Site) -> Step:
    """The values within a border of one value."""
    region = _region(op.low, (1,) * len(op.low), site.inputs[0].shape)
    shape = site.result.shape

    def padded(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        result = value.expand(shape).clone(memory_format=torch.contiguous_format)
        result[region] = x
        return result

    return padded


# Reductions and scans.


@LOWER.rule(p.Reduce)
def reduce(op: p.Reduce, site: Site) -> Step:
    """The torch call of a reduction; totals stay in their type, and extremes follow NumPy's order."""
    axes, dtype = op.axes, site.dtype
    if not axes:
        return lambda x: x
    if KIND[dtype] == "complex" and op.fn not in ("sum", "prod"):
        return functools.partial(_complex_reduce, op.fn, axes)
    match op.fn:
        case "sum":
            return lambda x: torch.sum(x, axes, dtype=x.dtype)
        case "prod":
            return functools.partial(_product, axes=axes)
        case "any":
            return lambda x: torch.any(x, axes)
        case "all":
            return lambda x: torch.all(x, axes)
        case "max" | "min":
            extreme: Step = torch.amax if op.fn == "max" else torch.amin
            if has_stand_in(dtype):
                return lambda x: ordered(extreme(ordered(x, dtype), axes), dtype)
            return lambda x: extreme(x, axes)
    position: Step = getattr(torch, op.fn)
    return lambda x: position(_sortable(x, dtype), axes[0])


def _product(x: torch.Tensor, *, axes: tuple[int, ...]) -> torch.Tensor:
    """One axis at a time from the last, because torch multiplies along one only."""
    for axis in reversed(axes):
        x = torch.prod(x, axis, dtype=x.dtype)
    return x


def _complex_reduce(fn: str, axes: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """Complex extremes in NumPy's order."""
    if fn.startswith("arg"):
        return _complex_extreme(x, axes[0], fn.removeprefix("arg"))
    for axis in reversed(axes):
        x = x.gather(axis, _complex_extreme(x, axis, fn).unsqueeze(axis)).squeeze(axis)
    return x


def _complex_extreme(x: torch.Tensor, axis: int, fn: str) -> torch.Tensor:
    """Where the largest or least is, first by real and then by imaginary parts; what is not a number goes first."""
    extreme: Step = torch.amax if fn == "max" else torch.amin
    at_best = x.real == extreme(x.real, axis, keepdim=True)
    imaginary = torch.where(at_best, x.imag, -torch.inf if fn == "max" else torch.inf)
    best = at_best & (imaginary == extreme(imaginary, axis, keepdim=True))
    strange = torch.isnan(x)
    found = torch.where(torch.any(strange, axis, keepdim=True), strange, best)
    return torch.argmax(found.view(torch.uint8), axis)


def _sortable(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Values in the same order, in a type that torch can order."""
    return x.view(torch.uint8) if dtype == "bool" else ordered(x, dtype)


@LOWER.rule(p.Scan)
def scan(op: p.Scan, site: Site) -> Step:
    """The torch call of a running reduction; floats are added as a tree."""
    axis, dtype = op.axis, site.dtype
    match op.fn:
        case "sum" if KIND[dtype] == "complex":
            return lambda x: torch.view_as_complex(_running_sum(torch.view_as_real(x), axis))
        case "sum" if KIND[dtype] == "float":
            return lambda x: _running_sum(x, axis)
        case "sum":
            return lambda x: torch.cumsum(x, axis, dtype=x.dtype)
        case "prod" if KIND[dtype] == "complex":
            # torch begins with a complex 1, which makes NaN of everything infinite.
            raise NotImplementedError
        case "prod":
            return lambda x: torch.cumprod(x, axis, dtype=x.dtype)
    running: Step = torch.cummax if op.fn == "max" else torch.cummin
    return lambda x: ordered(running(ordered(x, dtype), axis).values, dtype)


def _running_sum(x: torch.Tensor, axis: int) -> torch.Tensor:
    """torch begins with 0, and 0 + -0 is 0: a sum of nothing but -0 is -0 in NumPy."""
    total = torch.cumsum(x, axis, dtype=x.dtype)
    if not x.shape[axis] or not _is_negative_zero(x.select(axis, 0)).any():
        return total
    so_far = torch.cumprod(_is_negative_zero(x).to(torch.uint8), axis, dtype=torch.uint8)
    return torch.where(so_far.bool(), x, total)


def _is_negative_zero(x: torch.Tensor) -> torch.Tensor:
    return (x == 0) & torch.signbit(x)


# Sorting and searching.


@LOWER.rule(p.Sort)
def sort(op: p.Sort, site: Site) -> Step:
    """The torch call of a sort; complex numbers by real part first, as NumPy does."""
    axis, dtype = op.axis, site.dtype
    if KIND[dtype] == "complex":
        return lambda x: x.gather(axis, _complex_order(x, axis))
    return lambda x: ordered(torch.sort(ordered(x, dtype), dim=axis, stable=True).values, dtype)


@LOWER.rule(p.Argsort)
def argsort(op: p.Argsort, site: Site) -> Step:
    """The torch call of the positions that sort, stable."""
    axis, dtype = op.axis, site.dtype
    if KIND[dtype] == "complex":
        return lambda x: _complex_order(x, axis)
    return lambda x: torch.sort(ordered(x, dtype), dim=axis, stable=True).indices


def _complex_order(x: torch.Tensor, axis: int) -> torch.Tensor:
    """By what is not a number, then real parts, then imaginary parts: as stable sorts, the last key first."""
    order = torch.sort(x.imag, dim=axis, stable=True).indices
    not_numbers = 2 * torch.isnan(x.real).to(torch.uint8) + torch.isnan(x.imag)
    for key in (x.real, not_numbers):
        order = order.gather(axis, torch.sort(key.gather(axis, order), dim=axis, stable=True).indices)
    return order


@LOWER.rule(p.Search)
def search(op: p.Search, site: Site) -> Step:
    """The torch call of a binary search; NaN sorts behind all numbers, as in NumPy."""
    dtype, right, length = site.dtype, op.side == "right", site.inputs[0].size

    def find(line: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(line.contiguous(), values.contiguous(), right=right)

    if KIND[dtype] == "complex":
        raise NotImplementedError
    if KIND[dtype] != "float":
        return lambda line, values: find(_sortable(line, dtype), _sortable(values, dtype))

    def find_numbers(line: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """NaN comes after all numbers, which torch's comparisons do not know."""
        if dtype in ("float16", "bfloat16"):
            line, values = line.float(), values.float()
        strange = torch.isnan(line)
        numbers = length - strange.sum()
        found = find(line.masked_fill(strange, torch.inf), values)
        last = torch.full_like(numbers, length) if right else numbers
        return torch.where(torch.isnan(values), last, torch.minimum(found, numbers))

    return find_numbers


# Contraction.


@LOWER.rule(p.Contract)
def contract(op: p.Contract, site: Site) -> Step:
    """As one matrix product. Axes that lie as BLAS wants them are not touched."""
    x, y = (each.shape for each in site.inputs)
    rows = p.free_axes(x, op.left, op.left_batch)
    columns = p.free_axes(y, op.right, op.right_batch)
    stack = _lengths(x, op.left_batch)
    inner = p.product(_lengths(x, op.left))
    left_shape: tuple[int, ...] = (*stack, p.product(_lengths(x, rows)), inner)
    right_shape: tuple[int, ...] = (*stack, inner, p.product(_lengths(y, columns)))
    if not stack and not columns:
        right_shape = (inner,)
    if not stack and not rows:
        left_shape = (inner,)
    if len(stack) > 1:
        left_shape = (p.product(stack), *left_shape[-2:])
        right_shape = (p.product(stack), *right_shape[-2:])
    left = _arranged(x, (*op.left_batch, *rows, *op.left), left_shape)
    right = _arranged(y, (*op.right_batch, *op.right, *columns), right_shape)
    multiply = _truth_product if site.dtype == "bool" else torch.matmul
    result = site.result.shape
    if not stack and len(rows) <= 1 and len(columns) <= 1:
        return lambda x, y: multiply(left(x), right(y))
    return lambda x, y: multiply(left(x), right(y)).reshape(result)


def _lengths(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in axes)


def _arranged(shape: tuple[int, ...], axes: tuple[int, ...], wanted: tuple[int, ...]) -> Step:
    """The call that permutes and reshapes, without whichever of both changes nothing."""
    moved = _lengths(shape, axes)
    if axes == tuple(range(len(axes))):
        return (lambda x: x) if moved == wanted else lambda x: x.reshape(wanted)
    if moved == wanted:
        return lambda x: x.permute(axes)
    return lambda x: x.permute(axes).reshape(wanted)


def _truth_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sums of ones and zeros are 0 only when all are, in whatever precision."""
    return torch.matmul(x.float(), y.float()) != 0


# Gathering and scattering.


def _as_index(indices: torch.Tensor, dtype: DType) -> torch.Tensor:
    return indices if dtype in ("int64", "int32") else widened(indices, dtype).long()


def _check(indices: torch.Tensor, length: int) -> None:
    """Raise `IndexError` for an index out of range."""
    if indices.numel():
        least, most = (int(each) for each in torch.aminmax(indices))
        if least < 0 or most >= length:
            worst = most if most >= length else least
            raise IndexError(f"index {worst} is out of bounds for an axis with size {length}.")


def _checked(step: Step, site: Site, length: int) -> Step:
    """With a readable IndexError. On a card torch's own check would break the whole process, so ours comes first."""
    if site.in_range:
        return step

    def on_the_card(index: torch.Tensor, *arrays: torch.Tensor) -> torch.Tensor:
        _check(index, length)
        return step(index, *arrays)

    def on_the_host(index: torch.Tensor, *arrays: torch.Tensor) -> torch.Tensor:
        try:
            return step(index, *arrays)
        except (IndexError, RuntimeError):
            _check(index, length)
            raise

    return on_the_host if site.place.type == "cpu" else on_the_card


@LOWER.rule(p.Gather)
def gather(op: p.Gather, site: Site) -> Step:
    """The torch call of a gather, with indices checked unless they are known to be right."""
    (x_spec, index_spec), result = site.inputs, site.result.shape
    if op.batch == 0:
        one_axis = len(index_spec.shape) == 1

        def pick(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            if one_axis:
                return x.index_select(op.axis, index)
            return x.index_select(op.axis, index.reshape(-1)).reshape(result)
    else:
        view = _view(x_spec.shape, op.axis, op.batch)
        count = p.product(index_spec.shape[op.batch :])

        def pick(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            index = index.long().reshape(view[0], 1, count, 1).expand(view[0], view[1], count, view[3])
            return x.reshape(view).gather(2, index).reshape(result)

    checked = _checked(pick, site, x_spec.shape[op.axis])
    return lambda x, indices: checked(_as_index(indices, index_spec.dtype), x)


def _view(shape: tuple[int, ...], axis: int, batch: int) -> tuple[int, int, int, int]:
    """Everything as four axes: those that go together, those before the axis, the axis, and those behind it."""
    return p.product(shape[:batch]), p.product(shape[batch:axis]), shape[axis], p.product(shape[axis + 1 :])


_SCATTERS = {"multiply": "prod", "maximum": "amax", "minimum": "amin"}


@LOWER.rule(p.Scatter)
def scatter(op: p.Scatter, site: Site) -> Step:
    """The torch call of a scatter, with indices checked unless they are known to be right.

    With "set" the last update wins, as in NumPy, where torch would take any. Bools and unsigned extremes go through
    types that torch can compute with.
    """
    x_spec, index_spec, _ = site.inputs
    dtype, fn = site.dtype, op.fn
    view = _view(x_spec.shape, op.axis, op.batch)
    count = p.product(index_spec.shape[op.batch :])
    if dtype == "bool":
        fn = {"add": "maximum", "multiply": "minimum"}.get(fn, fn)  # type: ignore[assignment]
    biased = fn in ("maximum", "minimum") and has_stand_in(dtype)

    def put(index: torch.Tensor, x: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        result = (_sortable(x, dtype) if biased or dtype == "bool" else x).clone(memory_format=torch.contiguous_format)
        updates = _sortable(updates, dtype) if biased or dtype == "bool" else updates
        lines, new = result.view(view), updates.reshape(view[0], view[1], count, view[3])
        index = index.long().reshape(view[0], count)
        if fn == "set" and not site.distinct and index.numel():
            index, new = _last_wins(index, new, view[2])
        if fn in ("set", "add") and view[0] == 1:
            (lines.index_copy_ if fn == "set" else lines.index_add_)(2, index.view(-1), new)
        else:
            everywhere = index[:, None, :, None].expand(new.shape)
            if fn == "set":
                lines.scatter_(2, everywhere, new)
            elif fn == "add":
                lines.scatter_add_(2, everywhere, new)
            else:
                lines.scatter_reduce_(2, everywhere, new, _SCATTERS[fn])
        return result.view(torch.bool) if dtype == "bool" else ordered(result, dtype) if biased else result

    checked = _checked(put, site, x_spec.shape[op.axis])
    return lambda x, indices, updates: checked(_as_index(indices, index_spec.dtype), x, updates)


def _last_wins(index: torch.Tensor, new: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every update of one element is replaced by the last one: then it does not matter which torch takes."""
    positions = torch.arange(index.shape[1], device=index.device).expand(index.shape)
    last = torch.zeros((index.shape[0], length), dtype=torch.int64, device=index.device)
    last.scatter_reduce_(1, index, positions, "amax")
    winners = last.gather(1, index)
    if torch.equal(winners, positions):
        return index, new
    return index, new.gather(2, winners[:, None, :, None].expand(new.shape))


# Transforms and linear algebra.


@LOWER.rule(p.Fourier)
def fourier(op: p.Fourier, site: Site) -> Step:
    """The torch call of a transform; half precision is computed in float32, and nothing at all gives zeros."""
    transform = functools.partial(getattr(torch.fft, op.fn), n=op.length, dim=op.axis)
    if site.result.size == 0:
        return lambda x: x.new_zeros(site.result.shape, dtype=TORCH[site.result.dtype])
    if site.dtype in ("float16", "bfloat16"):
        return lambda x: transform(x.float())
    return transform


@LOWER.rule(p.Linear)
def decomposition(op: p.Linear, site: Site) -> Step:
    """All parts of the result at once, as a tuple where there are several."""
    compute: dict[str, Any] = {
        "qr": functools.partial(torch.linalg.qr, mode="complete" if op.full else "reduced"),
        "svd": functools.partial(torch.linalg.svd, full_matrices=op.full),
    }
    function: Step = compute.get(op.fn) or getattr(torch.linalg, op.fn)

    def translated(*matrices: torch.Tensor) -> Any:
        try:
            return function(*matrices)
        except torch.linalg.LinAlgError as error:
            raise np.linalg.LinAlgError(str(error)) from error

    return translated


# -- attention by torch's own fused kernels


@LOWER.rule(Attend)
def attend(op: Attend, site: Site) -> Step:
    """The torch call of attention. A row that sees no key is NaN, as its softmax is, where torch gives zeros."""
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
    """A tensor without its repeated axes: a mask of a batch is the same for all heads and queries."""
    return x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())]
